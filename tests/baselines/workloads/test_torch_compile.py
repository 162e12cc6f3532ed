"""The compiled chains run the same code at a point whatever points came before: the process that times one has proved
it first, the one that counts its launches has not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baselines.workloads import torch_compile as _compiled
from harness.config.load import load
from harness.config.sweep import plan
from harness.discover import discover
from harness.verify.buffers import Guard

CATALOG = discover()
CHAINS = [variant for variant in CATALOG.variants if variant.name == "compiled_chain"]
CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))
#: Tokens of a chunk that a CPU copies in milliseconds.
MOST_TOKENS = 32768


class Recorder:
    """A backend for torch.compile that runs plain operators and notes for every call the code, and the sizes it was
    made for.
    """

    def __init__(self):
        self.made, self.ran = [], []

    def __call__(self, module, examples):
        code = (module.code, tuple(self._told(value) for value in examples))
        self.made.append(code)

        def run(*arguments):
            self.ran.append(code)
            return module.forward(*arguments)

        return run

    @staticmethod
    def _told(value):
        sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
        # Not int(size): that would make the code fit this size alone.
        return tuple((str(size), size if isinstance(size, int) else size.node.hint) for size in sizes)


@pytest.fixture
def recorder(monkeypatch):
    """torch.compile records; what is compiled before or after is not of this test."""
    recorder, compile_ = Recorder(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda chain, dynamic: compile_(chain, dynamic=dynamic, backend=recorder))
    monkeypatch.setattr(_compiled, "_learnt", {})
    torch._dynamo.reset()
    yield recorder
    torch._dynamo.reset()


def points_of(operator, variant):
    """Every point of the shipped configurations that differs from the others."""
    groups = [
        group
        for path in CONFIGS
        for group in plan(load(path), CATALOG.operators, CATALOG.variants)
        if variant in group.variants
    ]
    points = {str(group.point): group.point for group in groups}.values()
    fit = [point for point in points if point.get("chunk_tokens", 0) <= MOST_TOKENS]
    return [point for point in fit if not operator.redundant(point) and not variant.skip(point)]


def ran_at(recorder, operator, variant, point, edit=None):
    inputs, outputs = operator.make_inputs(point, 0), operator.make_outputs(point)
    if edit is not None:
        edit(inputs)
    launch = variant.setup(point, Guard(inputs, "cpu").view, Guard(outputs, "cpu").view)
    recorder.ran.clear()
    launch()
    return list(recorder.ran)


@pytest.mark.parametrize("variant", CHAINS, ids=lambda variant: variant.operator)
def test_the_code_of_a_point_does_not_depend_on_what_ran_before(variant, recorder):
    operator = CATALOG.operators[variant.operator]
    points = points_of(operator, variant)
    fresh = [ran_at(recorder, operator, variant, point) for point in points]
    assert points
    assert all(fresh)
    taught = len(recorder.made)

    torch._dynamo.reset()
    _compiled._learnt.clear()
    recorder.made.clear()
    for hard in operator.hard_points:
        point = operator.complete(hard.point)
        if not variant.skip(point):
            ran_at(recorder, operator, variant, point, hard.edit)
    for sizes in operator.sequences.values():
        for axes in sizes:
            ran_at(recorder, operator, variant, operator.complete(axes))
    assert [ran_at(recorder, operator, variant, point) for point in points] == fresh
    assert len(recorder.made) >= taught
