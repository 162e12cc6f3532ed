"""Integer arithmetic on the host, for grid sizes and for kernels that divide by a run-time constant."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """ceil(a / b)."""
    return -(-a // b)


def strips_of_rows(columns: int, per_program: int, rows: int, most_programs: int) -> int:
    """Programs that share a table row, ``per_program`` of its columns each in turn: as many as its columns need, but
    few where there are many rows, because most strips of a wide table have nothing to do.
    """
    return max(1, min(cdiv(columns, per_program), most_programs // rows))


def reciprocal(divisor: int) -> tuple[int, int]:
    """(multiplier, shift) with n // divisor == n * multiplier >> shift for 0 <= n < 2^30, computed in 64 bits.

    Both fit an int32. A kernel then replaces a 32-bit division by a divisor unknown to the compiler, some twenty
    dependent instructions, with one multiplication and one shift.
    """
    shift = 30 + (divisor - 1).bit_length()
    return cdiv(1 << shift, divisor), shift


def tile(size: int, tiles: tuple[int, ...]) -> int:
    """The smallest of ``tiles`` (ascending) that is >= ``size``. Raises StopIteration if none is."""
    return next(tile for tile in tiles if size <= tile)
