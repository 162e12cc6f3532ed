"""Replaces functions of modules when these are imported, so that the plugin itself imports nothing of the engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

#: ``module:Class.method`` -> original -> what stands in its place.
Hooks = Mapping[str, Callable[[Callable], Callable]]


def install(hooks: Hooks) -> None:
    """Now, in modules that are imported, and in the others as soon as they are."""
    by_module: dict[str, dict[str, Callable]] = {}
    for place, wrap in hooks.items():
        module, _, name = place.partition(":")
        by_module.setdefault(module, {})[name] = wrap
    for name in [name for name in by_module if name in sys.modules]:
        _replace(by_module.pop(name), sys.modules[name])
    if by_module:
        sys.meta_path.insert(0, _Finder(by_module))


def _replace(wrappers: Mapping[str, Callable], module: ModuleType) -> None:
    for path, wrap in wrappers.items():
        *outer, name = path.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part)
        original = getattr(owner, name)
        setattr(owner, name, wraps(original)(wrap(original)))


class _Finder(MetaPathFinder):
    """Finds the modules with hooks where they are, and has the hooks put in when they are run."""

    def __init__(self, waiting: dict[str, dict[str, Callable]]) -> None:
        self._waiting = waiting

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        wrappers = self._waiting.pop(name, None)
        spec = PathFinder.find_spec(name, path, target) if wrappers is not None else None
        if spec is None or spec.loader is None:
            return None
        run, replace = spec.loader.exec_module, partial(_replace, wrappers)

        def exec_module(module: ModuleType) -> None:
            run(module)
            replace(module)

        spec.loader.exec_module = exec_module
        return spec
