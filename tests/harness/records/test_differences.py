"""What two records must have in common: what differs counts where it is named, and nowhere else."""

import pytest
from msgspec.structs import fields, replace

from spec_decode_bench.harness.records.differences import (
    IGNORED,
    NOTED,
    REFUSED,
    changed_source,
    check_together,
    differences,
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
NUMBERS = (int, int | None, float | None)


def record(**header):
    run = factory.run(factory.gpu_environment(), [])
    return replace(run, header=replace(run.header, **{"config": CONFIG, "sources": SOURCES, "cells": ("a",)} | header))


def with_settings(**measure):
    return record(config=CONFIG | {"measure": CONFIG["measure"] | measure})


def other_machine(field):
    value = OTHER.get(field.name, 7 if field.type in NUMBERS else "other")
    return record(environment=replace(factory.gpu_environment(), **{field.name: value}))


#: Name -> a record that differs in it.
OTHERS = {
    **{field.name: other_machine(field) for field in fields(Environment)},
    "name": record(name="other"),
    "seed": record(seed=7),
    "config": with_settings(min_rounds=20),
    "config.name": record(config=CONFIG | {"name": "other"}),
    "config.baseline": record(config=CONFIG | {"baseline": "other"}),
    "config.itl_tpot": record(config=CONFIG | {"itl_tpot": {"acceptance": 0.8}}),
    "config.measure.seed": with_settings(seed=3),
    "sources": record(sources=SOURCES | {"a/k.cu": "3"}),
}
#: What is named where it differs.
NAMED = {
    "packages": "packages.vllm",
    "checkouts": "checkouts.vllm",
    "config": "config.measure.min_rounds",
    "config.itl_tpot": "config.itl_tpot.acceptance",
    "sources": "a/k.cu",
}


def names(ours, theirs, use):
    return [difference.name for difference in differences(ours, theirs, use)]


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_counts_where_it_is_named(name):
    for use, of_use in (REFUSED | NOTED).items():
        counts = name.partition(".")[0] in of_use and name not in IGNORED.get(use, ())
        different = [one for one in names(record(), OTHERS[name], use) if one != "device model"]
        assert different == ([NAMED.get(name, name)] if counts else []), use


def test_cells_in_one_record_come_from_one_kind_of_machine_and_one_version():
    """What several documents promise."""
    machine = {"device", "gpu", "processor", "torch", "triton", "driver", "cuda", "commit", "dirty"}
    assert REFUSED["one_record"] == machine | {"packages", "checkouts"}
    assert REFUSED["merge"] > REFUSED["one_record"]


def test_the_device_model_is_the_gpu_and_of_a_cpu_run_the_processor():
    def models(*environments):
        ours, theirs = (record(environment=environment) for environment in environments)
        return [(difference.ours, difference.theirs) for difference in differences(ours, theirs, "history")]

    gpu, cpu = factory.gpu_environment(), factory.cpu_environment()
    assert models(gpu, replace(gpu, processor="other")) == []
    assert models(cpu, replace(cpu, processor="other")) == [("test CPU", "other")]
    assert models(gpu, cpu) == [("NVIDIA H200", "test CPU")]


@pytest.mark.parametrize(
    ("sources", "merge", "resume"),
    [
        ({"a/k.cu": "1"}, [], "b.py"),
        (SOURCES | {"new.py": "3"}, [], None),
        ({"elsewhere/k.cu": "1", "b.py": "2"}, [], None),
        ({"elsewhere/k.cu": "3", "b.py": "2"}, [], "a/k.cu"),
        ({"a/k.cu": "3", "b.py": "2"}, ["a/k.cu"], "a/k.cu"),
    ],
    ids=["missing", "more", "moved", "moved and changed", "changed"],
)
def test_shards_share_some_sources_and_a_resumed_run_needs_all(sources, merge, resume):
    assert names(record(), record(sources=sources), "merge") == merge
    assert changed_source(SOURCES, sources) == resume


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
