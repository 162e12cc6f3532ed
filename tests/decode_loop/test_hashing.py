"""Random numbers and checksums are the same in Python's integers and in numpy."""

import numpy as np
import pytest

from spec_decode_bench.decode_loop.hashing import checksum, draw, weight
from spec_decode_bench.decode_loop.simulation import _draw, tokens_of_step
from spec_decode_bench.decode_loop.workload import Acceptance


def test_draws_agree_with_the_simulation():
    rng = np.random.default_rng(0)
    requests, positions = rng.integers(0, 2**20, 200), rng.integers(0, 2**30, 200)
    for seed in (0, 1, 2**53):
        assert draw(seed, requests, positions).tolist() == [
            _draw(seed, int(r), int(p)) for r, p in zip(requests, positions, strict=True)
        ]


def test_acceptance_has_the_stated_probabilities():
    shares = (0.9, 0.5, 0.7)
    acceptance = Acceptance(tuple(round(share * 2**32) for share in shares))
    tokens = np.array([tokens_of_step(acceptance, 3, request, 0, 4) for request in range(20_000)])
    for i, share in enumerate(np.cumprod(shares)):
        assert np.mean(tokens > i + 1) == pytest.approx(share, abs=0.015)
    assert tokens.mean() == pytest.approx(1 + np.cumprod(shares).sum(), abs=0.03)


def test_certain_and_impossible_drafts():
    assert tokens_of_step(Acceptance((2**32,) * 3), 0, 1, 2, 4) == 4
    assert tokens_of_step(Acceptance((0,) * 3), 0, 1, 2, 4) == 1


def test_measured_accept_lengths_are_drawn_as_often_as_they_were_measured():
    acceptance = Acceptance((), (1, 3, 3, 4))
    tokens = [tokens_of_step(acceptance, 0, request, 5, 4) for request in range(8000)]
    assert [tokens.count(n) / 8000 for n in (1, 2, 3, 4)] == pytest.approx([0.25, 0, 0.5, 0.25], abs=0.02)


def test_a_checksum_is_the_sum_over_what_is_read():
    values = np.array([[5, -1, 7], [9, 2, 3]], dtype=np.int32)
    expected = (
        sum(int(values[row, column]) * int(weight(row, column)[0]) for row, column in [(0, 0), (0, 1), (1, 0)]) % 2**64
    )
    assert checksum(values, row_lengths=np.array([17, 16]), unit=16) == expected
    assert checksum(values, row_lengths=np.array([17, 16]), unit=16) == checksum(
        np.array([[5, -1, 0], [9, 0, 0]]), row_lengths=np.array([17, 16]), unit=16
    )


def test_a_checksum_reads_one_entry_of_an_idle_row():
    table = np.array([[1, 2], [4, 9]])
    assert checksum(table, idle=4) == checksum(np.array([[1, 2], [4, 0]]), idle=4) != checksum(table)


def test_a_checksum_notices_values_that_change_places():
    table = np.arange(12).reshape(3, 4)
    swapped = table.copy()
    swapped[0, 1], swapped[2, 3] = table[2, 3], table[0, 1]
    assert checksum(table) != checksum(swapped)
