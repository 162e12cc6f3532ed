"""Integer arithmetic for grids and divisions."""

from spec_decode_bench.baselines.workloads.integers import cdiv, reciprocal, tile

#: Numbers of SMs and parts, sizes of Mamba blocks, and the ends of the range.
DIVISORS = (*range(1, 1025), 2**15 - 1, 2**20, 2**29 + 1, 2**30 - 1)


def test_the_reciprocal_divides():
    """Around the first multiple, one in the middle and the last below 2^30."""
    for divisor in DIVISORS:
        multiplier, shift = reciprocal(divisor)
        assert 0 < multiplier < 2**31
        for multiple in {0, divisor, 2**29 // divisor * divisor, (2**30 - 1) // divisor * divisor}:
            for n in range(max(multiple - 2, 0), min(multiple + 3, 2**30)):
                assert n * multiplier >> shift == n // divisor, (n, divisor)


def test_cdiv_and_tile():
    assert [cdiv(a, 4) for a in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [tile(size, (32, 256)) for size in (1, 32, 33, 256)] == [32, 32, 256, 256]
