"""Moderated variances and joint verdicts, on noise whose law is known."""

import numpy as np
import pytest
import scipy.stats

from spec_decode_bench.harness.analysis.moderated import judge, moderate
from tests.tier import few

SIZE = np.linspace(0, 5, 60)


def made(rng, comparisons, cells=60, df=6, df0=None, level=0.003):
    """Sample variances, the true ones, which fall with the size and are scattered around that where df0 is given, and
    what is made of them.
    """
    usual = (level * np.exp(-0.4 * SIZE[:cells])) ** 2
    true = usual * (df0 / rng.chisquare(df0, (comparisons, cells)) if df0 else np.ones((comparisons, cells)))
    variance = true * rng.chisquare(df, true.shape) / df
    return variance, true, moderate(variance, np.array(float(df)), np.broadcast_to(SIZE, variance.shape))


@pytest.mark.parametrize("df", [4, 6, 14])
def test_where_all_cells_follow_the_trend_the_prior_is_known(df):
    """The variance of a cell becomes that of its size, with many more degrees of freedom than its own."""
    variance, true, spread = made(np.random.default_rng(0), 200, df=df)
    error = np.abs(np.log(spread.variance / true))
    assert np.median(error) < 0.4 * np.median(np.abs(np.log(variance / true)))
    assert np.median(spread.df) > df + 10


@pytest.mark.parametrize("df0", [2, 4, 10])
def test_the_prior_degrees_of_freedom_are_found_again(df0):
    _, _, spread = made(np.random.default_rng(0), 400, df0=df0)
    assert np.median(spread.df) - 6 == pytest.approx(df0, rel=0.5)


def test_a_statistic_of_moderated_variances_follows_student():
    rng = np.random.default_rng(0)
    _, true, spread = made(rng, 400, df0=8)
    statistic = np.sqrt(true) * rng.standard_normal(true.shape) / np.sqrt(spread.variance)
    p = 2 * scipy.stats.t.sf(np.abs(statistic), spread.df)
    for level in (0.1, 0.01):
        assert (p < level).mean() == pytest.approx(level, rel=0.3)
    assert (p < 0.001).mean() < 0.002


@pytest.mark.parametrize("df0", [None, 3, 8, 20])
def test_the_chance_of_any_false_alarm_is_the_stated_one_for_any_prior(df0):
    rng = np.random.default_rng(0)
    _, true, spread = made(rng, 2000, df0=df0)
    judgement = judge(np.sqrt(true / 2) * rng.standard_normal(true.shape), spread, np.array(0.5), 1e-9, 0.05, 0.01)
    assert judgement.slower.any(-1).mean() < 0.02


def test_a_cell_of_another_kind_keeps_its_variance_and_costs_the_others_nothing():
    rng = np.random.default_rng(0)
    variance, true, without = made(rng, 200)
    variance[:, [3, 30]] *= 200
    spread = moderate(variance, np.array(6.0), np.broadcast_to(SIZE, variance.shape))
    assert np.allclose(spread.variance[:, 3], variance[:, 3])
    assert (spread.df[:, [3, 30]] == 6).mean() > 0.98
    others = np.delete(np.arange(60), [3, 30])
    assert np.median(spread.df[:, others]) > 0.5 * np.median(without.df[:, others])
    assert np.median(np.abs(np.log(spread.variance / true))[:, others]) < 0.2


def test_without_processes_there_is_no_variance():
    spread = moderate(np.zeros(5), np.zeros(5), np.arange(5.0))
    assert np.isnan(spread.variance).all()
    judgement = judge(np.full(5, 0.5), spread, np.full(5, 2.0), 0.02, 0.05, 0.01)
    assert not (judgement.slower | judgement.faster | judgement.same).any()
    assert not judgement.power.any()


def judged(rng, comparisons, change, rate=0.01, level=0.003):
    _, true, spread = made(rng, comparisons, level=level)
    estimate = change + np.sqrt(true / 2) * rng.standard_normal(true.shape)
    return judge(estimate, spread, np.array(0.5), 1e-6, 0.05, rate)


def test_on_unchanged_code_any_cell_is_called_slower_at_the_stated_rate():
    """With a threshold of nothing, so that significance alone decides."""
    judgement = judged(np.random.default_rng(1), 4000, 0.0, rate=0.05)
    for called in (judgement.slower, judgement.faster):
        assert 0.03 < called.any(-1).mean() < 0.08


def test_false_discoveries_stay_below_the_rate_where_some_cells_changed():
    change = np.where(np.arange(60) % 4 == 0, 0.02, 0.0)
    judgement = judged(np.random.default_rng(1), 1000, change, rate=0.05)
    wrong = (judgement.slower & (change == 0)).sum(-1) / np.maximum(judgement.slower.sum(-1), 1)
    assert wrong.mean() < 0.07
    assert judgement.slower[:, change > 0].mean() > 0.95


def test_a_verdict_is_where_the_interval_lies():
    rng = np.random.default_rng(2)
    change = 0.03 * rng.standard_normal((50, 60))
    _, _, spread = made(rng, 50)
    judgement = judge(change, spread, np.array(0.5), 0.02, 0.05, 0.01)
    assert (judgement.slower == ((judgement.low > 0) & (change > np.log(1.02)))).all()
    assert (judgement.faster == ((judgement.high < 0) & (change < np.log(0.98)))).all()
    assert judgement.same.any()
    assert not (judgement.same & (judgement.slower | judgement.faster)).any()


@pytest.mark.parametrize("level", few([0.02, 0.004, 0.04], 1))
def test_the_power_that_is_stated_is_the_share_that_is_found(level):
    """One cell 5 % slower."""
    rng = np.random.default_rng(3)
    _, true, spread = made(rng, 4000, level=level)
    change = np.sqrt(true / 2) * rng.standard_normal(true.shape)
    cell = rng.integers(60, size=len(change))
    rows = np.arange(len(change))
    change[rows, cell] += np.log(1.05)
    judgement = judge(change, spread, np.array(0.5), 0.02, 0.05, 0.01)
    assert judgement.power[rows, cell].mean() == pytest.approx(judgement.slower[rows, cell].mean(), abs=0.05)


def test_many_comparisons_at_once_are_judged_as_one_by_one():
    rng = np.random.default_rng(4)
    variance, _, spread = made(rng, 5)
    change = 0.02 * rng.standard_normal(variance.shape)
    together = judge(change, spread, np.array(0.5), 0.02, 0.05, 0.01)
    for i in range(5):
        alone = judge(change[i], moderate(variance[i], np.array(6.0), SIZE), np.array(0.5), 0.02, 0.05, 0.01)
        assert np.allclose(alone.low, together.low[i])
        assert (alone.slower == together.slower[i]).all()
