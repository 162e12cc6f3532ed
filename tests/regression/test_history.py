"""Times over commits: which changes are found, which are not, and what is no history."""

import math

import numpy as np
import pytest

from spec_decode_bench.harness.records.schema import Checkout, RecordError
from spec_decode_bench.regression.history import history, partition
from tests import factory, histories

NAN = math.nan


def changes_of(times):
    """(variant, commit, change in per cent) of every change, once for each variant."""
    return {
        (series.cell.variant, times.states[change.at].name, round((change.ratio - 1) * 100))
        for series in times.series
        for change in series.changes
    }


def test_steps_are_found_where_they_are():
    levels = {"cuda_fused": [5.0] * 4 + [5.2] * 5 + [4.68] * 3, "triton_fused": [6.0] * 12}
    times = history(histories.runs(levels))
    assert changes_of(times) == {("cuda_fused", "000000e", 4), ("cuda_fused", "0000013", -10)}
    (series, *_) = times.changed
    assert series.level_us[0] == pytest.approx(series.level_us[3])
    assert len(set(series.level_us)) == 3
    assert series.changes[0].head_us == series.changes[1].base_us
    assert times.blind is None


def test_noise_has_no_changes():
    """Of 3,000 series without one, at most a few in a thousand have a change; without the threshold, too."""
    rng = np.random.default_rng(1)
    penalty = 2 * math.log(300 * 20)
    values = 0.0025 * rng.standard_normal((3000, 20))
    wrong = sum(len(partition(series, np.ones(20), 0.0025**2, penalty)) > 1 for series in values)
    assert wrong <= 6


def test_the_partition_is_the_cheapest_of_all():
    rng = np.random.default_rng(2)
    values, weights, variance, penalty = rng.standard_normal(8) + np.repeat([0, 3], 4), rng.integers(1, 5, 8), 0.5, 4.0

    def cost(starts):
        ends = [*starts[1:], 8]
        stretches = [(values[a:b], weights[a:b]) for a, b in zip(starts, ends, strict=True)]
        spread = sum(float((w * (v - np.average(v, weights=w)) ** 2).sum()) for v, w in stretches)
        return spread / variance + penalty * (len(starts) - 1)

    every = [[0, *(i + 1 for i in range(7) if mask >> i & 1)] for mask in range(2**7)]
    assert partition(values, weights, variance, penalty) == min(every, key=cost)


def test_small_changes_are_joined():
    levels = {"cuda_fused": [5.0] * 6 + [5.05] * 6 + [5.3] * 6}
    times = history(histories.runs(levels, noise=0.0005))
    assert changes_of(times) == {("cuda_fused", "0000016", 5)}
    assert len(changes_of(history(histories.runs(levels, noise=0.0005), threshold=0.005))) == 2


def test_two_commits_need_several_processes():
    levels = {name: [5.0, 5.2] for name in ("cuda_fused", "triton_fused", "op_chain")}
    assert {variant for variant, _, _ in changes_of(history(histories.runs(levels, processes=3)))} == set(levels)
    alone = history(histories.runs(levels))
    assert changes_of(alone) == set()
    assert "record two processes of each commit" in alone.blind


def test_commits_without_the_cell_are_passed_over():
    levels = {"cuda_fused": [5.0, 5.0, NAN, 5.0, NAN, 5.5, 5.5, 5.5], "new": [NAN] * 7 + [1.0], "triton": [6.0] * 8}
    times = history(histories.runs(levels))
    assert changes_of(times) == {("cuda_fused", "000000f", 10)}
    assert {series.cell.variant for series in times.series} == {"cuda_fused", "triton"}
    series = times.changed[0]
    assert [math.isnan(level) for level in series.level_us] == [place in (2, 4) for place in range(8)]


@pytest.mark.parametrize(
    ("changes", "names", "differs"),
    [
        ([{"torch": "2.11"}, {"torch": "2.12"}], ["000000a"] * 2, ("torch 2.11 → 2.12",)),
        ([{"packages": {"vllm": one}} for one in ("0.33.0", "0.9.2")], ["vLLM 0.9.2", "vLLM 0.33.0"], ()),
        ([{}, {"commit": "000000bfff"}], ["000000a", "000000b"], ()),
    ],
    ids=["other software", "releases of a package in their order", "commits"],
)
def test_a_state_is_a_commit_of_the_suite_or_of_a_package_with_other_software(changes, names, differs):
    environments = {
        place: factory.gpu_environment(**({"commit": "000000afff"} | changes[place // 4])) for place in range(8)
    }
    runs = histories.runs({"a": [5.0] * 4 + [5.5] * 4, "b": [5.0] * 8}, 1, environments)
    for times in (history(runs), history(runs[::-1])):
        assert [(state.name, len(state.runs)) for state in times.states] == [(name, 4) for name in names]
        assert times.states[1].differs == differs
        assert {change[0] for change in changes_of(times)} == {"a"}


def test_of_one_commit_the_checkouts_of_a_package_are_the_states():
    """In the order of their commits. Records before there were checkouts, or of a release, are in that of the runs."""
    checkouts = [Checkout("a" * 40, "2026-01-02T23:30:00+00:00"), Checkout("b" * 40, "2026-01-03T01:00:00+02:00")]
    environments = {
        place: factory.gpu_environment(commit="000000afff", packages={"vllm": "unknown"}, checkouts={"vllm": checkout})
        for place, checkout in enumerate(checkouts)
    }
    states = history(histories.runs({"a": [5.0, 5.5]}, 2, environments)).states
    assert [(state.name, state.differs) for state in states] == [("vLLM bbbbbbb", ()), ("vLLM aaaaaaa", ())]
    environments[1] = factory.gpu_environment(commit="000000afff", packages={"vllm": "0.33.0"})
    states = history(histories.runs({"a": [5.0, 5.5]}, 2, environments)).states
    assert [state.name for state in states] == ["vLLM aaaaaaa", "vLLM 0.33.0"]
    environments[1] = factory.gpu_environment(commit="000000bfff", packages={"vllm": "0.33.0"})
    states = history(histories.runs({"a": [5.0, 5.5]}, 2, environments)).states
    assert [state.name for state in states] == ["000000a", "000000b"]
    assert "packages.vllm unknown → 0.33.0" in states[1].differs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "a history is of one seed"),
        ({"environment": factory.gpu_environment("NVIDIA B200")}, "has device model NVIDIA H200, test.jsonl has"),
        ({"config": {"name": "mtp3", "measure": {"cache": "cold"}}}, "has cache state hot, test.jsonl has cold"),
    ],
    ids=["seed", "GPU", "cache"],
)
def test_what_is_no_one_history(changes, message):
    runs = histories.runs({"a": [5.0] * 3})
    runs[2] = factory.with_header(runs[2], **changes)
    with pytest.raises(RecordError, match=message):
        history(runs)
