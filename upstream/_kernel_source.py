"""Takes single Triton kernels out of a package's file without importing the package.

Importing an engine takes seconds, needs all that it depends on, and changes the process. A Triton kernel needs only
``triton`` and ``tl``: its source is read where it is installed, compiled under its own file name and lines, and wrapped
by the same decorator.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton
import triton.language as tl


def triton_kernel(path: Path, names: Sequence[str]) -> Any:
    """The first of ``names``, such as ``_kernel`` or ``Class.kernel``, that a file defines. Raises LookupError."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for name in names:
        found: ast.AST | None = tree
        for part in name.split("."):
            found = next((one for one in getattr(found, "body", ()) if getattr(one, "name", None) == part), None)
        if isinstance(found, ast.FunctionDef):
            # A method of a class is a static one: only the decorator of Triton is kept.
            found.decorator_list = [one for one in found.decorator_list if "triton" in ast.unparse(one)]
            module = ast.Module(body=[found], type_ignores=[])
            space = {"triton": triton, "tl": tl, "__name__": __name__}
            exec(compile(module, str(path), "exec"), space)
            return space[found.name]
    raise LookupError(f"{path} defines none of {', '.join(names)}; this version of the package is not supported")
