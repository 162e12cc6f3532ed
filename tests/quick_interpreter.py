"""Triton's interpreter without two things that take half of its time and change no result."""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache

import triton.language as tl
from triton.runtime import interpreter


@cache
def _builtins(package: object) -> list[str]:
    return [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]


def _patch_builtin(package: object, builder: object, *scope: object) -> None:
    """Triton's own function of this name, with the search for what is to be patched done once: it runs at every
    tl.sum.
    """
    for name in _builtins(package):
        member = getattr(package, name)
        if tl.core.is_builtin(member):
            interpreter._patch_attr(package, name, member, builder, *scope)


def install() -> None:
    """For this process; TRITON_INTERPRET must have been set before Triton was imported. A Triton without these names
    stays slow.
    """
    if not (
        hasattr(interpreter, "_patch_builtin") and hasattr(getattr(interpreter, "interpreter_builder", None), "options")
    ):
        return
    builder = interpreter.interpreter_builder
    # It looks for overflow in every sum and product, and drops what it finds unless ``debug`` is set, which it never
    # is.
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    interpreter._patch_builtin = _patch_builtin
