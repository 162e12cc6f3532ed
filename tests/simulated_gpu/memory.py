"""The memory of the simulated GPU: its tensors are CPU tensors that are noted as being on the device.

``OnDevice`` intercepts calls from Python to torch, and turns ``device="cuda"`` into such a note. ``Operations``
intercepts calls from torch to its kernels: what touches a tensor on the device is submitted as an operation, and done
when the device starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from tests.simulated_gpu import SimulatedGpu

DEVICE = torch.device("cuda", 0)
_DEVICE_OF, _IS_CUDA = Tensor.device.__get__, Tensor.is_cuda.__get__
#: Operators that only allocate; that return views although their schema does not say so; that read on the host.
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_VIEWS = {"_unsafe_view", "lift_fresh"}
_READS = {"tolist", "numpy", "__array__"}


class Memory:
    """Which storages are on the device; weak references keep identities from being reused."""

    def __init__(self) -> None:
        self._on_device: dict[int, tuple[StorageWeakRef, int]] = {}
        self._allocations = 0
        #: Whether a factory is to put its result on the device; None: where its arguments are.
        self.placing: bool | None = None

    def holds(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._on_device

    def place(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._on_device:
            self._on_device[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
            self._allocations += 1
        return tensor

    def stats(self) -> dict[str, int]:
        self._on_device = {key: entry for key, entry in self._on_device.items() if not entry[0].expired()}
        current = sum(size for _, size in self._on_device.values())
        return {"allocation.all.allocated": self._allocations, "allocated_bytes.all.current": current}

    @contextmanager
    def placed(self, on_device: bool | None) -> Iterator[None]:
        before, self.placing = self.placing, on_device
        try:
            yield
        finally:
            self.placing = before


class OnDevice(TorchFunctionMode):
    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self._gpu, self._memory = gpu, gpu.memory

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, memory = dict(kwargs or {}), self._memory
        name, first = getattr(func, "__name__", ""), args[0] if args and isinstance(args[0], Tensor) else None
        if first is not None:
            if name == "__get__" and func in (_DEVICE_OF, _IS_CUDA) and memory.holds(first):
                return DEVICE if func == _DEVICE_OF else True
            if name in ("to", "cpu", "cuda"):
                return self._moved(func, name, first, *args[1:], **kwargs)
            if name in _READS and memory.holds(first):
                self._gpu.wait(self._gpu.stream.free_ns, "cudaStreamSynchronize", implicit=True)
        device = kwargs.get("device")
        if device is None:
            return func(*args, **kwargs)
        on_device = torch.device(device).type == "cuda"
        with memory.placed(on_device):
            made = func(*args, **kwargs | {"device": "cpu"})
        return self._copied(made, True) if on_device and not memory.holds(made) else made

    def _moved(self, func: Callable, name: str, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Tensor.to, .cpu and .cuda."""
        devices = [one for one in (*args, kwargs.pop("device", None)) if isinstance(one, str | torch.device)]
        if name == "to" and not devices:
            return func(tensor, *args, **kwargs)
        on_device = name == "cuda" or (name == "to" and torch.device(devices[0]).type == "cuda")
        for dtype in (*args, kwargs.get("dtype")):
            tensor = tensor.to(dtype) if isinstance(dtype, torch.dtype) else tensor
        if on_device == self._memory.holds(tensor):
            return tensor.clone() if kwargs.get("copy") else tensor
        return self._copied(tensor, on_device)

    def _copied(self, tensor: Tensor, on_device: bool) -> Tensor:
        with self._memory.placed(on_device):
            made = torch.empty_like(tensor)
        return made.copy_(tensor)


class Operations(TorchDispatchMode):
    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self._gpu, self._memory = gpu, gpu.memory
        self._known_shapes: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, memory = kwargs or {}, self._memory
        tensors = _tensors((args, kwargs))
        on_device = [one for one in tensors if memory.holds(one)]
        wanted = memory.placing if memory.placing is not None else bool(on_device)
        if not (wanted or on_device):
            return func(*args, **kwargs)
        name, is_view, writes = _schema(func)
        if is_view:
            return func(*args, **kwargs)
        if name in _EMPTY:
            made = func(*args, **kwargs)
            return memory.place(made) if wanted else made
        if name == "copy_":
            return self._copy(*args, **kwargs)
        if len(on_device) < len(tensors):  # scalars on the host are passed by value
            args, kwargs = _mapped(lambda one: one if memory.holds(one) else one.clone(), (args, kwargs))
        written = [args[place] if place < len(args) else kwargs.get(key) for place, key in writes]
        if written:
            self._submit(name, lambda: func(*args, **kwargs), [*on_device, *written])
            return (written[0] if len(written) == 1 else tuple(written)) if func._schema.returns else None
        try:
            made = _mapped(memory.place, func(*args, **kwargs) if not tensors else self._shapes(func, args, kwargs))
        except (RuntimeError, NotImplementedError):  # the shape depends on contents: the host waits
            self._submit(name, lambda: None, on_device)
            self._gpu.wait(self._gpu.stream.free_ns, "cudaStreamSynchronize", implicit=True)
            return _mapped(memory.place, func(*args, **kwargs))

        def work() -> None:
            for target, value in zip(_tensors(made), _tensors(func(*args, **kwargs)), strict=True):
                target.copy_(value)

        self._submit(name, work, [*on_device, *_tensors(made)])
        return made

    def _submit(self, name: str, work: Callable[[], Any], touched: list[Tensor], kind: str = "kernel") -> None:
        from tests.simulated_gpu import KERNEL_NS, Operation

        ns, sizes = self._gpu.durations.get(name, KERNEL_NS), {one.data_ptr(): one.nbytes for one in touched}
        self._gpu.submit(Operation(name, ns, "memset" if name == "zero_" else kind, work, sizes))

    def _copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        memory, gpu = self._memory, self._gpu
        to, fro = memory.holds(target), memory.holds(source)
        if to and fro:
            plain = (
                target.dtype == source.dtype
                and target.shape == source.shape
                and target.is_contiguous()
                and source.is_contiguous()
            )
            name, kind = ("Memcpy DtoD (Device -> Device)", "memcpy") if plain else ("copy_", "kernel")
            self._submit(name, lambda: target.copy_(source), [target, source], kind)
            return target
        gpu.refuse_in_capture()
        source = source.clone() if to else source
        name = "Memcpy HtoD (Pageable -> Device)" if to else "Memcpy DtoH (Device -> Pageable)"
        self._submit(name, lambda: target.copy_(source), [target if to else source], "memcpy")
        gpu.wait(gpu.stream.free_ns, "cudaStreamSynchronize", implicit=True)  # as of memory that is not pinned
        return target

    def _shapes(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Tensors shaped as an operator returns them. Raises where the shape depends on contents."""
        key = (func, _signature((args, kwargs)))
        if key not in self._known_shapes:
            on_meta = lambda one: torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")  # noqa: E731
            meta_args, meta_kwargs = _mapped(on_meta, (args, kwargs))
            made = func(*meta_args, **meta_kwargs | ({"device": "meta"} if "device" in kwargs else {}))
            if not isinstance(made, Tensor | tuple | list):
                raise NotImplementedError(func)
            self._known_shapes[key] = made
        return _mapped(
            lambda one: torch.empty_strided(one.shape, one.stride(), dtype=one.dtype), self._known_shapes[key]
        )


@cache
def _schema(func: Any) -> tuple[str, bool, list[tuple[int, str]]]:
    """(name, whether it returns a view, position and name of each argument that it writes)."""
    name, schema = func.overloadpacket.__name__, func._schema
    is_view = name in _VIEWS or any(one.alias_info and not one.alias_info.is_write for one in schema.returns)
    return (
        name,
        is_view,
        [(i, one.name) for i, one in enumerate(schema.arguments) if one.alias_info and one.alias_info.is_write],
    )


def _tensors(nested: Any) -> list[Tensor]:
    if isinstance(nested, Tensor):
        return [nested]
    if isinstance(nested, dict):
        nested = nested.values()
    elif not isinstance(nested, tuple | list):
        return []
    return [tensor for one in nested for tensor in _tensors(one)]


def _signature(nested: Any) -> Any:
    """A key of everything that determines the shape of a result."""
    if isinstance(nested, Tensor):
        return nested.shape, nested.stride(), nested.dtype
    if isinstance(nested, dict):
        return tuple((key, _signature(one)) for key, one in nested.items())
    return tuple(map(_signature, nested)) if isinstance(nested, tuple | list) else (type(nested), nested)


def _mapped(change: Callable[[Tensor], Any], nested: Any) -> Any:
    if isinstance(nested, Tensor):
        return change(nested)
    if isinstance(nested, dict):
        return {key: _mapped(change, one) for key, one in nested.items()}
    return type(nested)(_mapped(change, one) for one in nested) if isinstance(nested, tuple | list) else nested
