"""process_state: variants share a process, so each must leave the process as it found it.

What it changes (a method of torch, a number of threads, the current stream) would change the times of other variants
and the checks of their results. So settings, functions, and the code of the functions that time and check, are compared
after each variant had control. What changed is put back, and the variant is rejected.
"""

from __future__ import annotations

import gc
import inspect
import operator
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from types import FunctionType
from typing import Any

import torch

from spec_decode_bench.harness.checks import Mismatch

#: Whose functions variants, timing and checking call.
_OWNERS: tuple[Any, ...] = (
    torch,
    torch.Tensor,
    torch.cuda,
    torch.cuda.Event,
    torch.cuda.Stream,
    torch.cuda.CUDAGraph,
    time,
    gc,
)
#: Files of the harness that time and check variants.
_MODULES = (
    *(f"verify.{name}" for name in ("buffers", "equality", "fixture", "output_probe", "process_state")),
    *("timing.cpu_stopwatch", "timing.rounds"),
)
#: What of a function can be replaced in place.
_PARTS = ("__code__", "__defaults__", "__kwdefaults__")
#: What torch.compile itself replaces when it is first used.
_REPLACED_BY_TORCH = {"manual_seed"}


@cache
def _functions() -> dict[Any, dict[str, Any]]:
    """Owner -> its functions, as they were when this was first called."""
    return {owner: _functions_of(owner) for owner in (*_OWNERS, *_own_owners())}


def _own_owners() -> list[Any]:
    """Modules of the harness, and their classes."""
    names = [f"spec_decode_bench.harness.{name}" for name in _MODULES]
    modules = [sys.modules[name] for name in names if name in sys.modules]
    values = [(module, value) for module in modules for value in vars(module).values()]
    classes = [value for module, value in values if isinstance(value, type) and value.__module__ == module.__name__]
    return [*modules, *classes]


@cache
def _code() -> tuple[list[FunctionType], list[tuple[Any, ...]]]:
    """Functions of the harness, and their parts as they were when this was first called."""
    values = [getattr(value, "fget", value) for owner in _own_owners() for value in vars(owner).values()]
    values = [value.func if isinstance(value, cached_property) else value for value in values]
    functions = [value for value in map(inspect.unwrap, values) if isinstance(value, FunctionType)]
    return functions, list(map(_parts, functions))


_parts = operator.attrgetter(*_PARTS)


def _rewritten() -> list[tuple[FunctionType, tuple[Any, ...]]]:
    """Functions that have other parts than they had, and those. Equal code of another function is the same code."""
    functions, parts = _code()
    if list(map(_parts, functions)) == parts:
        return []
    return [(function, before) for function, before in zip(functions, parts, strict=True) if _parts(function) != before]


def _functions_of(owner: Any) -> dict[str, Any]:
    return {
        name: value for name, value in vars(owner).items() if _is_function(value) and name not in _REPLACED_BY_TORCH
    }


def _is_function(value: Any) -> bool:
    return (callable(value) or isinstance(value, property | cached_property)) and not isinstance(value, type)


def _replaced() -> list[tuple[Any, str]]:
    """(owner, name) of functions that are not what they were."""
    replaced = []
    for owner, functions in _functions().items():
        now = vars(owner)
        # In C, as this runs around every sample: a loop over a thousand functions takes milliseconds.
        if not all(map(operator.is_, map(now.get, functions), functions.values())):
            replaced += [(owner, name) for name, value in functions.items() if now.get(name) is not value]
        if isinstance(owner, type):  # a new method hides an inherited one, while a module may load more of itself
            replaced += [(owner, name) for name in now.keys() - functions.keys() if _is_function(now[name])]
    return replaced


class ProcessState:
    """Settings of the process, noted on creation, and functions, noted when the first of these is created."""

    def __init__(self, device: str) -> None:
        _functions(), _code()
        self._device, self._noted = device, self._settings(device)

    @staticmethod
    def _settings(device: str) -> dict[str, Any]:
        settings = {
            "torch.get_num_threads()": torch.get_num_threads(),
            "torch.get_default_dtype()": torch.get_default_dtype(),
            "torch.is_grad_enabled()": torch.is_grad_enabled(),
            "torch.get_default_device()": _default_device(),
            "gc.isenabled()": gc.isenabled(),
            "sys.getprofile()": sys.getprofile(),
            "sys.gettrace()": sys.gettrace(),
            "the number of torch function modes": torch._C._len_torch_function_stack(),
        }
        if device == "cuda":
            settings["the current stream"] = torch.cuda.current_stream().cuda_stream
            settings["the current device"] = torch.cuda.current_device()
        return settings

    def check(self) -> None:
        """Raises Mismatch where a function or setting differs."""
        if (changed := self.changed()) is not None:
            raise Mismatch("process_state", changed)

    def changed(self) -> str | None:
        """One sentence on the first function or setting that differs; None where all are as they were."""
        for owner, name in _replaced():
            return f"{owner.__name__}.{name} was replaced; a variant must leave the process as it was"
        for function, _ in _rewritten():
            name = f"{function.__module__}.{function.__qualname__}"
            return f"the code of {name} was replaced; a variant must leave the process as it was"
        now = self._settings(self._device)
        for name, noted in self._noted.items():
            if now[name] != noted:
                return f"{name} was {noted} and is {now[name]}; a variant must leave the process as it was"
        return None

    def restore(self) -> None:
        for owner, name in _replaced():
            original = _functions()[owner].get(name)
            delattr(owner, name) if original is None else setattr(owner, name, original)
        for function, parts in _rewritten():
            for name, part in zip(_PARTS, parts, strict=True):
                setattr(function, name, part)
        torch.set_num_threads(self._noted["torch.get_num_threads()"])
        torch.set_default_dtype(self._noted["torch.get_default_dtype()"])
        torch.set_grad_enabled(self._noted["torch.is_grad_enabled()"])
        # None and not "cpu", which would intercept every call of torch from then on.
        device = self._noted["torch.get_default_device()"]
        torch.set_default_device(None if device == "cpu" else device)
        sys.setprofile(self._noted["sys.getprofile()"])
        sys.settrace(self._noted["sys.gettrace()"])
        while torch._C._len_torch_function_stack() > self._noted["the number of torch function modes"]:
            torch._C._pop_torch_function_stack()
        (gc.enable if self._noted["gc.isenabled()"] else gc.disable)()
        if self._device == "cuda":
            torch.cuda.set_device(self._noted["the current device"])
            torch.cuda.set_stream(torch.cuda.default_stream())


@contextmanager
def unchanged_process(device: str) -> Iterator[ProcessState]:
    """Around everything that a variant does. Puts back what it changed; raises Mismatch if it changed anything."""
    state = ProcessState(device)
    try:
        yield state
        state.check()
    finally:
        state.restore()


def _default_device() -> str:
    """Where torch creates a tensor without ``device=``. Reading it raises where that device does not exist."""
    try:
        return str(torch.get_default_device())
    except Exception:  # AssertionError without CUDA, RuntimeError for other devices
        return "a device that does not exist"
