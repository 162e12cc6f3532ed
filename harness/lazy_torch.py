"""Files that are imported here import torch when they first use it.

Commands that plan, list or compare need only the names in the files of operators, and torch takes longer to load than
all the rest. Workers import it at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

NAME = "torch"


class _LazyTorch(ModuleType):
    """What those files have as ``torch``."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__path__", "__version__"):
            raise AttributeError(name)  # ``inspect`` looks at every module for some of these
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


@contextmanager
def lazy_torch() -> Iterator[None]:
    """Does nothing where torch is imported already, or not installed."""
    if NAME in sys.modules or (spec := importlib.util.find_spec(NAME)) is None:
        yield
        return
    lazy = _LazyTorch(NAME)
    lazy.__spec__, lazy.__file__ = spec, spec.origin  # libraries ask importlib.util.find_spec whether torch is there
    sys.modules[NAME] = lazy
    try:
        yield
    finally:  # matplotlib and others look whether it is loaded
        if sys.modules.get(NAME) is lazy:
            del sys.modules[NAME]
