"""no_tampering and process_state: a variant runs in the process that times and checks it, and could change both.

The functions that timing and checking rely on are recorded before any variant is imported, and compared after each
variant had control. Replaced functions are restored, and the variant is rejected.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

#: What timing and checking call outside this suite and Python code could replace: owner, names.
_CALLED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, ("perf_counter", "perf_counter_ns", "monotonic", "process_time", "thread_time", "time")),
    (torch, ("equal", "where", "empty", "full", "randint", "stack")),
    (torch.Tensor, ("copy_", "clone", "fill_", "item", "any", "nonzero", "__ne__", "__eq__", "__bool__", "data_ptr")),
    (
        torch.cuda,
        (
            "Event",
            "CUDAGraph",
            "Stream",
            "synchronize",
            "current_stream",
            "set_stream",
            "graph_pool_handle",
            "memory_stats",
        ),
    ),
    (torch.cuda.Event, ("record", "query", "synchronize", "elapsed_time", "wait")),
    (torch.cuda.Stream, ("synchronize", "wait_stream", "record_event")),
    (torch.cuda.CUDAGraph, ("capture_begin", "capture_end", "instantiate", "replay", "raw_cuda_graph")),
    (gc, ("collect", "enable", "disable")),
)


class Integrity:
    """Notes every function on creation. modules: of this suite, whose functions and methods are noted as well."""

    def __init__(self, modules: list[ModuleType]) -> None:
        self._noted = [
            (owner, name, getattr(owner, name)) for owner, names in _CALLED for name in names if hasattr(owner, name)
        ]
        for module in modules:
            self._noted += list(_callables(module))

    def tampered(self) -> str | None:
        """Put back all that was replaced; one sentence on the first of it, None where nothing was."""
        message = None
        for owner, name, original in self._noted:
            if not _same(getattr(owner, name, None), original):
                setattr(owner, name, original)
                replaced = f"{getattr(owner, '__name__', owner)}.{name}"
                message = message or f"{replaced} was replaced; a variant must not replace what times or checks it"
        return message


def _same(now: Any, original: Any) -> bool:
    """Identity, but for bound and class methods, of which every attribute access makes a new object."""
    if now is original or getattr(now, "__func__", now) is getattr(original, "__func__", original):
        return True
    return type(now) is type(original) and hasattr(original, "__self__") and now == original


def _callables(module: ModuleType) -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, callable): functions and classes of a module, imported ones too, and methods of its own classes."""
    for name, value in list(vars(module).items()):
        if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
            yield module, name, value
        if isinstance(value, type) and value.__module__ == module.__name__:
            methods = ((inner, one) for inner, one in list(vars(value).items()) if isinstance(one, FunctionType))
            yield from ((value, inner, method) for inner, method in methods)


class ProcessState:
    """Settings of the process, noted on creation. A variant must leave them alone: they change how others are timed."""

    def __init__(self, device: str) -> None:
        self._device, self._noted = device, self._settings(device)

    @staticmethod
    def _settings(device: str) -> dict[str, Any]:
        settings = {
            "torch.get_num_threads()": torch.get_num_threads(),
            "torch.get_default_dtype()": torch.get_default_dtype(),
            "torch.is_grad_enabled()": torch.is_grad_enabled(),
            "torch.get_default_device()": _default_device(),
            "gc.isenabled()": gc.isenabled(),
        }
        if device == "cuda":
            settings["the current stream"] = torch.cuda.current_stream().cuda_stream
            settings["the current device"] = torch.cuda.current_device()
        return settings

    def changed(self) -> str | None:
        """One sentence on the first setting that differs; None where all are as they were."""
        now = self._settings(self._device)
        for name, noted in self._noted.items():
            if now[name] != noted:
                return f"{name} was {noted} and is {now[name]}; a variant must leave the process as it was"
        return None

    def restore(self) -> None:
        torch.set_num_threads(self._noted["torch.get_num_threads()"])
        torch.set_default_dtype(self._noted["torch.get_default_dtype()"])
        torch.set_grad_enabled(self._noted["torch.is_grad_enabled()"])
        # None and not "cpu", which would intercept every call of torch from then on.
        device = self._noted["torch.get_default_device()"]
        torch.set_default_device(None if device == "cpu" else device)
        (gc.enable if self._noted["gc.isenabled()"] else gc.disable)()
        if self._device == "cuda":
            torch.cuda.set_device(self._noted["the current device"])
            torch.cuda.set_stream(torch.cuda.default_stream())


def _default_device() -> str:
    """Where torch creates a tensor without ``device=``. Reading it raises where that device does not exist."""
    try:
        return str(torch.get_default_device())
    except Exception:  # AssertionError without CUDA, RuntimeError for other devices
        return "a device that does not exist"
