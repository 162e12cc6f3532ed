"""Arms of an engine that changes its speed by itself, compared by palindromes."""

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.engine_plugin.analysis import FEWEST, all_compared, compared, palindromes
from tests.engine_plugin.fakes import two_speeds

CHANGES = {"engine": 0.0, "suite": -120.0, "packed": -90.0}


@pytest.fixture
def blocks():
    return two_speeds(np.random.default_rng(5), 40, CHANGES)


def test_the_interval_covers_the_true_change():
    """In 95 % of simulated servers, up to what 150 of them can tell; blocks without pairs are off by hundreds."""
    covered, widths = 0, []
    for seed in range(150):
        arm = compared(two_speeds(np.random.default_rng(seed), 60, CHANGES), 32)[1]
        covered += arm.change.low <= CHANGES["suite"] <= arm.change.high
        widths.append(arm.change.high - arm.change.low)
    assert covered / 150 > 0.88
    assert np.median(widths) < 60


def test_a_palindrome_in_which_the_host_changes_its_speed_is_left_out(blocks):
    found = palindromes(blocks)
    assert 0 < sum(one.is_steady for one in found) < len(found) == 40
    assert all(max(one.pace) / min(one.pace) > 1.3 for one in found if not one.is_steady)


def test_a_prefill_between_its_blocks_leaves_a_palindrome_out_and_one_before_it_does_not(blocks):
    steady = next(one for one in palindromes(blocks) if one.is_steady)
    first = blocks.index(steady.blocks[0])
    before = [*blocks[:first], replace(blocks[first], prefill_us=[9e3]), *blocks[first + 1 :]]
    inside = [*blocks[: first + 2], replace(blocks[first + 2], prefill_us=[9e3]), *blocks[first + 3 :]]
    count = lambda blocks: sum(one.is_steady for one in palindromes(blocks))  # noqa: E731
    assert count(before) == count(blocks) == count(inside) + 1


def test_arms_are_in_the_order_of_the_plan_also_where_the_first_turns_are_missing(blocks):
    for start in (0, 6, 12):
        assert [arm.name for arm in compared(blocks[start:], 32)] == list(CHANGES)


def test_an_incomplete_palindrome_does_not_count(blocks):
    assert len(palindromes(blocks[:-1])) == 39


def test_too_few_palindromes_give_nothing(blocks):
    assert compared(blocks[: 6 * (FEWEST - 1)], 32) == []


def test_every_batch_size_is_compared_by_itself(blocks):
    other = two_speeds(np.random.default_rng(1), 40, CHANGES, batch=128)
    assert [arm.batch for arm in all_compared([*other, *blocks])] == [32] * 3 + [128] * 3


def test_tpot_is_itl_by_the_tokens_of_a_step(blocks):
    arm = compared(blocks, 32)[1]
    assert arm.tpot.median == pytest.approx(arm.itl.median / 2.8)
    assert arm.tpot_change.low == pytest.approx(arm.change.low / 2.8)
