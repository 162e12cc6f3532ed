"""Triton without a GPU: which launches ran through its interpreter.

Interpreted time says nothing about a kernel, so such a launch must never get a CPU time beside the PyTorch variants.
"""

from __future__ import annotations

import os

#: Read by Triton when a kernel is decorated, so it has to be set before any kernel file is imported.
SWITCH = "TRITON_INTERPRET"


def choose(device: str) -> None:
    """For this process and those it starts: interpreted kernels on a CPU, compiled ones on a GPU, whatever was set
    before.
    """
    if device == "cpu":
        os.environ[SWITCH] = "1"
    else:
        os.environ.pop(SWITCH, None)


class Watch:
    """Counts the interpreted launches of this process from its creation on."""

    def __init__(self) -> None:
        self.launches = 0
        if os.environ.get(SWITCH) != "1":
            return
        try:
            from triton.runtime import interpreter
        except ImportError:
            return  # no Triton, nothing to watch
        run = interpreter.GridExecutor.__call__

        def counted(executor, *arguments, **keywords):
            self.launches += 1
            return run(executor, *arguments, **keywords)

        interpreter.GridExecutor.__call__ = counted
