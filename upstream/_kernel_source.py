"""Takes single Triton kernels, functions and classes out of a package's file without importing the package.

Importing an engine takes seconds, needs all that it depends on, and changes the process. A Triton kernel needs only
``triton`` and ``tl``, and the functions around it little more: their source is read where it is installed, compiled
under its own file name and lines, and wrapped by the same decorators.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from spec_decode_bench.harness.packages import definition


def definitions(path: Path, names: Sequence[str], asserts: bool = True, **given: Any) -> SimpleNamespace:
    """The functions, classes and constants of these names at the top level of a file, or in a class of it as in
    ``Class.kernel``, in one namespace by the last part of their name. Raises LookupError where one is missing.

    asserts: whether their assert statements run. given: what they use beside each other, torch, numpy and Triton.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    space = {"torch": torch, "np": np, "triton": triton, "tl": tl, "__name__": __name__} | given
    for name in names:
        if (found := definition(tree.body, name)) is None:
            raise LookupError(f"{path} does not define {name}; this version of the package is not supported")
        if isinstance(found, ast.FunctionDef) and "." in name:
            # A method of a class is a static one: only the decorator of Triton is kept.
            found.decorator_list = [one for one in found.decorator_list if "triton" in ast.unparse(one)]
        module = ast.Module(body=[found], type_ignores=[])
        exec(compile(module, str(path), "exec", optimize=-1 if asserts else 1), space)
    return SimpleNamespace(**{last: space[last] for last in (name.split(".")[-1] for name in names)})


def triton_kernel(path: Path, names: Sequence[str]) -> Any:
    """The first of ``names``, such as ``_kernel`` or ``Class.kernel``, that a file defines. Raises LookupError."""
    for name in names:
        try:
            return getattr(definitions(path, [name]), name.split(".")[-1])
        except LookupError:
            continue
    raise LookupError(f"{path} defines none of {', '.join(names)}; this version of the package is not supported")
