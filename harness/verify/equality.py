"""Exact comparison with the reference: what must be written, what must stay, what no consumer reads."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.checks import Mismatch
from harness.contract import Expected
from harness.verify.mismatch import describe_differences


def required(expected: Expected) -> Tensor:
    """Bool mask of the elements that a launch must write."""
    must = torch.ones_like(expected.value, dtype=torch.bool)
    for excluded in (expected.untouched, expected.slack):
        if excluded is not None:
            must &= ~excluded
    return must


def compare(name: str, got: Tensor, before: Tensor, expected: Expected) -> None:
    """Raise Mismatch("exact") unless every element of the buffer ``name`` is what ``expected`` allows.

    before: what the buffer held before the launch. It may be larger than ``expected.value``, where the buffer belongs
    to a larger step of a sequence; the elements outside must keep what they held.
    """
    inside = tuple(slice(size) for size in expected.value.shape)
    must_be = before.clone()
    must_be[inside] = expected.value
    if expected.untouched is not None:
        must_be[inside] = torch.where(expected.untouched, before[inside], expected.value)
    wrong = got != must_be
    if expected.slack is not None:
        wrong[inside] &= ~(expected.slack & ((got == before) | (got == 0))[inside])
    if bool(wrong.any()):
        differences = describe_differences(wrong, must_be, got, before)
        raise Mismatch("exact", f"{name} {tuple(got.shape)} differs; {differences}")
