"""Tensors between canaries: a write outside a tensor changes a canary, a read outside of it returns a huge value.

    | canary ... | tensor, at its own row stride, with canaries between the rows | canary ... |

The tensors of a dataclass lie side by side: what is written far behind one changes another one, or its canaries.

Canaries and poison are byte patterns, so they work for every dtype. As int32 both are about 2e9, which is not a
legal length, block id or slot.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

#: Bytes on either side of a tensor: room for a whole row of a table that is written one row too far. Before the first
#: tensor of a block and behind the last one there are MARGIN_BYTES more.
GUARD_BYTES, MARGIN_BYTES = 16384, 65536
CANARY = 0x7E
#: Two alternating patterns: no correct value equals both.
POISONS = (0x7F, 0x71)
#: Offsets at which buffers start, in elements past an aligned address: all positions of an int32 within 16 bytes.
SHIFTS = 4

#: Of torch's allocator on a GPU; of the GPU's pages; between two buffers at most; and what an arena takes at a time.
ALIGNMENT, PAGE_BYTES, MAX_GAP_BYTES, CHUNK_BYTES = 512, 2**21, 2**16, 2**23

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_integers(tensor: Tensor) -> Tensor:
    """The same memory as integers of the same size, so that ``==`` compares bits for every dtype.

    Through ``.data``: writes do not raise the version counter, which a variant could look at.
    """
    return tensor.data.view(_INTEGERS[tensor.element_size()])


def any_of(flags: Iterable[Tensor]) -> bool:
    """Whether one of many bool scalars is set. Waits once per device, not once per flag."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for flag in flags:
        by_device.setdefault(flag.device, []).append(flag)
    return any(bool(torch.stack(there).any()) for there in by_device.values())


def row_length(tensor: Tensor) -> int:
    """Elements from the start of a row to the end of its last element."""
    inner = zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
    return sum((size - 1) * stride for size, stride in inner) + 1


def span_of(tensor: Tensor) -> int:
    """Elements from the first to the last one."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return span if tensor.numel() else 0


class Arena:
    """Device memory for the buffers of a fixture, at offsets in their pages that depend on ``seed`` and their sizes
    alone. The time of a small kernel depends on these offsets (docs/methodology.md#placements); those of torch's
    allocator depend on all that the process allocated before.
    """

    def __init__(self, device: str, seed: int) -> None:
        self._device, self._random = device, random.Random(seed)
        self._free = torch.empty(0, dtype=torch.uint8, device=device)

    def take(self, nbytes: int) -> Tensor:
        """Bytes in a storage of their own, at an address that is aligned as torch's allocator aligns."""
        gap = ALIGNMENT * self._random.randrange(MAX_GAP_BYTES // ALIGNMENT)
        if gap + nbytes > len(self._free):
            gap = ALIGNMENT * self._random.randrange(PAGE_BYTES // ALIGNMENT)
            size = max(CHUNK_BYTES, gap + nbytes)
            self._free = torch.empty(size + PAGE_BYTES, dtype=torch.uint8, device=self._device)
            self._free = self._free[-self._free.data_ptr() % PAGE_BYTES :]
        memory, self._free = self._free[gap : gap + nbytes], self._free[gap + -(-nbytes // ALIGNMENT) * ALIGNMENT :]
        return _in_its_own_storage(memory)


def _in_its_own_storage(memory: Tensor) -> Tensor:
    """torch.compile treats the offset of a view in its storage like a size."""
    return torch.from_dlpack(memory)


class _Block:
    """Device memory for buffers that lie side by side, in the order in which they are taken."""

    def __init__(self, nbytes: int, device: str) -> None:
        self._free = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def take(self, nbytes: int) -> Tensor:
        memory, self._free = self._free[:nbytes], self._free[-(-nbytes // ALIGNMENT) * ALIGNMENT :]
        return _in_its_own_storage(memory)


class Guarded:
    """One tensor in its own storage between canaries. ``tensor`` has shape, strides and content of ``source``.

    shift:  elements between an aligned address and its start, as for a view of a larger buffer.
    row_stride: instead of that of ``source``, and no canaries, for rows that lie gigabytes apart.
    take:   (bytes) -> memory of that many, instead of torch's allocator.
    """

    def __init__(
        self,
        source: Tensor,
        device: str,
        shift: int = 0,
        row_stride: int | None = None,
        take: Callable[[int], Tensor] | None = None,
    ) -> None:
        self._unguarded = row_stride is not None
        if row_stride is not None:
            span = (len(source) - 1) * row_stride + row_length(source)
            self.tensor = torch.empty(span, dtype=source.dtype, device=device).as_strided(
                source.shape, (row_stride, *source.stride()[1:])
            )
            self.fill(source)
            return
        span = span_of(source)
        offset = GUARD_BYTES // source.element_size() + shift
        self._start = offset * source.element_size()
        take = take or partial(torch.empty, dtype=torch.uint8, device=device)
        storage = take((offset + span) * source.element_size() + GUARD_BYTES).fill_(CANARY)
        self._bytes = storage
        self.tensor = (
            storage[: storage.numel() // source.element_size() * source.element_size()]
            .view(source.dtype)
            .as_strided(source.shape, source.stride(), offset)
        )
        self.span_bytes = span * source.element_size()
        self._rows = None if self.tensor.is_contiguous() else self._mask_of_rows()
        self.fill(source)

    def _mask_of_rows(self) -> Tensor:
        """Bool mask over the bytes of the tensor's span: its own, not those between its rows."""
        size = self.tensor.element_size()
        mask = torch.zeros(self.span_bytes, dtype=torch.bool, device=self._bytes.device)
        shape, stride = (*self.tensor.shape, size), (*(s * size for s in self.tensor.stride()), 1)
        mask.as_strided(shape, stride).fill_(True)
        return mask

    def fill(self, source: Tensor) -> None:
        """Replace the content in place. Through ``.data``, so that a launch cannot tell by the version counter."""
        self.tensor.data.copy_(source)

    def poison(self, pattern: int) -> None:
        as_integers(self.tensor).fill_(int.from_bytes(bytes([pattern] * self.tensor.element_size()), "little"))

    def zones(self) -> list[tuple[int, Tensor]]:
        """(byte offset from the tensor's start, bytes) of each zone of canaries, in memory order. In the zone between
        rows, the rows themselves read as canaries.
        """
        if self._unguarded:
            return []
        before, rest = self._bytes[: self._start], self._bytes[self._start :]
        zones = [(-self._start, before), (self.span_bytes, rest[self.span_bytes :])]
        if self._rows is not None:
            zones.insert(1, (0, rest[: self.span_bytes].masked_fill(self._rows, CANARY)))
        return zones

    def stray_write(self) -> int | None:
        """Byte offset from the tensor's start of the first canary that changed; None where all are intact."""
        for start, zone in self.zones():
            if len(changed := (zone != CANARY).nonzero()):
                return start + int(changed[0])
        return None


def tensors_of(record: Any) -> dict[str, Tensor]:
    """By field."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def drawn_shifts(draw: random.Random, *records: Any) -> list[dict[str, int]]:
    """Of each dataclass, shifts of its tensors: mostly that of one tensor alone, else none, or those of all."""
    names = [(number, name) for number, record in enumerate(records) for name in tensors_of(record)]
    alone, kind = draw.choice(names), draw.randrange(8)
    shifts: list[dict[str, int]] = [{} for _ in records]
    for number, name in names if kind == 1 else [alone] if kind > 1 else []:
        shifts[number][name] = draw.randrange(1, SHIFTS)
    return shifts


def _most_bytes(tensor: Tensor) -> int:
    """That it may take of a block."""
    return (span_of(tensor) + SHIFTS) * tensor.element_size() + 2 * GUARD_BYTES + ALIGNMENT


class Guard:
    """A dataclass of tensors (inputs or outputs) on a device, each between canaries. ``view`` is of the same type.
    Tensors on the host are page-locked where there is a GPU, as engines hold those that they copy to the device.

    shift: elements between an aligned address and the start of every tensor, or of some by name.
    row_strides: of tensors whose rows are not to lie as in ``source``.
    arena: for the tensors on the device, which then do not lie side by side.
    """

    def __init__(
        self,
        source: Any,
        device: str,
        shift: int | Mapping[str, int] = 0,
        row_strides: Mapping[str, int] = MappingProxyType({}),
        arena: Arena | None = None,
    ) -> None:
        self.buffers: dict[str, Guarded] = {}
        shifts = dict.fromkeys(tensors_of(source), shift) if isinstance(shift, int) else shift
        on_host = {field.name for field in dataclasses.fields(source) if field.metadata.get("host")}
        side_by_side = [name for name in tensors_of(source) if name not in on_host and name not in row_strides]
        most = sum(_most_bytes(tensors_of(source)[name]) for name in side_by_side)
        take = arena.take if arena else _Block(2 * MARGIN_BYTES + most, device).take
        #: Canaries before the first and behind the last of those that lie side by side. They are no part of these: all
        #: start as far into their storage, as torch.compile treats the offset like a size.
        self._margins = [] if arena or not side_by_side else [take(MARGIN_BYTES).fill_(CANARY)]
        for name, tensor in tensors_of(source).items():
            host = name in on_host
            self.buffers[name] = Guarded(
                tensor,
                "cpu" if host else device,
                shifts.get(name, 0),
                row_strides.get(name),
                partial(torch.empty, dtype=torch.uint8, pin_memory=device == "cuda") if host else take,
            )
        if self._margins:
            self._margins.append(take(MARGIN_BYTES).fill_(CANARY))
        self._ends = side_by_side[:1] + side_by_side[-1:]
        self.view = dataclasses.replace(source, **{name: buffer.tensor for name, buffer in self.buffers.items()})

    def share(self, buffers: Mapping[str, Guarded]) -> None:
        """Put tensors of another guard in the places of these."""
        self.buffers |= buffers
        self.view = dataclasses.replace(self.view, **{name: buffer.tensor for name, buffer in buffers.items()})

    def fill_some(self, contents: Mapping[str, Tensor]) -> None:
        for name, content in contents.items():
            self.buffers[name].fill(content)

    def poison(self, pattern: int) -> None:
        for buffer in self.buffers.values():
            buffer.poison(pattern)

    def snapshot(self) -> dict[str, Tensor]:
        return {name: buffer.tensor.clone() for name, buffer in self.buffers.items()}

    def stray_writes(self) -> dict[str, int]:
        """Buffer name -> byte offset of the first canary that changed."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for buffer in self.buffers.values():
            by_device.setdefault(buffer.tensor.device, []).extend(zone for _, zone in buffer.zones())
        for margin in self._margins:
            by_device.setdefault(margin.device, []).append(margin)
        # All zones of a device in one comparison, as most checks find nothing.
        if not any_of((torch.cat(zones) != CANARY).any() for zones in by_device.values() if zones):
            return {}
        offsets = {name: buffer.stray_write() for name, buffer in self.buffers.items()}
        for name, margin, start in zip(self._ends, self._margins, (-MARGIN_BYTES - GUARD_BYTES, None), strict=False):
            if len(changed := (margin != CANARY).nonzero()):
                begin = self.buffers[name].span_bytes + GUARD_BYTES if start is None else start
                offsets[name] = begin + int(changed[0])
        return {name: offset for name, offset in offsets.items() if offset is not None}

    @property
    def nbytes(self) -> int:
        return sum(buffer.tensor.nbytes for buffer in self.buffers.values())
