"""graph_safe without a GPU: a closure that runs the launch's work again, or wrongly, takes the place of a graph."""

import itertools
from functools import partial

import pytest
import torch

from spec_decode_bench.baselines.decode_flatten.chains import merged_chain
from spec_decode_bench.baselines.decode_flatten.operator import operator as flatten
from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.baselines.decode_native.operator import operator as native
from spec_decode_bench.baselines.mla_tile_schedule.chains import fresh_copy
from spec_decode_bench.baselines.mla_tile_schedule.operator import operator as tiles
from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.verify.fixture import Fixture
from spec_decode_bench.harness.verify.graph_replay import STEPS, BoundLaunch, check_replays
from tests.harness.verify.captures import Replays, cannot_capture, does_nothing
from tests.harness.verify.test_fixture import forgets_the_tail

POINT = native.complete({"batch_size": 5, "max_decode_len": 3, "context_len": {"uniform": [10, 900]}})


def bound_launch(point=POINT, operator=native, setup=chain_clamp, **more):
    fixture = Fixture(operator, point, "cpu", 3, **more)
    return BoundLaunch(fixture, setup(point, fixture.inputs.view, fixture.outputs.view))


def big_small_big(operator, sequence, setup):
    """Three steps through the same outputs."""
    big, small = (operator.complete(step) for step in operator.sequences[sequence][:2])
    first = bound_launch(big, operator, setup)
    return [first, bound_launch(small, operator, setup, outputs=first.fixture.outputs), first]


@pytest.mark.parametrize(
    ("capture", "words"),
    [
        (
            does_nothing,
            r"replay 1 of 200: buffer differs from what an eager launch .* got \d+ \(poison: never written\)",
        ),
        (
            cannot_capture,
            r'cannot be captured in a CUDA graph \(RuntimeError: operation not permitted.*declare waives="graph_safe"',
        ),
    ],
)
def test_a_graph_that_does_not_is_rejected(capture, words):
    bound = bound_launch()
    bound.fixture.fill(1)
    with pytest.raises(Mismatch, match=words) as caught:
        check_replays([bound], capture)
    assert caught.value.check == "graph_safe"
    assert "graph_safe" not in bound.fixture.passed_checks


def test_a_graph_that_goes_wrong_after_fifty_steps_is_rejected_then():
    """As in vLLM #35175, where the allocator took that long to reuse the captured memory."""
    bound, replayed = bound_launch(), itertools.count()

    def capture(launch):
        def replay():
            launch()
            if next(replayed) >= 50:
                bound.fixture.outputs.view.buffer[2] += 1

        return replay

    with pytest.raises(Mismatch, match=r"replay 51 of 200: .*; \[2\]"):
        check_replays([bound], capture)


def test_a_right_graph_passes_200_replays_between_which_tensors_are_allocated_overwritten_and_freed(monkeypatch):
    calls, full = [], torch.full
    monkeypatch.setattr(torch, "full", lambda *a, **k: calls.append(a) or full(*a, **k))
    bound, capture = bound_launch(), Replays()
    calls.clear()
    check_replays([bound], capture)
    assert (capture.graphs, capture.replayed) == (1, STEPS + 1)
    assert "graph_safe" in bound.fixture.passed_checks
    capacity = bound.fixture.outputs.view.buffer.numel() * 4
    assert calls.count(((capacity,), 0x2B)) == STEPS


def test_steps_of_different_sizes_share_buffers_with_stale_contents_too():
    """What leaves the tail is found eagerly, before any capture, and in a graph."""
    launches, capture = partial(big_small_big, flatten, "big-small-big"), Replays()
    check_replays(launches(merged_chain), capture, steps=45)
    assert capture.graphs == 2
    with pytest.raises(Mismatch, match="lens"):
        check_replays(launches(forgets_the_tail), Replays(), steps=45)
    right = launches(merged_chain)

    def captures_another(launch):
        fixture = next(bound.fixture for bound in right if bound.launch is launch)
        return forgets_the_tail(fixture.point, fixture.inputs.view, fixture.outputs.view)

    with pytest.raises(Mismatch, match=r"replay \d+ of 45: lens differs from what") as caught:
        check_replays(right, captures_another, steps=45)
    assert caught.value.check == "graph_safe"


def test_what_no_consumer_reads_may_differ_also_under_a_smaller_step():
    """Fields that nobody reads hold anything; a smaller step on top keeps them, a written element is compared."""
    launches, numbers = partial(big_small_big, tiles, "big-small-big, old layout"), itertools.count(1)

    def random_fields(point, x, out, column=7):
        inner, rows = fresh_copy(point, x, out), out.tile_scheduler_metadata[: point.num_sm_parts]

        def launch():
            inner()
            rows[:, column] = next(numbers)

        return launch

    check_replays(launches(random_fields), Replays(), steps=18)
    with pytest.raises(Mismatch):
        check_replays(launches(partial(random_fields, column=1)), Replays(), steps=18)
