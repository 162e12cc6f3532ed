"""Triton without a GPU: switch its interpreter on and off, and count the launches that run through it.

The time of an interpreted launch says nothing about the kernel, so it must not be reported as a CPU time.
"""

from __future__ import annotations

import os

#: Read by Triton when a kernel is decorated, so it has to be set before any kernel file is imported.
SWITCH = "TRITON_INTERPRET"


def choose(device: str) -> None:
    """Interpret kernels on "cpu", compile them on "cuda", in this process and those it starts."""
    if device == "cpu":
        os.environ[SWITCH] = "1"
    else:
        os.environ.pop(SWITCH, None)


class LaunchCounter:
    """Counts the interpreted launches of this process in ``launches``, from its creation on."""

    def __init__(self) -> None:
        self.launches = 0
        if os.environ.get(SWITCH) != "1":
            return
        try:
            from triton.runtime import interpreter
        except ImportError:
            return  # without Triton there is nothing to count
        run = interpreter.GridExecutor.__call__

        def counted(executor, *arguments, **keywords):
            self.launches += 1
            return run(executor, *arguments, **keywords)

        interpreter.GridExecutor.__call__ = counted
