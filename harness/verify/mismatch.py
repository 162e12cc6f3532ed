"""Where a buffer is wrong, in words: how many elements, the first few of them, expected and got."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.verify.buffers import POISONS

#: How many differing elements a mismatch names.
SHOWN = 5


def places(wrong: Tensor, expected: Tensor, got: Tensor, before: Tensor | None = None) -> str:
    """How many elements are wrong, and the first of them. before: what a poisoned buffer held, to tell what was
    never written.
    """
    shown = []
    for index in map(tuple, wrong.nonzero()[:SHOWN].tolist()):
        want, found, kept, unwritten = expected[index], got[index], "", ""
        if before is not None and _poisoned(before[index]):
            kept = " (what it held)" if bool(want == before[index]) else ""
            unwritten = _unwritten(found) if bool(found == before[index]) else ""
        shown.append(f"[{', '.join(map(str, index))}] expected {want.item()}{kept}, got {found.item()}{unwritten}")
    count = int(wrong.sum())
    return f"{count} element{'s' if count > 1 else ''}, first at {'; '.join(shown)}"


def _poisoned(element: Tensor) -> bool:
    patterns = [torch.full((element.element_size(),), p, dtype=torch.uint8).view(element.dtype)[0] for p in POISONS]
    return any(bool(element.cpu() == pattern) for pattern in patterns)


def _unwritten(element: Tensor) -> str:
    """No legal length, index or slot of four bytes looks like poison; a single byte of a cache or state may."""
    return (
        " (poison: never written)"
        if element.element_size() >= 4
        else " (as poisoned: never written, or with this very value)"
    )
