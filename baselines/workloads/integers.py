"""Integer arithmetic on the host, for grids and for kernels that divide by a number no compiler knows."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def reciprocal(divisor: int) -> tuple[int, int]:
    """(multiplier, shift) with n // divisor == n * multiplier >> shift for 0 <= n < 2^30, in 64 bits; both fit an int.

    A 32-bit division by a divisor the compiler does not know takes some twenty dependent instructions.
    """
    shift = 30 + (divisor - 1).bit_length()
    return cdiv(1 << shift, divisor), shift


def tile(size: int, tiles: tuple[int, ...]) -> int:
    """The smallest of ``tiles``, in ascending order, that holds ``size``."""
    return next(tile for tile in tiles if size <= tile)
