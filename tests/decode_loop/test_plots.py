"""Figures of decode loops, from made-up records."""

import numpy as np
import pytest

from spec_decode_bench.decode_loop.plots import loop_delta, loop_itl, loop_model_step, loop_timeline
from spec_decode_bench.harness.records.schema import Status
from spec_decode_bench.plots import draw_all
from tests.decode_loop import factory_loops
from tests.factory import gpu_environment
from tests.tier import few

FIGURES = (loop_delta, loop_itl, loop_model_step, loop_timeline)


@pytest.fixture
def h200():
    return factory_loops.run(factory_loops.many_loops(np.random.default_rng(0)), gpu_environment(), "decode_loop")


def texts(figure) -> str:
    found = [*figure.texts, *([figure._suptitle] if figure._suptitle else [])]
    found += [text for ax in figure.axes for text in (ax.title, ax.xaxis.label, ax.yaxis.label)]
    return "\n".join(text.get_text() for text in found)


@pytest.mark.parametrize("module", few(FIGURES, 2), ids=lambda module: module.__name__)
def test_every_figure_is_drawn(module, h200, tmp_path):
    drawn = draw_all([h200], tmp_path, figures=[module.__name__.rpartition(".")[2]])
    assert [path.suffix for path in drawn] == [".png", ".svg"]


@pytest.mark.parametrize("module", few(FIGURES, 2), ids=lambda module: module.__name__)
def test_a_run_of_cells_has_none(module):
    assert module.figure([factory_loops.run([], gpu_environment())]) is None


def test_a_stack_that_failed_costs_itself(h200):
    loops = list(h200.others)
    wrong = [factory_loops.loop("wrong", [], status=Status.MISMATCH, reason="step 3")]
    figure = loop_delta.figure([factory_loops.run([*loops, *wrong], h200.header.environment)])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fused"]
