"""Processes whose addresses the system does not randomize.

CUDA places the kernels of a library on the GPU in an order that depends on the host addresses of that library. With
randomized addresses the chains of PyTorch operators take a few per cent more or less in one process than in another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

#: personality(2): no randomization of addresses; leave it as it is.
_ADDR_NO_RANDOMIZE, _AS_IT_IS = 0x0040000, 0xFFFFFFFF


def has_fixed_addresses() -> bool:
    """Of this process."""
    return bool(_personality(_AS_IT_IS) & _ADDR_NO_RANDOMIZE)


@contextmanager
def fixed_addresses() -> Iterator[None]:
    """For a process that this thread starts meanwhile. A container may forbid it; then they are randomized."""
    before = _personality(_AS_IT_IS)
    _personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        _personality(before)


def _personality(value: int) -> int:
    """The previous value of the calling thread; 0 where the system refuses, or is not Linux."""
    call = getattr(ctypes.CDLL(None), "personality", None)
    return max(call(ctypes.c_ulong(value)), 0) if call else 0
