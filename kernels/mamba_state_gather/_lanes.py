"""Host constants that the Mamba kernels share."""

from __future__ import annotations

THREADS = 128
#: Entries of one Triton program, which is one warp.
ENTRIES = 128


def lanes_per_request(num_slots: int) -> int:
    """The power of two of lanes that one request's slots take, so that its lanes lie in one warp."""
    return 1 << (num_slots - 1).bit_length()
