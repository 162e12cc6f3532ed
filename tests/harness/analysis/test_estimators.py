"""Calibration on known times, and agreement of the estimators on cells, on made-up records."""

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.analysis import estimators
from spec_decode_bench.harness.analysis.estimators import CUPTI, ESTIMATORS, GRAPH_SLOPE, QUEUED_EVENTS
from spec_decode_bench.harness.records.schema import Metrics
from spec_decode_bench.harness.wording import significant
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


def test_a_good_timer_measures_every_known_time(calibration):
    residuals = estimators.residuals(calibration)
    assert len(residuals) == 3 * len(calibration.spins)
    assert {r.estimator for r in residuals} == set(ESTIMATORS)
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


def test_without_cupti_two_estimators_are_judged(calibration):
    spins = {ns: replace(probe, cupti_us=[]) for ns, probe in calibration.spins.items()}
    without = replace(calibration, spins=spins)
    assert {r.estimator for r in estimators.residuals(without)} == {GRAPH_SLOPE, QUEUED_EVENTS}
    assert estimators.constant_of(QUEUED_EVENTS, without, large=True)
    assert estimators.constant_of(CUPTI, without, large=True) is None


def test_constants_bring_the_estimators_to_time_in_a_graph(calibration):
    constants = {estimator: estimators.constant_of(estimator, calibration, large=True) for estimator in ESTIMATORS[1:]}
    assert constants[QUEUED_EVENTS].mean_us == pytest.approx(-0.85, abs=0.01)
    assert constants[CUPTI].mean_us == pytest.approx(0.05, abs=0.01)
    assert all(constant.spread_us < 0.02 for constant in constants.values())


def test_the_constant_is_one_per_launch(calibration):
    """A chain of five launches has five times the constant."""
    chain = moved(calibration.own["operator"], stream_us=4 * 0.85)
    chain = replace(chain, cupti_us=[us - 4 * 0.05 for us in chain.cupti_us], launches=5)
    calibration = replace(calibration, own={**calibration.own, "chain": chain})
    with_chain = {estimator: estimators.constant_of(estimator, calibration, large=True) for estimator in ESTIMATORS[1:]}
    assert with_chain[QUEUED_EVENTS].mean_us == pytest.approx(-0.85, abs=0.01)
    assert with_chain[CUPTI].mean_us == pytest.approx(0.05, abs=0.01)
    assert with_chain[QUEUED_EVENTS].spread_us < 0.02


def test_in_another_cache_state_the_first_launch_of_a_call_has_a_constant_of_its_own(calibration):
    """600 ns for the first launch, 200 for each further one: 1.4 us for a chain of 5, 5.4 us for one of 25."""
    cold = factory.cold(calibration)
    constant = estimators.constant_of(CUPTI, cold, large=True)
    assert constant.mean_us == pytest.approx(0.2, abs=0.02)
    assert [constant.of(n) for n in (1, 5, 25)] == [pytest.approx((us, us), abs=0.1) for us in (0.6, 1.4, 5.4)]
    assert constant.spread_us < 0.02
    assert estimators.constant_of(QUEUED_EVENTS, cold, large=True).once_us == 0


@pytest.mark.parametrize(
    ("values", "agree"),
    [
        ({}, True),
        ({"graph": 5.0, "events": 5.14}, True),  # 2.8 %
        ({"graph": 5.0, "events": 5.2}, False),
        ({"graph": 5.0, "cupti": 4.8}, False),
        ({"graph": 1.0, "events": 1.09, "cupti": 1.0}, True),  # 9 %, but less than 100 ns
        ({"graph": 1.0, "events": 1.0, "cupti": 0.88}, False),
        ({"graph": 30.0, "events": 30.5, "cupti": 30.8, "launches": 20}, True),
        ({"graph": 30.0, "events": 30.5, "cupti": 31.5, "launches": 20}, False),
    ],
)
def test_the_estimators_disagree_beyond_3_percent_and_100_ns(calibration, values, agree):
    words = estimators.disagreement(metrics(**values), calibration)
    assert (words is None) == agree
    if words:
        assert f"graph slope {significant(values['graph'], 4)}, " in words
        assert "queued events" in words
        assert "CUPTI" in words


def test_the_spread_of_a_constant_limits_what_counts_as_disagreement(calibration):
    """CUPTI reads 100 ns less of one calibration kernel than of the others, so a chain of ten may be off by ten times
    that.
    """
    odd = replace(calibration.own["null"], cupti_us=[us - 0.125 for us in calibration.own["null"].cupti_us])
    unsure = replace(calibration, own={**calibration.own, "null": odd})
    spread = estimators.constant_of(CUPTI, unsure, large=True).spread_us
    assert spread == pytest.approx(0.1, abs=0.01)
    cell = metrics(graph=20.0, events=20.0, cupti=19.1, launches=10)
    assert estimators.disagreement(cell, calibration)
    assert estimators.disagreement(cell, unsure) is None


def test_kernels_that_move_megabytes_count_for_calls_that_do(calibration):
    wide = calibration.own["wide_copy"]
    wide = replace(wide, cupti_us=[us - 0.3 for us in wide.cupti_us], bytes_moved=2**20)
    with_wide = replace(calibration, own={**calibration.own, "wide_copy": wide})
    spread = {large: estimators.constant_of(CUPTI, with_wide, large).spread_us for large in (False, True)}
    assert spread[False] < 0.02
    assert spread[True] == pytest.approx(0.24, abs=0.02)
    cell = metrics(graph=5.0, cupti=4.75)
    assert estimators.disagreement(replace(cell, bytes_moved=2**19), with_wide)
    assert estimators.disagreement(replace(cell, bytes_moved=2**20), with_wide) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"uses_bus": True}, "host memory"), ({"bytes_moved": 30 << 20}, "half of the L2"), ({"bytes_moved": 9}, "")],
)
def test_a_disagreement_has_its_reason(calibration, changes, reason):
    words = estimators.disagreement(replace(metrics(graph=5.0, cupti=4.8), **changes), calibration, 50 << 20)
    values, _, why = words.partition(" us (")
    assert reason in why
    assert bool(reason) == bool(why)
    assert "CUPTI" in values


@pytest.mark.parametrize("missing", [{"launches": None}, {"graph_us": {}}])
def test_nothing_to_compare(calibration, missing):
    assert estimators.estimates(replace(metrics(), **missing), calibration) is None
    assert estimators.estimates(metrics(), None) is None
    assert estimators.disagreement(None, calibration) is None


def test_in_another_cache_state_queued_calls_get_what_the_state_adds(calibration):
    """The replay of the one-copy graph takes 2 us more than hot. CUPTI sees that, queued events are always hot."""
    replay_us = float(np.median(metrics().graph_us[1]))
    cell = metrics(graph=5.0, events=5.0, cupti=7.0, state_us=[replay_us + 2.0] * 20)
    estimates = estimators.estimates(cell, calibration)
    assert estimates.graph == pytest.approx(7.0, abs=0.05)
    assert estimates.others[QUEUED_EVENTS][0] == pytest.approx(7.0, abs=0.05)
    assert estimates.agree


@pytest.mark.parametrize(
    ("cache", "cycles", "words"),
    [
        ("hot", {"l2": 290, "memory": 690, "hot": 300}, None),
        (
            "hot",
            {"l2": 290, "memory": 690, "hot": 600},
            "cache state hot not confirmed: a hop takes 600 cycles, 290 are expected",
        ),
        ("cold", {"l2": 290, "memory": 690, "cold": 680}, None),
        ("cold", {"l2": 290, "memory": 690, "cold": 310}, "cache state cold not confirmed"),
        ("serving", {"l2": 290, "memory": 690, "serving": 330, "serving_table": 690}, None),
        ("serving", {"l2": 290, "memory": 690, "serving": 330, "serving_table": 300}, "serving not confirmed"),
        ("hot", {"l2": 290, "memory": 310, "hot": 290}, "too close to tell them apart"),
        ("hot", {}, None),
    ],
)
def test_the_pointer_chase_confirms_the_cache_state(calibration, cache, cycles, words):
    chased = replace(calibration, chase_cycles={state: [float(value)] * 5 for state, value in cycles.items()})
    errors = estimators.calibration_errors(chased, cache)
    assert (errors == ()) == (words is None)
    assert words is None or words in errors[0]


@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize(("share", "confirmed"), [(0.34, True), (0.36, False)])
def test_a_chase_comes_within_35_per_cent_of_its_level(calibration, state, share, confirmed):
    hop = 300 + 400 * share if state == "hot" else 700 - 400 * share
    cycles = {"l2": [300.0], "memory": [700.0], state: [hop]}
    assert (estimators.calibration_errors(replace(calibration, chase_cycles=cycles), state) == ()) is confirmed


@pytest.mark.parametrize(("memory", "confirmed"), [(388.0, False), (392.0, True)])
def test_a_hop_in_memory_takes_30_per_cent_more_than_one_in_the_l2(calibration, memory, confirmed):
    chased = replace(calibration, chase_cycles={"l2": [300.0], "memory": [memory]})
    assert (estimators.calibration_errors(chased) == ()) is confirmed


def test_the_event_quantum_is_the_smallest_step_between_two_times(calibration):
    assert estimators.event_quantum_us(calibration) == pytest.approx(0.032)
    assert estimators.event_quantum_us(replace(calibration, empty_pair_us=[1.3] * 5)) == 0.0


def test_the_gap_between_launches_in_a_stream_that_grows_with_their_blocks_is_calibrated(calibration):
    """By 6 ns times the root of the blocks: 0.27 us at 2,048 of them, which no kernel of few blocks has, and not every
    one of many.
    """

    def grid(blocks, launches=1):
        kernel = moved(calibration.own["operator"], stream_us=0.006 * blocks**0.5 if launches == 1 else 4 * 0.85)
        cupti_us = [us - (launches - 1) * 0.05 for us in kernel.cupti_us]
        return replace(kernel, cupti_us=cupti_us, launches=launches, blocks=blocks)

    own = {name: replace(kernel, blocks=1) for name, kernel in calibration.own.items()}
    own |= {f"grid_{blocks}": grid(blocks) for blocks in (512, 2048)} | {"wide_chain": grid(20_000, launches=5)}
    spins = {ns: replace(spin, blocks=1) for ns, spin in calibration.spins.items()}
    with_grids = replace(calibration, own=own, spins=spins)
    few, many = (estimators.constant_of(QUEUED_EVENTS, with_grids, large) for large in (False, True))
    assert few.of(1, 100) == pytest.approx((-0.85, -0.85), abs=0.01)
    assert many.of(1, 512) == pytest.approx((-0.99, -0.85), abs=0.02)
    assert many.of(1, 2048) == pytest.approx((-1.12, -0.85), abs=0.02)
    assert many.of(5, 20_000) == pytest.approx((-4.25, -4.25), abs=0.05)
    assert max(few.spread_us, many.spread_us) < 0.02
    cell = replace(metrics(graph=2.0, events=2.0 + 0.006 * 1024**0.5, cupti=2.0), blocks=1024)
    assert estimators.disagreement(cell, with_grids) is None
    assert estimators.disagreement(replace(cell, blocks=1), with_grids)
    assert estimators.disagreement(replace(metrics(graph=2.0, events=2.0, cupti=2.0), blocks=1024), with_grids) is None
    assert estimators.disagreement(replace(metrics(graph=2.0, events=1.8, cupti=2.0), blocks=1024), with_grids)
    assert estimators.disagreement(replace(metrics(graph=2.0, events=2.4, cupti=2.0), blocks=1024), with_grids)
