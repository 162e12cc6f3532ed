"""Statistics of decode loops on made-up blocks: what is known is found, and nothing is found where nothing is."""

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.decode_loop import analysis
from spec_decode_bench.decode_loop.analysis import delta, modelled_itl_us, value
from spec_decode_bench.decode_loop.records import LoopRequest
from spec_decode_bench.harness.records.schema import Metrics
from tests.decode_loop.factory_loops import block, loop, loops_of

NONE_US = 0.0


def test_itl_and_tpot_of_a_block_that_can_be_done_by_hand():
    """Request 1 gets 3 tokens in the first two intervals, request 2 gets 4 in all three."""
    requests = [LoopRequest(1, 0, 2, 3), LoopRequest(2, 0, 3, 4)]
    stack = loop("a", [block(0, [100.0, 200.0, 600.0], requests=requests)] * 1)
    assert value(stack, "itl_us") == 300
    assert value(stack, "itl_us", "p50") == 200
    assert value(stack, "itl_us", "p99") == 600
    assert value(stack, "tpot_us") == pytest.approx((300 + 900) / 7)
    assert value(stack, "tpot_us", "p50") == 100
    assert value(stack, "tpot_us", "p99") == 225
    assert analysis.tokens_per_s(stack) == pytest.approx(7 / 900e-6)


def test_requests_that_were_there_for_a_moment_count_for_the_mean_alone():
    requests = [LoopRequest(1, 0, 4, 8), LoopRequest(2, 3, 1, 1)]
    stack = loop("a", [block(0, [100.0, 100.0, 100.0, 100.0], requests=requests)])
    assert value(stack, "tpot_us", "p99") == 50
    assert value(stack, "tpot_us") == pytest.approx(500 / 9)


def test_a_delta_is_paired_by_block():
    """Blocks differ by far more than the stacks do, and still the difference is clear."""
    rng = np.random.default_rng(0)
    reference, other = loops_of(rng, change_us=-50.0, drift_us=3000.0, noise_us=20.0)
    change = delta(reference, other, "itl_us")
    assert change.us.low < -50 < change.us.high
    assert change.us.high - change.us.low < 60
    assert change.us.high < 0 or change.us.low > 0
    assert change.percent.median == pytest.approx(100 * change.us.median / value(reference, "itl_us"), rel=1e-6)


def test_an_interruption_of_some_blocks_does_not_count():
    """As in a comparison of records: two of ten blocks in which the host was interrupted for three milliseconds."""
    reference, other = loops_of(np.random.default_rng(6), change_us=-50.0, noise_us=5.0, blocks=10)
    disturbed = [
        replace(block, itl_us=[block.itl_us[0] + 60_000.0, *block.itl_us[1:]]) if number in (3, 7) else block
        for number, block in enumerate(reference.blocks)
    ]
    change = delta(replace(reference, blocks=disturbed), other, "itl_us")
    assert change.us.median == pytest.approx(-50, abs=10)
    assert change.us.low < -50 < change.us.high
    assert value(replace(reference, blocks=disturbed), "itl_us") == pytest.approx(value(reference, "itl_us"), abs=10)


def test_blocks_are_paired_by_their_numbers():
    rng = np.random.default_rng(1)
    reference, other = loops_of(rng, change_us=-50.0, drift_us=3000.0, noise_us=1.0)
    other.blocks.reverse()
    assert delta(reference, other, "itl_us").us.median == pytest.approx(-50, abs=2)
    fewer = loop("other", other.blocks[:3])
    assert delta(reference, fewer, "itl_us").us.median == pytest.approx(-50, abs=2)
    assert delta(reference, loop("other", other.blocks[:1]), "itl_us") is None


def test_the_change_of_tpot_is_that_of_itl_over_the_tokens_of_a_step():
    reference, other = loops_of(np.random.default_rng(2), change_us=-100.0, noise_us=0.0)
    sums = [[sum(getattr(r, name) for r in b.requests) for name in ("steps", "tokens")] for b in reference.blocks]
    expected = np.median([-100 * steps / tokens for steps, tokens in sums])
    assert delta(reference, other, "tpot_us").us.median == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("figure", ["itl_us", "tpot_us"])
def test_the_same_stack_twice_differs_in_five_of_a_hundred_runs(figure):
    """A/A: with few blocks, autocorrelated noise and drift, intervals exclude 0 about as often as they should."""
    rng = np.random.default_rng(3)
    runs, clear = 400, 0
    for _ in range(runs):
        reference, other = loops_of(rng, change_us=NONE_US, drift_us=200.0, noise_us=30.0, blocks=10)
        us = delta(reference, other, figure).us
        clear += us.high < 0 or us.low > 0
    assert clear / runs < 0.08
    assert clear > 0  # an interval that always holds 0 says nothing


def test_intervals_of_a_known_change_hold_it():
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(200):
        reference, other = loops_of(rng, change_us=-40.0, noise_us=30.0, blocks=12)
        change = delta(reference, other, "itl_us")
        held += change.us.low <= -40 <= change.us.high
    assert held / 200 > 0.9


def test_stacks_of_different_loops_are_not_compared():
    with pytest.raises(ValueError, match="not of the same loop"):
        delta(loop("a", [block(0, [1.0])]), loop("b", [block(0, [1.0])], scheduling="async"), "itl_us")


def test_the_model_takes_the_time_that_delays_a_step():
    slow = Metrics(
        bytes_moved=0, eager_us=[900.0], graph_us={1: [150.0], 2: [250.0]}, stream_us={1: [160.0], 2: [320.0]}
    )
    fast = Metrics(bytes_moved=0, eager_us=[100.0], graph_us={1: [10.0], 2: [14.0]}, stream_us={1: [10.0], 2: [16.0]})
    for scheduling, graph, expected in (("sync", "none", -800), ("async", "none", -154), ("sync", "full", -96)):
        both = [
            loop(name, [block(0, [1.0])], alone=alone, scheduling=scheduling)
            for name, alone in (("a", slow), ("b", fast))
        ]
        both = [replace(stack, axes=stack.axes | {"graph": graph}, waited_us=stack.alone.eager_us) for stack in both]
        assert modelled_itl_us(*both) == expected
    assert modelled_itl_us(loop("a", []), loop("b", [])) is None


def test_after_a_wait_launches_take_longer_and_the_model_knows():
    alone = [Metrics(bytes_moved=0, eager_us=[us]) for us in (900.0, 100.0)]
    both = [
        replace(loop(name, [block(0, [1.0])], alone=metrics), waited_us=[us, us + 2, us + 4])
        for name, metrics, us in zip(("a", "b"), alone, (1298.0, 118.0), strict=True)
    ]
    assert modelled_itl_us(*both) == -1180
    assert modelled_itl_us(replace(both[0], waited_us=[]), both[1]) is None
