"""Buffers under guard: every tensor a kernel sees lies between canaries, so a stray write shows and a stray read
poisons.

    | canary ... | tensor, rows apart by its own stride, canaries between them | canary ... |

Canaries and poison are byte patterns, so they work for every dtype. As int32 both are huge (2.1e9): a length or a block
id read from where nothing was written cannot pass for a legal one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

#: Bytes on either side of a tensor. Wide enough to catch a whole table row written one row too far.
GUARD_BYTES = 16384
CANARY = 0x7E
#: Alternating poisons, so that no element can equal both by accident.
POISONS = (0x7F, 0x71)

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_integers(tensor: Tensor) -> Tensor:
    """The same memory, element by element, as integers: equality of bits for every dtype. Writes leave no version
    behind.
    """
    return tensor.data.view(_INTEGERS[tensor.element_size()])


def any_of(flags: Iterable[Tensor]) -> bool:
    """Whether one of many bool scalars is set, with one wait for each device instead of one for each flag."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for flag in flags:
        by_device.setdefault(flag.device, []).append(flag)
    return any(bool(torch.stack(there).any()) for there in by_device.values())


class Guarded:
    """One tensor in its own storage between canaries. ``tensor`` is what a kernel gets; strides are those of
    ``source``.

    shift:  elements by which it starts past an aligned address; a view of a larger buffer may start anywhere.
    pinned: a host array that the device reads without waiting for the host, as engines hold them.
    """

    def __init__(self, source: Tensor, device: str, shift: int = 0, pinned: bool = False) -> None:
        span = sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True)) + 1
        span = span if source.numel() else 0
        offset = GUARD_BYTES // source.element_size() + shift
        self._start = offset * source.element_size()
        size = (offset + span) * source.element_size() + GUARD_BYTES
        storage = torch.full((size,), CANARY, dtype=torch.uint8, device=device, pin_memory=pinned)
        self._bytes = storage
        self.tensor = (
            storage[: storage.numel() // source.element_size() * source.element_size()]
            .view(source.dtype)
            .as_strided(source.shape, source.stride(), offset)
        )
        self._span = span * source.element_size()
        self._gaps = None if self.tensor.is_contiguous() else self._between_rows()
        self.fill(source)

    def _between_rows(self) -> Tensor:
        """Which bytes of a strided tensor's span belong to none of its elements."""
        size = self.tensor.element_size()
        gaps = torch.ones(self._span, dtype=torch.bool, device=self._bytes.device)
        shape, stride = (*self.tensor.shape, size), (*(s * size for s in self.tensor.stride()), 1)
        gaps.as_strided(shape, stride).fill_(False)
        return gaps

    def fill(self, source: Tensor) -> None:
        """New contents in place: same address, shape and strides. Through ``data``, which raises no version counter: a
        launch that looks whether its inputs were written to sees nothing."""
        self.tensor.data.copy_(source)

    def poison(self, pattern: int) -> None:
        whole = as_integers(self.tensor)
        whole.fill_(int.from_bytes(bytes([pattern] * whole.element_size()), "little"))

    def _zones(self) -> list[tuple[int, Tensor]]:
        """(byte offset of its beginning, which of its bytes are no canary any more), in the order of the memory."""
        before, rest = self._bytes[: self._start], self._bytes[self._start :]
        zones = [(-self._start, before != CANARY), (self._span, rest[self._span :] != CANARY)]
        if self._gaps is not None:
            zones.insert(1, (0, (rest[: self._span] != CANARY) & self._gaps))
        return zones

    def broken(self) -> list[Tensor]:
        """Bool scalars: whether a canary of a zone changed."""
        return [broken.any() for _, broken in self._zones()]

    def stray_write(self) -> int | None:
        """Byte offset, relative to the tensor's first byte, of the first canary that changed; None where all stand."""
        return next((start + int(broken.nonzero()[0]) for start, broken in self._zones() if bool(broken.any())), None)


class Guard:
    """A dataclass of tensors (inputs or outputs) placed under guard on a device. ``view`` has the same type."""

    def __init__(self, source: Any, device: str, shift: int = 0) -> None:
        self.buffers: dict[str, Guarded] = {}
        replaced = {}
        for field in dataclasses.fields(source):
            value = getattr(source, field.name)
            if isinstance(value, Tensor):
                host = bool(field.metadata.get("host"))
                self.buffers[field.name] = Guarded(
                    value, "cpu" if host else device, shift, pinned=host and device == "cuda"
                )
                replaced[field.name] = self.buffers[field.name].tensor
        self.view = dataclasses.replace(source, **replaced)

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
        if not any_of(flag for buffer in self.buffers.values() for flag in buffer.broken()):
            return {}
        found = {name: buffer.stray_write() for name, buffer in self.buffers.items()}
        return {name: offset for name, offset in found.items() if offset is not None}
