"""Times over commits: which changes are found, which are not, and what is no history."""

import math

import numpy as np
import pytest

from spec_decode_bench.harness.records.schema import Checkout, RecordError
from spec_decode_bench.regression.history import history, partition
from tests import factory, histories

NAN = math.nan


def changes(times):
    """(variant, commit, change in per cent) of every change, once for each variant."""
    return {
        (series.cell.variant, times.states[change.at].name, round((change.ratio - 1) * 100))
        for series in times.series
        for change in series.changes
    }


def test_steps_are_found_where_they_are():
    levels = {"cuda_fused": [5.0] * 4 + [5.2] * 5 + [4.68] * 3, "triton_fused": [6.0] * 12}
    times = history(histories.runs(levels))
    assert changes(times) == {("cuda_fused", "000000e", 4), ("cuda_fused", "0000013", -10)}
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
    assert changes(times) == {("cuda_fused", "0000016", 5)}
    assert len(changes(history(histories.runs(levels, noise=0.0005), threshold=0.005))) == 2


def test_two_commits_need_several_processes():
    levels = {name: [5.0, 5.2] for name in ("cuda_fused", "triton_fused", "op_chain")}
    assert {variant for variant, _, _ in changes(history(histories.runs(levels, processes=3)))} == set(levels)
    alone = history(histories.runs(levels))
    assert changes(alone) == set()
    assert "record two processes of each commit" in alone.blind


def test_commits_without_the_cell_are_passed_over():
    levels = {"cuda_fused": [5.0, 5.0, NAN, 5.0, NAN, 5.5, 5.5, 5.5], "new": [NAN] * 7 + [1.0], "triton": [6.0] * 8}
    times = history(histories.runs(levels))
    assert changes(times) == {("cuda_fused", "000000f", 10)}
    assert {series.cell.variant for series in times.series} == {"cuda_fused", "triton"}
    series = times.changed[0]
    assert [math.isnan(level) for level in series.level_us] == [place in (2, 4) for place in range(8)]


def test_commits_are_in_the_order_of_their_first_record():
    runs = histories.runs({"cuda_fused": [5.0] * 4 + [5.5] * 4}, processes=2)
    assert [state.name for state in history(runs[::-1]).states] == [state.name for state in history(runs).states]


def test_other_software_is_another_state_and_is_named():
    same = {"commit": "000000afff"}
    environments = {place: factory.gpu_environment(**same, torch="2.12.0") for place in range(4, 8)}
    environments |= {place: factory.gpu_environment(**same) for place in range(4)}
    times = history(histories.runs({"a": [5.0] * 4 + [5.5] * 4, "b": [5.0] * 8}, 1, environments))
    assert [(state.name, len(state.runs)) for state in times.states] == [("000000a", 4), ("000000a", 4)]
    assert times.states[1].differs == ("torch 2.11.0+cu130 → 2.12.0",)
    assert changes(times) == {("a", "000000a", 10)}


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


def test_of_one_commit_the_releases_of_a_package_are_in_their_order():
    versions = ["0.33.0", "0.9.2", "0.22.1"]
    environments = {
        place: factory.gpu_environment(commit="000000afff", packages={"vllm": version})
        for place, version in enumerate(versions)
    }
    states = history(histories.runs({"a": [5.0] * 3}, 1, environments)).states
    assert [state.name for state in states] == ["vLLM 0.9.2", "vLLM 0.22.1", "vLLM 0.33.0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "a history is of one seed"),
        (
            {"environment": factory.gpu_environment("NVIDIA B200")},
            "has device model NVIDIA H200, test.jsonl has NVIDIA B200",
        ),
        ({"config": {"name": "mtp3", "measure": {"cache": "cold"}}}, "has cache state hot, test.jsonl has cold"),
    ],
    ids=["seed", "GPU", "cache"],
)
def test_what_is_no_one_history(change, message):
    runs = histories.runs({"a": [5.0] * 3})
    values = {"environment": runs[2].header.environment} | change
    seed = {"seed": values.pop("seed")} if "seed" in values else {}
    runs[2] = factory.run(
        values.pop("environment"), runs[2].cells, started="2026-01-03T00:00:00+00:00", **seed, **values
    )
    with pytest.raises(RecordError, match=message):
        history(runs)
