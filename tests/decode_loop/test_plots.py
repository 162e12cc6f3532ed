"""Figures of decode loops, from made-up records."""

import re

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.decode_loop.plots import loop_delta, loop_itl, loop_model_step, loop_timeline
from spec_decode_bench.decode_loop.plots._loops import loop_panels, stack_styles
from spec_decode_bench.harness.records.schema import Status
from spec_decode_bench.plots import draw_all
from tests.decode_loop import factory_loops
from tests.factory import cpu_environment, gpu_environment
from tests.tier import few, full

FIGURES = (loop_delta, loop_itl, loop_model_step, loop_timeline)


@pytest.fixture
def h200():
    return factory_loops.run(factory_loops.many_loops(np.random.default_rng(0)), gpu_environment(), "decode_loop")


@pytest.fixture
def b200():
    environment = gpu_environment(gpu="NVIDIA B200", generation="Blackwell", sm="sm_100")
    return factory_loops.run(factory_loops.many_loops(np.random.default_rng(1)), environment, "decode_loop")


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


def test_each_gpu_has_its_panels_on_one_scale(h200, b200):
    figure = loop_delta.figure([b200, h200])
    assert "H200 (Hopper)" in texts(figure)
    assert "B200 (Blackwell)" in texts(figure)
    panels = [ax for ax in figure.axes if ax.get_subplotspec() is not None]
    assert len(panels) == 2 * 4  # ITL and TPOT, sync and async, on two GPUs
    rows = {}
    for ax in panels:
        rows.setdefault(ax.get_subplotspec().rowspan.start, []).append(ax.get_ylim())
    assert all(len(set(limits)) == 1 for limits in rows.values())


def test_the_delta_is_drawn_where_it_is(h200):
    figure = loop_delta.figure([h200])
    itl_sync = next(ax for ax in figure.axes if ax.get_ylabel() == "change of ITL (µs)\nsync")
    (dots,) = [line for line in itl_sync.get_lines() if len(line.get_xdata()) == 3 and line.get_marker() == "s"]
    assert dots.get_ydata() == pytest.approx([-900] * 3, abs=40)


def test_a_stack_that_failed_costs_itself(h200):
    loops = list(h200.others)
    wrong = [factory_loops.loop("wrong", [], status=Status.MISMATCH, reason="step 3")]
    figure = loop_delta.figure([factory_loops.run([*loops, *wrong], h200.header.environment)])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fused"]


@full
def test_a_cpu_is_labelled_and_gives_way_to_a_gpu(h200):
    cpu = factory_loops.run(factory_loops.many_loops(np.random.default_rng(2)), cpu_environment())
    for module in FIGURES:
        assert "CPU miniature, no GPU time" in texts(module.figure([cpu]))
        assert "CPU miniature" not in texts(module.figure([cpu, h200]))


def test_stacks_look_different_and_the_same_in_all_panels(h200, b200):
    styles = stack_styles(loop_panels([h200, b200]))
    assert list(styles) == ["chains", "fused"]
    assert len({(style["color"], style["marker"]) for style in styles.values()}) == 2


def test_the_timeline_shows_the_reference_beside_the_last_stack(h200):
    shown = texts(loop_timeline.figure([h200]))
    assert re.search(r"chains, sync\nconcurrency 32, model step 12 ms, ITL \d", shown)
    assert re.search(r"fused, async.*\nconcurrency 32, model step 12 ms, ITL \d", shown)


def test_the_timeline_shows_the_functions_of_an_engine_in_place_of_the_reference(h200):
    named = {"fused": "vllm_call", "chains": "chains"}
    loops = [replace(one, stack=named[one.stack]) for one in h200.others if one.stack in named]
    shown = texts(loop_timeline.figure([replace(h200, others=loops)]))
    assert shown.index("vllm_call, sync") < shown.index("chains, sync")


def test_the_timeline_shows_a_step_that_nothing_disturbed(h200):
    loop = next(one for one in h200.others if one.trace)
    _, start, end = loop_timeline._one_step(loop)
    stalled = [replace(span, end_us=end + 3000) if span.name == "schedule" and start <= span.start_us < end else span
               for span in loop.trace]  # fmt: skip
    assert loop_timeline._one_step(replace(loop, trace=stalled))[1:] != (start, end)


def test_stacks_with_limits_are_marked(h200):
    known_failures = {"decode_step/peer at 'B=1'": "never called"}
    loops = [replace(one, known_failures=known_failures) if one.stack == "fused" else one for one in h200.others]
    for module in FIGURES:
        figure = module.figure([replace(h200, others=loops)])
        shown = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
        assert any("fused †" in text for text in shown), module.__name__
        assert any("decode_step/peer at 'B=1' (never called)" in " ".join(text.split()) for text in shown)
