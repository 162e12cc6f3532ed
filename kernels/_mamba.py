"""Host constants that the Mamba kernels share."""

from __future__ import annotations

THREADS = 128
#: Entries of one Triton program, which is one warp.
ENTRIES = 128


def division(divisor: int) -> tuple[int, int]:
    """(multiplier, shift) with n // divisor == (n * multiplier) >> shift for 0 <= n < 2^30, in 64 bits; both fit an int.

    A 32-bit division by a divisor the compiler does not know takes some twenty dependent instructions.
    """
    bits = (divisor - 1).bit_length()
    return (1 << (30 + bits)) // divisor + (divisor & (divisor - 1) != 0), 30 + bits


def lanes_per_request(num_slots: int) -> int:
    """The power of two of lanes that one request's slots take, so that its lanes lie in one warp."""
    return 1 << (num_slots - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)
