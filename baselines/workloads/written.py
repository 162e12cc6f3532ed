"""For references that go element by element: an element of an array costs a tenth of one of a tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from spec_decode_bench.harness.contract import Expected

T = TypeVar("T")


def as_arrays(tensors: T) -> T:
    """A dataclass of CPU tensors with NumPy's arrays over the same memory in their place."""
    fields = {field.name: getattr(tensors, field.name) for field in dataclasses.fields(tensors)}
    return dataclasses.replace(
        tensors, **{name: value.numpy() for name, value in fields.items() if isinstance(value, torch.Tensor)}
    )


class Written:
    """What a launch writes into its output buffers, put element by element; the rest stays untouched.

    value: name -> array of the buffer's shape, 0 where nothing was put.
    """

    def __init__(self, buffers: Mapping[str, torch.Tensor | None]) -> None:
        present = {name: buffer for name, buffer in buffers.items() if buffer is not None}
        self._value = {name: torch.zeros(buffer.shape, dtype=buffer.dtype) for name, buffer in present.items()}
        self._untouched = {name: torch.ones(buffer.shape, dtype=torch.bool) for name, buffer in present.items()}
        self.value = {name: tensor.numpy() for name, tensor in self._value.items()}
        self._kept = {name: tensor.numpy() for name, tensor in self._untouched.items()}

    def put(self, name: str, place: Any, content: Any) -> None:
        """place: an index or a slice, or a tuple of them."""
        self.value[name][place], self._kept[name][place] = content, False

    def expected(self, may_keep: Mapping[str, torch.Tensor] | None = None) -> dict[str, Expected]:
        may_keep = may_keep or {}
        return {name: Expected(value, self._untouched[name], may_keep.get(name)) for name, value in self._value.items()}
