"""Whether a buffer holds what it must, bit for bit, and where it does not: how many elements, and the first few with
expected and actual values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import starmap
from operator import lt, mul
from typing import Any

import torch
from torch import Tensor

from spec_decode_bench.harness.checks import Difference, Mismatch
from spec_decode_bench.harness.contract import Expected
from spec_decode_bench.harness.verify.buffers import POISONS

#: Wrong elements that a message names, and the largest input that it shows.
SHOWN, SMALL = 5, 16


@dataclass(frozen=True)
class View:
    """What a consumer reads of a buffer. letters: of its dimensions, or names of the fields along one; may be none."""

    name: str
    tensor: Tensor
    letters: Sequence[str | Sequence[str]] = ()

    def index(self, buffer: Tensor, index: Sequence[int]) -> tuple[int, ...] | None:
        """The index of a buffer's element in this view; None where it lies outside."""
        address = buffer.data_ptr() + sum(map(mul, index, buffer.stride())) * buffer.element_size()
        rest, odd = divmod(address - self.tensor.data_ptr(), self.tensor.element_size())
        if odd or rest < 0:
            return None
        place = [0] * self.tensor.dim()
        for i in sorted(range(self.tensor.dim()), key=self.tensor.stride, reverse=True):
            if self.tensor.shape[i] > 1:
                place[i], rest = divmod(rest, self.tensor.stride(i))
        inside = rest == 0 and all(map(lt, place, self.tensor.shape))
        return tuple(place) if inside else None

    def place(self, name: str, buffer: Tensor, index: Sequence[int]) -> str:
        """``[b=2, j=0]``, ``[p=2, begin block]``, ``[2, 0]``, or with the buffer's ``name`` where the element lies
        outside of the view.
        """
        inside = self.index(buffer, index)
        if inside is None:
            return f"{name}{_plain(index)}"
        if len(self.letters) == len(inside):
            return f"[{', '.join(starmap(_named, zip(self.letters, inside, strict=True)))}]"
        return _plain(inside)


def _named(letter: str | Sequence[str], index: int) -> str:
    if isinstance(letter, str):
        return f"{letter}={index}"
    return letter[index] if index < len(letter) else str(index)


def small(inputs: Any) -> tuple[str, ...]:
    """``seq_lens = [700, 0]``: the inputs of a batch that a message can show, tensors of up to SMALL elements and host
    integers.
    """
    of_all = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    values = {name: value for name, value in of_all.items() if value is not None}
    shown = {
        name: value.tolist() if isinstance(value, Tensor) else value
        for name, value in values.items()
        if not isinstance(value, Tensor) or value.numel() <= SMALL
    }
    return tuple(f"{name} = {value}" for name, value in shown.items())


def _plain(index: Sequence[int]) -> str:
    return f"[{', '.join(map(str, index))}]"


def differences(
    name: str,
    wrong: Tensor,
    expected: Tensor,
    got: Tensor,
    before: Tensor | None = None,
    place: Callable[[Sequence[int]], str] = _plain,
) -> Difference:
    """The wrong elements of the buffer ``name``; in words: ``[3] expected 7, got 0``.

    wrong:  bool mask, not all False; the other tensors have its shape.
    before: what the buffer held before the launch. Elements that were poisoned then and still are, are called so.
    place:  an index in words.
    """
    first, *_ = indices = [tuple(index) for index in wrong.nonzero()[:SHOWN].tolist()]
    elements = []
    for index in indices:
        must_be, actual, note_on_expected, note_on_actual = expected[index], got[index], "", ""
        if before is not None and _is_poison(before[index]):
            note_on_expected = " (what it held)" if bool(must_be == before[index]) else ""
            note_on_actual = _unwritten(actual) if bool(actual == before[index]) else ""
        values = f"expected {must_be.item()}{note_on_expected}, got {actual.item()}{note_on_actual}"
        elements.append(f"{place(index)} {values}")
    return Difference(
        tensor=name,
        index=first,
        expected=expected[first].item(),
        got=got[first].item(),
        wrong=int(wrong.sum()),
        elements=tuple(elements),
    )


def _is_poison(element: Tensor) -> bool:
    patterns = [torch.full((element.element_size(),), p, dtype=torch.uint8).view(element.dtype)[0] for p in POISONS]
    return any(bool(element.cpu() == pattern) for pattern in patterns)


def _unwritten(element: Tensor) -> str:
    """A legal length, index or slot of four bytes never equals poison. A single byte of a cache or state may."""
    if element.element_size() >= 4:
        return " (poison: never written)"
    return " (still poison: never written, or written with this value)"


def required(expected: Expected) -> Tensor:
    """Bool mask of the elements that a launch must write."""
    must = torch.ones_like(expected.value, dtype=torch.bool)
    for excluded in (expected.untouched, expected.may_vary):
        if excluded is not None:
            must &= ~excluded
    return must


def wrong_elements(got: Tensor, before: Tensor, expected: Expected) -> tuple[Tensor, Tensor]:
    """(bool mask of the elements that differ from what ``expected`` allows, what they must be); see check_equal."""
    inside = tuple(slice(size) for size in expected.value.shape)
    must_be = before.clone()
    must_be[inside] = expected.value
    if expected.untouched is not None:
        must_be[inside] = torch.where(expected.untouched, before[inside], expected.value)
    wrong = got != must_be
    if expected.may_keep is not None:
        wrong[inside] &= ~(expected.may_keep & ((got == before) | (got == 0))[inside])
    if expected.dont_care is not None:
        wrong[inside] &= ~expected.dont_care
    return wrong, must_be


def check_equal(
    name: str, got: Tensor, before: Tensor, expected: Expected, views: Callable[[], Sequence[View]] = tuple
) -> None:
    """Raise Mismatch("exact") unless every element of the buffer ``name`` is what ``expected`` allows.

    before: what the buffer held before the launch. It may be larger than ``expected.value``, where the buffer belongs
    to a larger step of a sequence; the elements outside must keep what they held. views: what consumers read of it.
    """
    wrong, must_be = wrong_elements(got, before, expected)
    if bool(wrong.any()):
        first = tuple(wrong.nonzero()[0].tolist())
        view = next((view for view in views() if view.index(got, first) is not None), View(name, got))
        difference = differences(name, wrong, must_be, got, before, lambda index: view.place(name, got, index))
        raise Mismatch("exact", f"{view.name} {tuple(view.tensor.shape)} differs", difference)


def unravelled(positions: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    """As torch.unravel_index, which imports sympy for it: seconds in the first cell of a process."""
    index = []
    for size in reversed(shape):
        index.append(positions % size)
        positions = positions // size
    return tuple(reversed(index))
