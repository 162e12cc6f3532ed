"""Equality with the reference, element by element: what must be written, must stay, and may hold anything."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.checks import Mismatch
from harness.contract import Expected
from harness.verify.mismatch import places


def required(expected: Expected) -> Tensor:
    """Bool mask of the elements that a launch must write."""
    must = torch.ones_like(expected.value, dtype=torch.bool)
    for excused in (expected.untouched, expected.slack):
        if excused is not None:
            must &= ~excused
    return must


def compare(name: str, got: Tensor, before: Tensor, expected: Expected) -> None:
    """Raise Mismatch unless every element of a buffer is what the reference allows there.

    A buffer larger than the reference's value (one of a larger step) must keep what it held outside of it.
    """
    inside = tuple(slice(size) for size in expected.value.shape)
    want = before.clone()
    want[inside] = expected.value
    if expected.untouched is not None:
        want[inside] = torch.where(expected.untouched, before[inside], expected.value)
    wrong = got != want
    if expected.slack is not None:
        wrong[inside] &= ~(expected.slack & ((got == before) | (got == 0))[inside])
    if bool(wrong.any()):
        raise Mismatch("exact", f"{name} {tuple(got.shape)} differs; {places(wrong, want, got, before)}")
