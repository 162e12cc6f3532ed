"""Tensors between canaries: a write outside a tensor changes a canary, a read outside of it returns a huge value.

    | canary ... | tensor, at its own row stride, with canaries between the rows | canary ... |

Canaries and poison are byte patterns, so they work for every dtype. As int32 both are about 2e9, which is not a
legal length, block id or slot.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

#: Bytes on either side of a tensor: room for a whole row of a table that is written one row too far.
GUARD_BYTES = 16384
CANARY = 0x7E
#: Two alternating patterns: no correct value equals both.
POISONS = (0x7F, 0x71)

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
        # torch.compile treats the offset of a view in its storage like a size.
        return torch.from_dlpack(memory)


class Guarded:
    """One tensor in its own storage between canaries. ``tensor`` has shape, strides and content of ``source``.

    shift:  elements between an aligned address and its start, as for a view of a larger buffer.
    pinned: in page-locked host memory, as engines hold the host tensors that they copy to the device.
    row_stride: instead of that of ``source``, and no canaries, for rows that lie gigabytes apart.
    arena:  whose memory to use, instead of torch's allocator.
    """

    def __init__(
        self,
        source: Tensor,
        device: str,
        shift: int = 0,
        pinned: bool = False,
        row_stride: int | None = None,
        arena: Arena | None = None,
    ) -> None:
        self._unguarded = row_stride is not None
        if row_stride is not None:
            span = (len(source) - 1) * row_stride + row_length(source)
            self.tensor = torch.empty(span, dtype=source.dtype, device=device).as_strided(
                source.shape, (row_stride, *source.stride()[1:])
            )
            self.fill(source)
            return
        span = sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True)) + 1
        span = span if source.numel() else 0
        offset = GUARD_BYTES // source.element_size() + shift
        self._start = offset * source.element_size()
        size = (offset + span) * source.element_size() + GUARD_BYTES
        if arena:
            storage = arena.take(size).fill_(CANARY)
        else:
            storage = torch.full((size,), CANARY, dtype=torch.uint8, device=device, pin_memory=pinned)
        self._bytes = storage
        self.tensor = (
            storage[: storage.numel() // source.element_size() * source.element_size()]
            .view(source.dtype)
            .as_strided(source.shape, source.stride(), offset)
        )
        self._span = span * source.element_size()
        self._rows = None if self.tensor.is_contiguous() else self._mask_of_rows()
        self.fill(source)

    def _mask_of_rows(self) -> Tensor:
        """Bool mask over the bytes of the tensor's span: its own, not those between its rows."""
        size = self.tensor.element_size()
        mask = torch.zeros(self._span, dtype=torch.bool, device=self._bytes.device)
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
        zones = [(-self._start, before), (self._span, rest[self._span :])]
        if self._rows is not None:
            zones.insert(1, (0, rest[: self._span].masked_fill(self._rows, CANARY)))
        return zones

    def stray_write(self) -> int | None:
        """Byte offset from the tensor's start of the first canary that changed; None where all are intact."""
        for start, zone in self.zones():
            if len(changed := (zone != CANARY).nonzero()):
                return start + int(changed[0])
        return None


class Guard:
    """A dataclass of tensors (inputs or outputs) on a device, each between canaries. ``view`` is of the same type.

    row_strides: of tensors whose rows are not to lie as in ``source``.
    arena: for the tensors on the device.
    """

    def __init__(
        self,
        source: Any,
        device: str,
        shift: int = 0,
        row_strides: Mapping[str, int] = MappingProxyType({}),
        arena: Arena | None = None,
    ) -> None:
        self.buffers: dict[str, Guarded] = {}
        replaced = {}
        for field in dataclasses.fields(source):
            value = getattr(source, field.name)
            if isinstance(value, Tensor):
                host = bool(field.metadata.get("host"))
                where = "cpu" if host else device
                self.buffers[field.name] = Guarded(
                    value,
                    where,
                    shift,
                    pinned=host and device == "cuda",
                    row_stride=row_strides.get(field.name),
                    arena=None if host else arena,
                )
                replaced[field.name] = self.buffers[field.name].tensor
        self.view = dataclasses.replace(source, **replaced)

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
        # All zones of a device in one comparison, as most checks find nothing.
        if not any_of((torch.cat(zones) != CANARY).any() for zones in by_device.values() if zones):
            return {}
        offsets = {name: buffer.stray_write() for name, buffer in self.buffers.items()}
        return {name: offset for name, offset in offsets.items() if offset is not None}

    @property
    def nbytes(self) -> int:
        return sum(buffer.tensor.nbytes for buffer in self.buffers.values())
