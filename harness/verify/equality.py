"""Exact comparison with the reference: what must be written, what must stay, what no consumer reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.contract import Expected
from spec_decode_bench.harness.verify.mismatch import View, differences


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
