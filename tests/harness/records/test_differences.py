"""In which respects records differ: each counts for the purposes of its row, and for no others."""

import pytest
from msgspec.structs import fields, replace

from spec_decode_bench.harness.records.differences import (
    MATTERS,
    PURPOSES,
    Difference,
    check_together,
    differences,
    mixed_states,
    values_of,
)
from spec_decode_bench.harness.records.schema import Checkout, Environment, RecordError
from tests import factory

CONFIG = {
    "name": "mtp3",
    "baseline": None,
    "itl_tpot": {"acceptance": 0.7},
    "measure": {"cache": "hot", "seed": None, "min_rounds": 10},
    "sweep": [{"batch_size": [3, 4]}],
}
SOURCES = {"a/k.cu": "1", "b.py": "2"}
#: Other values of the fields of Environment that are no text.
OTHER = {
    "device": "cpu",
    "dirty": True,
    "packages": {"vllm": "1"},
    "checkouts": {"vllm": Checkout("1a2b3c4d5e")},
    "notes": ("one",),
}
#: Fields whose differences are named one by one.
BY_PACKAGE = ("packages", "checkouts")
NUMBERS = (int, int | None, float | None)


def record(**header):
    run = factory.run(factory.gpu_environment(), [])
    return replace(run, header=replace(run.header, **{"config": CONFIG, "sources": SOURCES, "cells": ("a",)} | header))


def with_settings(**measure):
    return record(config=CONFIG | {"measure": CONFIG["measure"] | measure})


def other_machine(field):
    value = OTHER.get(field.name, 7 if field.type in NUMBERS else "other")
    return record(environment=replace(factory.gpu_environment(), **{field.name: value}))


#: Row of MATTERS -> a record that differs in it, and the respect that is named.
OTHERS = {
    **{
        field.name: (other_machine(field), f"{field.name}.vllm" if field.name in BY_PACKAGE else field.name)
        for field in fields(Environment)
    },
    "name": (record(name="other"), "name"),
    "seed": (record(seed=7), "seed"),
    "config": (with_settings(min_rounds=20), "config.measure.min_rounds"),
    "config.name": (record(config=CONFIG | {"name": "other"}), "config.name"),
    "config.baseline": (record(config=CONFIG | {"baseline": "other"}), "config.baseline"),
    "config.itl_tpot": (record(config=CONFIG | {"itl_tpot": {"acceptance": 0.8}}), "config.itl_tpot.acceptance"),
    "config.measure.seed": (with_settings(seed=3), "config.measure.seed"),
    "cells": (record(cells=("a", "b")), "cells"),
    "sources": (record(sources=SOURCES | {"a/k.cu": "3"}), "a/k.cu"),
}


def respects(ours, theirs, purpose):
    return [difference.respect for difference in differences(ours, theirs, purpose)]


@pytest.mark.parametrize("row", OTHERS)
def test_a_respect_counts_for_the_purposes_of_its_row(row):
    other, respect = OTHERS[row]
    for purpose in PURPOSES:
        different = [name for name in respects(record(), other, purpose) if name != "device model"]
        assert different == ([respect] if purpose in MATTERS[row] else []), purpose


def test_every_row_is_tried_and_every_purpose_has_one():
    assert MATTERS.keys() - OTHERS.keys() == {"device model", "cache state"}
    assert {purpose for purposes in MATTERS.values() for purpose in purposes} == set(PURPOSES)


def test_cells_in_one_record_come_from_one_kind_of_machine_and_one_version():
    """What several documents promise; for every purpose that lets cells of two processes stand for each other."""
    same = {"device", "gpu", "processor", "torch", "triton", "driver", "cuda", "commit", "dirty"} | set(BY_PACKAGE)
    names = {field.name for field in fields(Environment)}
    for purpose in ("merge", "one_record", "resume"):
        assert {respect for respect in names if purpose in MATTERS[respect]} == same


def test_a_cold_cache_is_a_state_and_a_setting():
    hot, cold = record(), with_settings(cache="cold")
    assert differences(hot, cold, "panel") == [Difference("cache state", "hot", "cold")]
    assert respects(hot, cold, "compare") == ["cache state", "config.measure.cache"]
    assert respects(hot, cold, "any_config") == ["cache state"]


def test_the_device_model_is_the_gpu_and_of_a_cpu_run_the_processor():
    def models(*environments):
        ours, theirs = (record(environment=environment) for environment in environments)
        return [(difference.ours, difference.theirs) for difference in differences(ours, theirs, "history")]

    gpu, cpu = factory.gpu_environment(), factory.cpu_environment()
    assert models(gpu, replace(gpu, processor="other")) == []
    assert models(cpu, replace(cpu, processor="other")) == [("test CPU", "other")]
    assert models(gpu, cpu) == [("NVIDIA H200", "test CPU")]


def test_only_what_both_describe_counts():
    other = record(
        seed=7, config={"measure": {"cache": "hot"}}, environment=replace(factory.gpu_environment(), torch="2.0")
    )
    torch = [Difference("torch", "2.11.0+cu130", "2.0")]
    assert differences(record(), other.header.environment, "resume") == torch
    assert differences(record(), {"seed": 7}, "resume") == [Difference("seed", 0, 7)]
    assert differences(record(), {}, "resume") == []


def test_settings_are_named_one_by_one_and_one_that_is_none_may_be_absent():
    other = record(config=CONFIG | {"new": None, "sweep": [{"batch_size": [3, 5]}, {}]})
    assert differences(record(), other, "compare") == [
        Difference("config.sweep.0.batch_size", [3, 4], [3, 5]),
        Difference("config.sweep.1", None, {}),
    ]


@pytest.mark.parametrize(
    ("sources", "merge", "resume"),
    [
        ({"a/k.cu": "1"}, [], ["b.py"]),
        (SOURCES | {"new.py": "3"}, [], []),
        ({"elsewhere/k.cu": "1", "b.py": "2"}, [], []),
        ({"elsewhere/k.cu": "3", "b.py": "2"}, [], ["a/k.cu"]),
        ({"a/k.cu": "3", "b.py": "2"}, ["a/k.cu"], ["a/k.cu"]),
    ],
    ids=["missing", "more", "moved", "moved and changed", "changed"],
)
def test_shards_share_some_sources_and_a_resumed_run_needs_all(sources, merge, resume):
    for purpose, expected in (("merge", merge), ("resume", resume)):
        assert respects(record(), {"sources": sources}, purpose) == expected


def test_values_are_equal_where_nothing_differs():
    for other, _ in OTHERS.values():
        same = values_of(record(), "state") == values_of(other, "state")
        assert same == (not differences(record(), other, "state"))


def timed(us, batch_size=1, name="mtp3", **measure):
    cells = [factory.cell("decode_native", "fused", {"batch_size": batch_size}, us)]
    run = factory.run(
        factory.gpu_environment(), cells, name, config={"name": name, "measure": {"cache": "hot"} | measure}
    )
    return replace(run, path=f"{name}{measure.get('cache', '')}.jsonl")


def test_two_runs_of_one_configuration_on_one_gpu_are_refused_but_not_two_configurations():
    with pytest.raises(RecordError, match="are both runs of mtp3 on NVIDIA H200; give one of them"):
        check_together([timed(2.0), timed(2.1)])
    check_together([timed(2.0), timed(2.1, name="full")])
    check_together([timed(2.0), timed(2.1, cache="cold")])
    check_together([timed(2.0), timed(2.1, batch_size=8)])  # shards


def test_cold_and_hot_are_drawn_apart_which_is_said():
    (sentence,) = mixed_states([timed(2.0), timed(4.0, cache="cold")])
    assert sentence.startswith("mtp3cold.jsonl was measured with a cold cache, mtp3.jsonl with a hot one")
    assert mixed_states([timed(2.0), timed(2.0)]) == []
