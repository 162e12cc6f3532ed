"""What another GPU changes: rows of operators, lines of GPUs, gaps where a GPU lacks an operator."""

import re
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from msgspec.structs import replace

from spec_decode_bench.harness.analysis.stats import median_us
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.plots import draw_all, generations
from spec_decode_bench.plots._panels import COLOURS
from tests import factory
from tests.plots.test_plots import overlaps

REFERENCE = Path(__file__).parents[2] / "results/reference"
POINT = "batch_size=128,context_len=uniform(4096;8192)"


def operators(ax):
    return [label.get_text().split("\n")[0] for label in ax.get_yticklabels()]


def lines(ax):
    """Colour of a GPU -> operator -> times of the baseline and of the variant, as drawn."""
    found, row = {}, ax.get_ylim()[0] / len(operators(ax))
    for line in ax.get_lines():
        colour = to_hex(line.get_color()).upper()
        if colour in COLOURS and len(line.get_xdata()) == 2:
            operator = operators(ax)[int(line.get_ydata()[0] / row)]
            found.setdefault(colour, {})[operator] = tuple(line.get_xdata())
    return found


def numbers(ax):
    return [text.get_text() for text in ax.texts]


@pytest.fixture(scope="module")
def hopper():
    """The same operators of the two records."""
    return [read_run(REFERENCE / f"nvidia-{gpu}/full.jsonl") for gpu in ("h100", "h200")]


@pytest.fixture(scope="module")
def of_two(hopper):
    return generations.figure(hopper)


def test_h100_beside_h200_at_the_point_of_the_readme(hopper, of_two):
    drawn = lines(of_two.axes[0])
    assert list(drawn) == list(COLOURS[:2])
    names = {cell.operator for cell in hopper[0].cells}
    times = [
        {
            c.variant: median_us(c, "gpu_us")
            for c in run.cells
            if (c.operator, c.point) == ("decode_step", POINT) and c.metrics is not None
        }
        for run in hopper
    ]
    h100, h200 = times
    fastest = min(h100.keys() & h200.keys() - {"op_chain"}, key=lambda variant: h100[variant] * h200[variant])
    for colour, of_gpu in zip(drawn, times, strict=True):
        assert set(drawn[colour]) == names
        assert drawn[colour]["decode_step"] == pytest.approx((of_gpu["op_chain"], of_gpu[fastest]))
    assert overlaps(of_two) == []


def saved_us(run, label):
    """What the variant to the right of the arrow saves in a queued stream."""
    operator, before, after = re.fullmatch(r"(\w+)\n(\w+) → (\w+)", label).groups()
    us = {c.variant: median_us(c, "queued_us") for c in run.cells if (c.operator, c.point) == (operator, POINT)}
    return us[before] - us[after]


def test_itl_is_modelled_from_device_time(hopper, of_two):
    """Not from eager_us, in which the H100's slower host counts."""
    times, itl = of_two.axes
    bars = {}
    for bar in itl.patches:
        bars.setdefault(to_hex(bar.get_facecolor()).upper(), []).append(-bar.get_width())
    h100, h200 = bars[COLOURS[0]], bars[COLOURS[1]]
    assert len(h100) == len(h200) == len(operators(times)) - 1  # not the prefill's
    names = [label.get_text() for label in times.get_yticklabels() if not label.get_text().startswith("k_quant_gather")]
    expected = [saved_us(hopper[0], name) / saved_us(hopper[1], name) for name in names]
    assert [one / other for one, other in zip(h100, h200, strict=True)] == pytest.approx(expected, rel=0.01)
    assert numbers(itl).count("in prefill only") == 1


def test_a_variant_that_failed_on_one_gpu_gives_way_to_one_of_both():
    h200, h100 = factory.sweep_run(), factory.sweep_run(factory.gpu_environment("NVIDIA H100"))
    cells = [
        replace(cell, status="failed", metrics=None) if cell.variant == "cuda_fused" else cell for cell in h100.cells
    ]
    labels = [label.get_text() for label in generations.figure([h200, h100]).axes[0].get_yticklabels()]
    assert all(label.endswith("→ cuda_fused") for label in labels)
    figure = generations.figure([h200, replace(h100, cells=cells)])
    assert all(label.get_text().endswith("→ triton_fused") for label in figure.axes[0].get_yticklabels())


def test_one_gpu_has_none(hopper, tmp_path):
    assert generations.figure([hopper[0], factory.sweep_run(factory.cpu_environment())]) is None
    assert draw_all(hopper, tmp_path, by="gpu", figures=["generations"])
