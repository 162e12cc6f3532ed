"""Are the ruler's tools still its own? A variant is a guest in the ruler's process and could replace what measures it.

The functions that measuring and judging rest on are noted before any variant is imported, and compared after each one
got control. What was replaced is put back, and named.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

#: What timing and verification call outside of this suite, as far as Python can replace it.
_TOOLS: tuple[tuple[Any, tuple[str, ...]], ...] = (
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
    """A note of every tool, taken on creation."""

    def __init__(self, modules: list[ModuleType]) -> None:
        """modules: of this suite, whose functions and methods are noted as well."""
        self._noted = [
            (owner, name, getattr(owner, name)) for owner, names in _TOOLS for name in names if hasattr(owner, name)
        ]
        for module in modules:
            self._noted += list(_callables(module))

    def tampered(self) -> str | None:
        """One sentence on the first tool that is not what it was; all are put back. None where nothing was touched."""
        found = None
        for owner, name, was in self._noted:
            if getattr(owner, name, None) is not was and not _same(getattr(owner, name, None), was):
                setattr(owner, name, was)
                found = (
                    found
                    or f"{getattr(owner, '__name__', owner)}.{name} was replaced; a variant must leave alone what measures it"
                )
        return found


def _same(now: Any, was: Any) -> bool:
    """Attribute access makes a new object of a bound or class method each time."""
    return getattr(now, "__func__", now) is getattr(was, "__func__", was) or (
        type(now) is type(was) and hasattr(was, "__self__") and now == was
    )


def _callables(module: ModuleType) -> Iterator[tuple[Any, str, Any]]:
    """Functions and classes as the module knows them, imported ones too, and the functions in its own classes."""
    for name, value in list(vars(module).items()):
        if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
            yield module, name, value
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from (
                (value, inner, one) for inner, one in list(vars(value).items()) if isinstance(one, FunctionType)
            )


class ProcessState:
    """Settings of the process that a variant must leave as they were: they would change how everything after it is
    timed.
    """

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
        differing = (f"{name} was {was} and is {now[name]}" for name, was in self._noted.items() if now[name] != was)
        return next((f"{one}; a variant leaves the process as it was" for one in differing), None)

    def restore(self) -> None:
        torch.set_num_threads(self._noted["torch.get_num_threads()"])
        torch.set_default_dtype(self._noted["torch.get_default_dtype()"])
        torch.set_grad_enabled(self._noted["torch.is_grad_enabled()"])
        # None and not "cpu", which would go on looking at every call of torch.
        device = self._noted["torch.get_default_device()"]
        torch.set_default_device(None if device == "cpu" else device)
        (gc.enable if self._noted["gc.isenabled()"] else gc.disable)()
        if self._device == "cuda":
            torch.cuda.set_device(self._noted["the current device"])
            torch.cuda.set_stream(torch.cuda.default_stream())


def _default_device() -> str:
    """Where torch puts a tensor that nobody told where to go; asking for that fails where there is no such device."""
    try:
        return str(torch.get_default_device())
    except Exception:  # CUDA's absence is told by AssertionError, other devices' by RuntimeError
        return "a device that is not there"
