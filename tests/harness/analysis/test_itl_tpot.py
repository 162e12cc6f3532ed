"""Modelled ITL and TPOT: formulas by hand, signs, and cells for which nothing may be modelled."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spec_decode_bench.harness.analysis.itl_tpot import ServingModel, decode_len, delta, serving_model_of
from spec_decode_bench.harness.records.schema import Metrics
from tests import factory

SYNC = ServingModel(model_step_us=12000.0, acceptance=0.75)
ASYNC = ServingModel(model_step_us=12000.0, acceptance=0.75, scheduling="async")
AXES = {"batch_size": 8, "next_n": 4, "max_decode_len": 4}


def exact(variant: str, gpu: float, eager: float, axes: dict = AXES, **changes):
    """A cell whose samples are all equal."""
    metrics = Metrics(
        bytes_moved=1,
        eager_us=[eager] * 5,
        graph_us={k: [3 + gpu * k / 2] * 5 for k in (1, 2, 4)},
        stream_us={k: [5 + gpu * k] * 5 for k in (1, 8)},
    )
    return replace(factory.cell("decode_flatten", variant, axes), metrics=metrics, **changes)


@given(acceptance=st.sampled_from([0, 1]) | st.floats(0, 1), rows=st.integers(1, 16))
def test_tokens_per_step_lie_between_one_and_all(acceptance, rows):
    tokens = ServingModel(model_step_us=1.0, acceptance=acceptance).tokens_per_step(rows)
    assert 1 <= tokens <= rows
    if acceptance in (0, 1):
        assert tokens == (rows if acceptance else 1)
    elif acceptance < 0.999:
        assert tokens == pytest.approx((1 - acceptance**rows) / (1 - acceptance))


def test_delta_by_hand_and_the_faster_variant_is_negative():
    """Sync: 410 -> 10 us of eager time in each of two calls."""
    serving = ServingModel(model_step_us=12000.0, acceptance=0.75, calls_per_step=2)
    change = delta(serving, exact("op_chain", 46.0, 410.0), exact("cuda_fused", 2.0, 10.0))
    assert change.itl_us.median == pytest.approx(-800)
    assert change.tpot_us.median == pytest.approx(-800 / 2.734375)
    assert change.percent.median == pytest.approx(-100 * 800 / 12820)
    assert change.itl_us.low == change.itl_us.median == change.itl_us.high
    slower = delta(serving, exact("cuda_fused", 2.0, 10.0), exact("op_chain", 46.0, 410.0))
    assert slower.tpot_us.median > 0


def test_sync_waits_for_the_host_and_async_does_not():
    """The eager times are equal and the device times are not, then the other way round."""
    same_eager = exact("op_chain", 46.0, 400.0), exact("cuda_fused", 2.0, 400.0)
    same_device = exact("op_chain", 2.0, 400.0), exact("cuda_fused", 2.0, 10.0)
    assert delta(SYNC, *same_eager).itl_us.median == 0
    assert delta(ASYNC, *same_eager).itl_us.median == pytest.approx(-44)
    assert delta(SYNC, *same_device).itl_us.median == -390
    assert delta(ASYNC, *same_device).itl_us.median == pytest.approx(0)


def test_intervals_cover_the_true_difference():
    """Coverage over made-up runs with a known true difference of -400: nominal 95 %, at least 85 % of 100 wanted."""
    rng, held = np.random.default_rng(3), 0
    for _ in range(100):
        before, after = (
            replace(
                exact(name, 1.0, 1.0),
                metrics=Metrics(bytes_moved=1, eager_us=list(centre * (1 + 0.02 * rng.standard_normal(30)))),
            )
            for name, centre in (("op_chain", 410.0), ("fused", 10.0))
        )
        change = delta(SYNC, before, after).itl_us
        held += change.low <= -400 <= change.high
    assert held >= 85


def changed(**changes):
    return lambda cell: replace(cell, **changes)


@pytest.mark.parametrize(
    "spoilt",
    [
        *(changed(status=status) for status in ("mismatch", "failed", "skipped", "unavailable")),
        changed(metrics=Metrics(bytes_moved=1, cpu_us=[300.0] * 5)),
    ],
)
@pytest.mark.parametrize("serving", [SYNC, ASYNC])
def test_nothing_is_modelled_from_what_is_no_time_of_a_gpu_that_passed(serving, spoilt):
    chain, fused = exact("op_chain", 46.0, 410.0), exact("cuda_fused", 2.0, 10.0)
    assert delta(serving, chain, fused) is not None
    for pair in ((spoilt(chain), fused), (chain, spoilt(fused)), (spoilt(chain), spoilt(fused))):
        assert delta(serving, *pair) is None
    of_prefill = [replace(cell, phase="prefill") for cell in (chain, fused)]  # which has no output token
    assert delta(serving, *of_prefill) is None


def test_a_variant_that_was_never_queued_has_no_async_delta():
    unqueued = replace(exact("x", 1.0, 50.0), metrics=Metrics(bytes_moved=1, eager_us=[50.0], no_graph="allocates"))
    assert delta(ASYNC, exact("op_chain", 46.0, 410.0), unqueued) is None
    assert delta(SYNC, exact("op_chain", 46.0, 410.0), unqueued).itl_us.median == -360


def test_cells_of_two_points_cannot_be_compared():
    with pytest.raises(ValueError, match="not the same operator and point"):
        delta(SYNC, exact("op_chain", 46.0, 410.0), exact("cuda_fused", 2.0, 10.0, axes=AXES | {"batch_size": 9}))


def test_the_model_of_a_header():
    header = factory.run(factory.gpu_environment(), []).header
    assert serving_model_of(header) == SYNC
    assert serving_model_of(replace(header, config={"name": "mtp3"})) is None
    assert serving_model_of(replace(header, config={"itl_tpot": None})) is None


@pytest.mark.parametrize(
    ("axes", "rows"), [(AXES, 4), ({"max_decode_len": 2, "next_n": 4}, 2), ({"next_n": 6}, 6), ({"batch_size": 8}, 1)]
)
def test_decode_length_of_a_point(axes, rows):
    assert decode_len(axes) == rows
