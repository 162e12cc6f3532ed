"""Slopes, intervals and the copy bound recover the values that samples were made from."""

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats as scipy_stats

from spec_decode_bench.harness.analysis import stats
from spec_decode_bench.harness.records.schema import KernelTimes
from tests import factory


def test_slopes_are_those_of_scipy_round_by_round():
    """Theil-Sen, of three, four and five numbers of copies."""
    for copies in ([1, 2, 4], [1, 2, 4, 8], [1, 2, 4, 8, 16]):
        graph_us = {k: np.random.default_rng(k).normal(1 + 5 * k, 1.0, 40).tolist() for k in copies}
        expected = [scipy_stats.theilslopes([graph_us[k][i] for k in copies], copies).slope for i in range(40)]
        assert stats.slopes(graph_us) == pytest.approx(expected, rel=1e-12)


def test_rounds_cut_short_and_a_single_graph():
    assert stats.slopes({1: [4.0, 4.0, 4.0], 2: [6.0, 6.0]}) == pytest.approx([2.0, 2.0])
    assert stats.slopes({4: [10.0, 11.0]}) == stats.slopes({}) == []
    bent = {k: [1.0 * k + (10.0 if k == 16 else 0.0)] for k in factory.COPIES}
    assert stats.fit(bent).residual > 5


def test_fit_and_interval_are_those_of_scipy():
    rng = np.random.default_rng(3)
    graph_us = {k: rng.normal(1 + 5 * k, 1.0, 15).tolist() for k in factory.COPIES}
    line = scipy_stats.theilslopes([np.median(graph_us[k]) for k in factory.COPIES], factory.COPIES)
    fit = stats.fit(graph_us)
    assert (fit.slope, fit.overhead) == pytest.approx((line.slope, line.intercept), rel=1e-12)
    values, rng = rng.normal(5, 1, 17), np.random.default_rng(4)
    options = {"n_resamples": stats.RESAMPLES, "method": "percentile", "rng": rng}
    bounds = scipy_stats.bootstrap((values,), np.median, **options).confidence_interval
    interval = stats.median_interval(values, seed=4)
    assert (interval.low, interval.high) == pytest.approx((bounds.low, bounds.high), rel=1e-12)


def test_an_interval_and_a_median_only_of_what_passed_and_was_timed():
    timed = factory.cell("o", "v", {"n": 1}, gpu=5.0)
    assert stats.interval(timed, "gpu_us").median == pytest.approx(5.0, rel=0.01)
    for figure in stats.GPU_METRICS:
        assert stats.median_us(timed, figure) == stats.interval(timed, figure).median
    for cell, figure in ((timed, "cpu_us"), (replace(timed, status="failed"), "host_us")):
        assert stats.interval(cell, figure) is stats.median_us(cell, figure) is None
    noise = factory.with_metrics(timed, graph_us={1: [3.0, 3.1], 2: [3.0, 3.1]})
    assert (stats.median_us(noise, "gpu_us"), stats.interval(noise, "gpu_us").median) == (None, 0.0)
    assert stats.median_us(factory.with_metrics(timed, graph_us={1: [], 2: []}), "gpu_us") is None


def test_a_process_is_observed_by_a_mean_without_a_tenth_at_either_end():
    two_times = [46.0] * 11 + [52.0] * 7
    timed = factory.with_metrics(factory.cell("o", "v", {"n": 1}, gpu=5.0), host_us=[0.5, *two_times, 900.0])
    assert stats.process_us(timed, "host_us") == pytest.approx((46 * 10 + 52 * 6) / 16)
    assert stats.process_us(replace(timed, status="failed"), "host_us") is None


def test_copy_bandwidth_counts_bytes_read_and_written():
    assert stats.copy_bandwidth(factory.calibration(np.random.default_rng(0))) == pytest.approx(2 * 2**30 / 500)


def with_copies(**shapes_at):
    """A calibration whose copies of so many KiB take so many microseconds, by launch shape."""
    rng = np.random.default_rng(0)
    copies = {
        int(name.removeprefix("k")) * 1024: {
            f"shape {i}": KernelTimes(graph_us=factory.graph_us(us, rng, noise=0.0)) for i, us in enumerate(times)
        }
        for name, times in shapes_at.items()
    }
    return replace(factory.calibration(rng), copies=copies)


def test_the_copy_bound_is_the_fastest_copy_of_as_many_bytes():
    calibration = with_copies(k4=(1.0, 1.2), k12=(2.5, 2.0), k16=(3.0, 1.5), k32=(4.0,))
    expected = {0: 1.0, 4: 1.0, 8: 1.25, 12: 1.5, 16: 1.5, 24: 2.75, 32: 4.0, 64: 8.0}
    assert {kib: stats.copy_bound_us(calibration, kib * 1024) for kib in expected} == pytest.approx(expected)


@pytest.mark.parametrize(("times", "expected"), [((1.0, 2.0, 10.0, 20.0), 5.0), ((1.0, 4.0, 5.0, 6.0), 4.5)])
def test_between_sizes_the_copy_bound_lies_on_or_below_the_curve(times, expected):
    sizes = dict(zip(("k16", "k32", "k48", "k64"), ((us,) for us in times), strict=True))
    assert stats.copy_bound_us(with_copies(**sizes), 40 * 1024) == pytest.approx(expected)


def test_one_odd_replay_in_a_cold_cache_is_not_the_copy_bound():
    calibration = with_copies(k4=(1.5,))
    (copy,) = calibration.copies[4096].values()
    rounds = len(copy.graph_us[1])
    cold = replace(copy, state_us=[copy.graph_us[1][0] + added for added in (-2.5, *[0.7] * (rounds - 1))])
    calibration = replace(calibration, copies=calibration.copies | {4096: {"one": cold}})
    assert stats.copy_bound_us(calibration, 4096) == pytest.approx(2.2)
