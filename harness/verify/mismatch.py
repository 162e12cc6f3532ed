"""Describes where a buffer is wrong: how many elements, and the first few with expected and actual values."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.verify.buffers import POISONS

#: Wrong elements that a message names.
SHOWN = 5


def describe_differences(wrong: Tensor, expected: Tensor, got: Tensor, before: Tensor | None = None) -> str:
    """``2 elements, first at [3] expected 7, got 0; [4] expected 8, got 0``.

    wrong:  bool mask, not all False; the other tensors have its shape.
    before: what the buffer held before the launch. Elements that were poisoned then and still are, are called so.
    """
    shown = []
    for index in map(tuple, wrong.nonzero()[:SHOWN].tolist()):
        must_be, actual, note_on_expected, note_on_actual = expected[index], got[index], "", ""
        if before is not None and _is_poison(before[index]):
            note_on_expected = " (what it held)" if bool(must_be == before[index]) else ""
            note_on_actual = _unwritten(actual) if bool(actual == before[index]) else ""
        where = ", ".join(map(str, index))
        shown.append(f"[{where}] expected {must_be.item()}{note_on_expected}, got {actual.item()}{note_on_actual}")
    count = int(wrong.sum())
    return f"{count} element{'s' if count > 1 else ''}, first at {'; '.join(shown)}"


def _is_poison(element: Tensor) -> bool:
    patterns = [torch.full((element.element_size(),), p, dtype=torch.uint8).view(element.dtype)[0] for p in POISONS]
    return any(bool(element.cpu() == pattern) for pattern in patterns)


def _unwritten(element: Tensor) -> str:
    """A legal length, index or slot of four bytes never equals poison. A single byte of a cache or state may."""
    if element.element_size() >= 4:
        return " (poison: never written)"
    return " (as poisoned: never written, or with this very value)"
