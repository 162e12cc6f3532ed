"""Triton without a GPU: switch its interpreter on and off, count the launches that run through it, and end long ones.

The time of an interpreted launch says nothing about the kernel, so it must not be reported as a CPU time.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

#: Read by Triton when a kernel is decorated, so it has to be set before any kernel file is imported.
SWITCH = "TRITON_INTERPRET"


def choose(device: str) -> None:
    """Interpret kernels on "cpu", compile them on "cuda", in this process and those it starts."""
    if device == "cpu":
        os.environ[SWITCH] = "1"
    else:
        os.environ.pop(SWITCH, None)


def quicken() -> None:
    """Have the interpreter of this process skip two steps that take half of its time and change no result, and take the
    masks that the compiler takes. Does nothing where it is off, or in a Triton without the names that are patched.
    """
    if os.environ.get(SWITCH) != "1":
        return
    try:
        import triton.language as tl
        from triton.runtime import interpreter
    except ImportError:
        return
    builder = getattr(interpreter, "interpreter_builder", None)
    if not (hasattr(interpreter, "_patch_builtin") and hasattr(builder, "options")):
        return
    # The check of every sum and product for overflow; its result is used with ``debug`` only, which is never set.
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)

    @cache
    def builtins(package: ModuleType) -> list[str]:
        return [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]

    def patch_builtin(package: ModuleType, builder: object, *scope: object) -> None:
        """Triton's function of this name, which runs at every tl.sum, with the search for builtins done once."""
        for name in builtins(package):
            member = getattr(package, name)
            if tl.core.is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, *scope)

    interpreter._patch_builtin = patch_builtin
    _take_wide_masks(interpreter, type(builder))


def _take_wide_masks(interpreter: ModuleType, builder: type) -> None:
    """The interpreter keeps some conditions in wider integers, and then refuses them as masks."""

    def as_mask(mask: Any) -> Any:
        if mask is None or mask.data.dtype == bool:
            return mask
        return interpreter.TensorHandle(mask.data.astype(bool), mask.dtype)

    load, store = builder.create_masked_load, builder.create_masked_store
    builder.create_masked_load = lambda this, ptrs, mask, *rest: load(this, ptrs, as_mask(mask), *rest)
    builder.create_masked_store = lambda this, ptrs, value, mask, *rest: store(this, ptrs, value, as_mask(mask), *rest)


class LaunchCounter:
    """Counts the interpreted launches of this process in ``launches``; see ``launch_counter``.

    ran_out: whether a launch was ended because its time was up, in the current or last ``limited``.
    """

    def __init__(self) -> None:
        self.launches = 0
        self.ran_out = False
        self._end = math.inf
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
        # Called before every program of a grid.
        builder = type(interpreter.interpreter_builder)
        begin_program = builder.set_grid_idx

        def unless_ran_out(this, *place):
            if time.monotonic() > self._end:
                self.ran_out = True
                raise TimeoutError("Triton's interpreter takes too long")
            return begin_program(this, *place)

        builder.set_grid_idx = unless_ran_out

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Programs that begin later than this raise TimeoutError, as Triton's InterpreterError."""
        self.ran_out, self._end = False, time.monotonic() + seconds
        try:
            yield
        finally:
            self._end = math.inf


@cache
def launch_counter() -> LaunchCounter:
    """The counter of this process, from the first call on."""
    return LaunchCounter()
