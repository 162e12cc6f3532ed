"""The ruler against known times, and three estimators against each other, on records made up for it."""

import numpy as np
import pytest
from msgspec import structs

from harness.analysis import estimators
from harness.records.schema import Metrics
from harness.wording import significant
from tests import factory


@pytest.fixture
def calibration():
    return factory.calibration(np.random.default_rng(0))


def metrics(graph=5.0, events=5.0, cupti=5.0, launches=1, **more):
    """Values of in-graph time; the constants of factory.calibration are put on."""
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
    """A probe of which one estimator reads more."""
    series = {
        name: {k: [us + k * by for us in times] for k, times in getattr(probe, name).items()}
        for name, by in shift.items()
    }
    return structs.replace(probe, **series)


def test_a_good_ruler_recovers_every_known_time(calibration):
    found = estimators.residuals(calibration)
    assert len(found) == 3 * len(calibration.spins)
    assert {r.estimator for r in found} == set(estimators.ESTIMATORS)
    assert all(abs(r.error_us) < r.allowed_us for r in found)
    assert estimators.calibration_errors(calibration) == ()


@pytest.mark.parametrize(
    ("ns", "off_us", "calibrated"),
    [(2000, 0.03, True), (2000, 0.07, False), (20_000, 0.15, True), (20_000, 0.3, False)],
)
def test_a_known_time_missed_by_more_than_50_ns_and_1_percent_is_a_doubt(calibration, ns, off_us, calibrated):
    spins = {**calibration.spins, ns: moved(calibration.spins[ns], graph_us=off_us)}
    calibration_errors = estimators.calibration_errors(structs.replace(calibration, spins=spins))
    assert (calibration_errors == ()) == calibrated
    if not calibrated:
        assert len(calibration_errors) == 1
        assert calibration_errors[0].startswith(f"graph: a spin of {ns / 1000:.2f} us comes out +")


def test_without_cupti_two_estimators_are_judged(calibration):
    spins = {ns: structs.replace(probe, cupti_us=[]) for ns, probe in calibration.spins.items()}
    assert {r.estimator for r in estimators.residuals(structs.replace(calibration, spins=spins))} == {"graph", "events"}
    assert set(estimators.constants(structs.replace(calibration, spins=spins))) == {"events"}


def test_constants_bring_the_estimators_to_in_graph_time(calibration):
    constants = estimators.constants(calibration)
    assert constants["events"].mean_us == pytest.approx(-0.85, abs=0.01)
    assert constants["cupti"].mean_us == pytest.approx(0.05, abs=0.01)
    assert all(constant.spread_us < 0.02 for constant in constants.values())


def test_the_constant_is_one_per_launch(calibration):
    """A chain of five launches has five times the constant."""
    chain = moved(calibration.own["operator"], stream_us=4 * 0.85)
    chain = structs.replace(chain, cupti_us=[us - 4 * 0.05 for us in chain.cupti_us], launches=5)
    with_chain = estimators.constants(structs.replace(calibration, own={**calibration.own, "chain": chain}))
    assert with_chain["events"].mean_us == pytest.approx(-0.85, abs=0.01)
    assert with_chain["cupti"].mean_us == pytest.approx(0.05, abs=0.01)
    assert with_chain["events"].spread_us < 0.02


def test_in_another_cache_state_the_first_launch_of_a_call_has_a_constant_of_its_own(calibration):
    """600 ns for the first launch, 200 for each further one: a chain of five misses 1.4 us, one of twenty-five 5.4,
    not 15.
    """
    cold = factory.cold(calibration)
    found = estimators.constants(cold)["cupti"]
    assert found.mean_us == pytest.approx(0.2, abs=0.02)
    assert [found.of(n) for n in (1, 5, 25)] == pytest.approx([0.6, 1.4, 5.4], abs=0.1)
    assert found.spread_us < 0.02
    assert estimators.constants(cold)["events"].once_us == 0


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
def test_a_cell_is_untrusted_beyond_3_percent_and_100_ns(calibration, values, agree):
    words = estimators.untrusted(metrics(**values), calibration)
    assert (words is None) == agree
    if words:
        assert f"graph slope {significant(values['graph'], 4)}, " in words
        assert "queued events" in words
        assert "CUPTI" in words


def test_no_estimator_is_surer_of_a_cell_than_of_the_rulers_own_kernels(calibration):
    """One own kernel of which CUPTI says 100 ns less than of the others: a chain of ten may lie off by ten times
    that.
    """
    odd = structs.replace(calibration.own["null"], cupti_us=[us - 0.125 for us in calibration.own["null"].cupti_us])
    unsure = structs.replace(calibration, own={**calibration.own, "null": odd})
    spread = estimators.constants(unsure)["cupti"].spread_us
    assert spread == pytest.approx(0.1, abs=0.01)
    cell = metrics(graph=20.0, events=20.0, cupti=19.1, launches=10)
    assert estimators.untrusted(cell, calibration)
    assert estimators.untrusted(cell, unsure) is None


@pytest.mark.parametrize("missing", [{"launches": None}, {"graph_us": {}}])
def test_nothing_to_set_against_each_other(calibration, missing):
    assert estimators.estimates(structs.replace(metrics(), **missing), calibration) is None
    assert estimators.estimates(metrics(), None) is None
    assert estimators.untrusted(None, calibration) is None


def test_in_another_cache_state_queued_calls_get_what_the_state_adds(calibration):
    """The graph's one-copy replay takes 2 us more than hot; queued events know nothing of it, CUPTI looks in the
    state.
    """
    one = float(np.median(metrics().graph_us[1]))
    cell = metrics(graph=5.0, events=5.0, cupti=7.0, state_us=[one + 2.0] * 20)
    found = estimators.estimates(cell, calibration)
    assert found.graph == pytest.approx(7.0, abs=0.05)
    assert found.others["events"][0] == pytest.approx(7.0, abs=0.05)
    assert found.agree


@pytest.mark.parametrize(
    ("cache", "cycles", "words"),
    [
        ("hot", {"l2": 290, "memory": 690, "hot": 300}, None),
        (
            "hot",
            {"l2": 290, "memory": 690, "hot": 600},
            "cache state hot unproved: a hop takes 600 cycles, 290 are expected",
        ),
        ("cold", {"l2": 290, "memory": 690, "cold": 680}, None),
        ("cold", {"l2": 290, "memory": 690, "cold": 310}, "cache state cold unproved"),
        ("serving", {"l2": 290, "memory": 690, "serving": 330, "serving_table": 690}, None),
        ("serving", {"l2": 290, "memory": 690, "serving": 330, "serving_table": 300}, "cache state serving unproved"),
        ("hot", {"l2": 290, "memory": 310, "hot": 290}, "too close to tell them apart"),
        ("hot", {}, None),
    ],
)
def test_a_cache_state_is_proved_by_the_pointer_chase(calibration, cache, cycles, words):
    chased = structs.replace(calibration, chase_cycles={state: [float(value)] * 5 for state, value in cycles.items()})
    calibration_errors = estimators.calibration_errors(chased, cache)
    assert (calibration_errors == ()) == (words is None)
    assert words is None or words in calibration_errors[0]


def test_the_event_quantum_is_the_finest_step_seen(calibration):
    assert estimators.event_quantum_us(calibration) == pytest.approx(0.032)
    assert estimators.event_quantum_us(structs.replace(calibration, empty_pair_us=[1.3] * 5)) == 0.0
