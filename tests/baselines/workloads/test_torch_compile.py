"""The code that a compiled chain runs at a point does not depend on the points before: the process that times a variant
has verified it before, the one that counts its launches has not.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.runtime import benchmarking

from spec_decode_bench.baselines.workloads import torch_compile
from spec_decode_bench.harness.config.load import load
from spec_decode_bench.harness.config.sweep import plan
from spec_decode_bench.harness.contract import Point
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.buffers import Guard
from spec_decode_bench.harness.verify.edge_cases import LeftOut, no_recompilation
from tests.tier import full

CATALOG = discover()
#: About half of the chains; the others would take two more minutes.
OPERATORS = ("decode_flatten", "paged_mqa_schedule", "k_quant_gather", "seq_lens_update", "draft_inputs", "post_update")
CHAINS = [v for v in CATALOG.variants if v.name == "compiled_chain" and v.operator in OPERATORS]
SHIPPED = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))
CONFIGS = [path for path in SHIPPED if "loop" not in path.stem and path.stem != "captured"]
#: Tokens of a chunk that a CPU still copies in milliseconds, and points of an operator.
MOST_TOKENS, MOST_POINTS = 32768, 16


class Recorder:
    """A backend for torch.compile that runs eager operators and records the code of every compilation and call.

    A code is the source of the module that Inductor would get, with the sizes that it was compiled for.
    """

    def __init__(self):
        self.compiled, self.ran = [], []

    def __call__(self, module, examples):
        code = (module.code, tuple(self._sizes(value) for value in examples))
        self.compiled.append(code)

        def run(*arguments):
            self.ran.append(code)
            return module.forward(*arguments)

        return run

    @staticmethod
    def _sizes(value):
        sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
        # Not int(size), which would specialise the code on this size.
        return tuple((str(size), size if isinstance(size, int) else size.node.hint) for size in sizes)


@pytest.fixture
def recorder(monkeypatch):
    """Makes torch.compile record. Compilations of other tests are neither seen nor kept."""
    recorder, compile_ = Recorder(), torch.compile
    backend = aot_autograd(fw_compiler=recorder)  # it adds guards, such as one on rows without space between them
    monkeypatch.setattr(torch, "compile", lambda chain, dynamic: compile_(chain, dynamic=dynamic, backend=backend))
    monkeypatch.setattr(torch_compile, "_functions", {})
    torch._dynamo.reset()
    yield recorder
    torch._dynamo.reset()


def points_of(operator, variant):
    """Distinct points of the shipped configurations that the variant runs at: every n-th of many."""
    items = [
        item
        for path in CONFIGS
        for item in plan(load(path), CATALOG.operators, CATALOG.variants)
        if item.operator == operator.name and variant.name in item.variants
    ]
    points = {item.point: Point(item.axes) for item in items}.values()
    fit = [point for point in points if point.get("chunk_tokens", 0) <= MOST_TOKENS]
    fit = [point for point in fit if not operator.redundant(point) and not variant.skip(point)]
    return fit[:: -(-len(fit) // MOST_POINTS)]


def codes_at(recorder, operator, variant, point, edit=None):
    inputs, outputs = operator.make_inputs(point, 0), operator.outputs.empty(point)
    if edit is not None:
        edit(inputs)
    launch = variant.setup(point, Guard(inputs, "cpu").view, Guard(outputs, "cpu").view)
    recorder.ran.clear()
    launch()
    return list(recorder.ran)


@full
@pytest.mark.parametrize("variant", CHAINS, ids=lambda variant: variant.operator)
def test_the_code_of_a_point_does_not_depend_on_what_ran_before(variant, recorder):
    operator = CATALOG.operators[variant.operator]
    points = points_of(operator, variant)
    fresh = [codes_at(recorder, operator, variant, point) for point in points]
    assert points
    assert all(fresh)
    compilations = len(recorder.compiled)

    torch._dynamo.reset()
    torch_compile._functions.clear()
    recorder.compiled.clear()
    before = [(operator.complete(case.point), case.edit) for case in operator.edge_cases]
    before += [(operator.complete(step), None) for steps in operator.sequences.values() for step in steps]
    for point, edit in before:
        if not variant.skip(point):
            with suppress(LeftOut), no_recompilation():  # as a run does
                codes_at(recorder, operator, variant, point, edit)
    assert [codes_at(recorder, operator, variant, point) for point in reversed(points)] == fresh[::-1]
    assert len(recorder.compiled) >= compilations


@pytest.mark.parametrize(("name", "axes"), [("seq_lens_update", {}), ("step_inputs", {"memory": "uva"})])
def test_an_example_leaves_host_tensors_on_the_host(name, axes):
    operator = CATALOG.operators[name]
    inputs = torch_compile._placed(operator.make_inputs(operator.complete(axes), 0), torch.device("meta"))
    tensors = {f: value for f in fields(inputs) if isinstance(value := getattr(inputs, f.name), torch.Tensor)}
    assert {value.device.type for field, value in tensors.items() if field.metadata.get("host")} == {"cpu"}
    assert {value.device.type for field, value in tensors.items() if not field.metadata.get("host")} == {"meta"}


def test_inductor_times_tilings_that_are_queued(monkeypatch):
    done = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("event")

        def synchronize(self):
            done.append("end")

        def elapsed_time(self, end):
            return 0.5 * torch_compile.TUNING_LAUNCHES

    benchmarker = SimpleNamespace(benchmark_gpu="Inductor's own")
    monkeypatch.setattr(benchmarking, "benchmarker", benchmarker)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append("wait"))
    with suppress(KeyError), torch_compile._tuned_by_device_time(torch.device("cuda")):
        assert benchmarker.benchmark_gpu(lambda: done.append("launch"), warmup=25, rep=40) == 0.5
        raise KeyError
    assert done == ["launch", "wait", "event", *["launch"] * torch_compile.TUNING_LAUNCHES, "event", "end"]
    assert benchmarker.benchmark_gpu == "Inductor's own"
