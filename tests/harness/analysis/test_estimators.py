"""Calibration on known times, and agreement of the estimators on cells, on made-up records."""

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.analysis import estimators
from spec_decode_bench.harness.analysis.estimators import CUPTI, ESTIMATORS, GRAPH_SLOPE, QUEUED_EVENTS
from spec_decode_bench.harness.numbers import significant
from spec_decode_bench.harness.records.schema import Metrics
from tests import factory


@pytest.fixture
def calibration():
    return factory.calibration(np.random.default_rng(0))


def metrics(graph=5.0, events=5.0, cupti=5.0, launches=1, **more):
    """Samples of a cell. graph, events, cupti: times in a graph; the constants of factory.calibration are added."""
    rng = np.random.default_rng(1)
    return Metrics(
        bytes_moved=0,
        launches=launches,
        graph_us=factory.graph_us(graph, rng, noise=0.0002),
        stream_us=factory.stream_us(events + 0.85 * launches, rng),
        cupti_us=[cupti - 0.05 * launches] * 9,
        **more,
    )


def moved(probe, **shift):
    """A calibration kernel for which one estimator reads more."""
    series = {
        name: {k: [us + k * by for us in times] for k, times in getattr(probe, name).items()}
        for name, by in shift.items()
    }
    return replace(probe, **series)


@pytest.mark.parametrize("taken", [ESTIMATORS, (GRAPH_SLOPE, QUEUED_EVENTS)], ids=["with CUPTI", "without"])
def test_a_good_timer_measures_every_known_time(calibration, taken):
    if CUPTI not in taken:
        spins = {ns: replace(probe, cupti_us=[]) for ns, probe in calibration.spins.items()}
        own = calibration.own | {"chain": replace(calibration.own["chain"], cupti_us=[])}
        calibration = replace(calibration, spins=spins, own=own)
        assert estimators.constant_us(CUPTI, calibration) is None
    residuals = estimators.residuals(calibration)
    assert len(residuals) == len(taken) * len(calibration.spins)
    assert {r.estimator for r in residuals} == set(taken)
    assert all(abs(r.error_us) < r.allowed_us for r in residuals)
    assert estimators.calibration_errors(calibration) == ()


@pytest.mark.parametrize(
    ("field", "ns", "off_us", "calibrated"),
    [
        ("graph_us", 2000, 0.03, True),
        ("graph_us", 2000, 0.07, False),
        ("graph_us", 20_000, 0.15, True),
        ("graph_us", 20_000, 0.3, False),
        ("stream_us", 2000, 0.07, True),
        ("stream_us", 2000, 0.13, False),
    ],
)
def test_missing_a_known_time_by_more_than_the_tolerance_is_an_error(calibration, field, ns, off_us, calibrated):
    spins = {**calibration.spins, ns: moved(calibration.spins[ns], **{field: off_us})}
    errors = estimators.calibration_errors(replace(calibration, spins=spins))
    assert (errors == ()) == calibrated
    if not calibrated:
        (error,) = errors
        name = {"graph_us": "graph slope", "stream_us": "queued events"}[field]
        assert error.startswith(f"{name}: a spin of {ns / 1000:.2f} us is measured +")


def test_one_odd_sample_of_six_moves_no_queued_time(calibration):
    """Of eight calls, which it would make 5 us longer."""
    cell = metrics(cupti=9.0)
    times = {calls: taken[:6] for calls, taken in cell.stream_us.items()}
    odd = times | {8: [times[8][0] + 40.0, *times[8][1:]]}
    usual, moved = (QUEUED_EVENTS.value_us(replace(cell, stream_us=one)) for one in (times, odd))
    assert moved == pytest.approx(usual, abs=0.05)


def test_the_constants_are_those_of_a_launch_of_the_chain(calibration):
    assert estimators.constant_us(QUEUED_EVENTS, calibration) == pytest.approx(-0.85, abs=0.01)
    assert estimators.constant_us(CUPTI, calibration) == pytest.approx(0.05, abs=0.01)
    cold = factory.cold(calibration)
    assert estimators.constant_us(QUEUED_EVENTS, cold) == pytest.approx(-0.85, abs=0.01)
    assert estimators.constant_us(CUPTI, cold) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(
    ("values", "confirmed"),
    [
        ({}, True),
        ({"graph": 5.0, "events": 5.3, "cupti": 4.7}, False),
        ({"graph": 5.0, "events": 5.18, "cupti": 9.0}, True),  # 3.6 %
        ({"graph": 5.0, "events": 5.22, "cupti": 9.0}, False),  # 4.4 %
        ({"graph": 1.0, "events": 2.0, "cupti": 0.92}, True),  # 8 %, but less than 100 ns
        ({"graph": 1.0, "events": 2.0, "cupti": 0.88}, False),
        ({"graph": 30.0, "events": 31.5, "cupti": 40.0, "launches": 20}, False),
    ],
)
def test_a_time_is_confirmed_by_one_estimator_within_4_percent_or_100_ns(calibration, values, confirmed):
    words = estimators.doubt(metrics(**values), calibration)
    assert (words is None) == estimators.estimates(metrics(**values), calibration).is_confirmed == confirmed
    if words:
        assert f"graph slope {significant(values['graph'], 4)}, " in words
        assert "queued events" in words
        assert "CUPTI" in words


@pytest.mark.parametrize("field", ["cupti_us", "stream_us"])
def test_with_one_other_estimator_a_time_is_confirmed_or_not_but_never_doubted(calibration, field):
    """Of a cell that is not audited again, or with too many launches for a queue."""
    for cell, confirmed in ((metrics(), True), (metrics(graph=10.0), False)):
        found = estimators.estimates(replace(cell, **{field: type(getattr(cell, field))()}), calibration)
        assert (found.is_confirmed, found.is_doubted) == (confirmed, False)


@pytest.mark.parametrize("missing", [{"launches": None}, {"graph_us": {}}])
def test_nothing_to_compare(calibration, missing):
    assert estimators.estimates(replace(metrics(), **missing), calibration) is None
    assert estimators.estimates(metrics(), None) is None
    assert estimators.doubt(None, calibration) is None


def test_in_another_cache_state_queued_calls_get_what_the_state_adds(calibration):
    """The replay of the one-copy graph takes 2 us more than hot. CUPTI sees that, queued events are always hot."""
    replay_us = float(np.median(metrics().graph_us[1]))
    cell = metrics(graph=5.0, events=5.0, cupti=7.0, state_us=[replay_us + 2.0] * 20)
    estimates = estimators.estimates(cell, calibration)
    assert estimates.gpu_us == pytest.approx(7.0, abs=0.05)
    assert list(estimates.others.values()) == pytest.approx([7.0, 7.0], abs=0.05)


@pytest.mark.parametrize(
    ("cache", "cycles", "words"),
    [
        ("hot", {"l2": 290, "memory": 690, "hot": 600}, "hot not confirmed: a hop takes 600 cycles, 290 are expected"),
        ("hot", {"l2": 300, "memory": 700, "hot": 436}, None),  # within 35 % of the difference
        ("hot", {"l2": 300, "memory": 700, "hot": 444}, "hot not confirmed"),
        ("cold", {"l2": 300, "memory": 700, "cold": 564}, None),
        ("cold", {"l2": 300, "memory": 700, "cold": 556}, "cold not confirmed"),
        ("serving", {"l2": 290, "memory": 690, "serving": 330, "serving_table": 300}, "serving not confirmed"),
        ("hot", {"l2": 300, "memory": 388}, "too close to tell them apart"),  # 30 % more at least
        ("hot", {"l2": 300, "memory": 392}, None),
        ("hot", {}, None),
    ],
)
def test_the_pointer_chase_confirms_the_cache_state(calibration, cache, cycles, words):
    chased = replace(calibration, chase_cycles={state: [float(value)] * 5 for state, value in cycles.items()})
    errors = estimators.calibration_errors(chased, cache)
    assert (errors == ()) == (words is None)
    assert words is None or words in errors[0]


def test_the_event_quantum_is_the_smallest_step_between_two_times(calibration):
    assert estimators.event_quantum_us(calibration) == pytest.approx(0.032)
    assert estimators.event_quantum_us(replace(calibration, empty_pair_us=[1.3] * 5)) == 0.0
