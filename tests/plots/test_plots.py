"""Figures: every kind of record gives files, nothing overlaps, CPU and GPU times never share an axis."""

from importlib import import_module
from itertools import product

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from msgspec.structs import replace

from spec_decode_bench import plots
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.plots import _style, itl_tpot, latency
from tests import factory
from tests.tier import few, full

#: Of runs with cells; test_loops.py draws those of decode loops.
FIGURES = {path.rpartition(".")[2]: import_module(path) for path in plots.FIGURES}
BLACKWELL = factory.gpu_environment("NVIDIA RTX PRO 6000 Blackwell Server Edition", "Blackwell", "sm_120", dirty=True)
MTP3 = (1, 2, 4, 8, 12, 16, 32, 64, 128, 256)


def wide_run(operators: int, batch_sizes=MTP3, environment=None):
    """Many operators, points and variants, with every status among the cells."""
    rng, cells = np.random.default_rng(0), []
    variants = {
        "op_chain": 46,
        "merged_chain": 36,
        "compiled_chain": 20,
        "upstream": 12,
        "triton_fused": 2,
        "cuda_fused": 1.6,
    }
    faults = {("merged_chain", 4): "mismatch", ("triton_fused", 8): "failed", ("op_chain", 16): "skipped"}
    for operator in ("decode_flatten", "paged_mqa_schedule", "mamba_spec_metadata")[:operators]:
        for size, rows, pad in product(batch_sizes, (1, 4), (0, 0.1)):
            axes = {"batch_size": size, "max_decode_len": rows, "padding": pad}
            for variant, gpu in variants.items():
                status = "unavailable" if variant == "upstream" else faults.get((variant, size), "passed")
                cells.append(factory.cell(operator, variant, axes, gpu, 9 * gpu, rng=rng, status=status, rounds=3))
    return factory.run(environment or factory.gpu_environment(), cells)


def one_variant_run():
    return factory.run(factory.gpu_environment(), [factory.cell("decode_flatten", "op_chain", {"batch_size": 8}, 40.0)])


def untimed_run():
    unavailable = factory.cell("decode_flatten", "cuda_fused", {"batch_size": 8}, status="unavailable", reason="no GPU")
    return factory.run(
        factory.gpu_environment(), [unavailable, factory.cell("decode_flatten", "op_chain", {"batch_size": 8})]
    )


def long_labels_run(environment):
    """Row labels as a real sweep has them, and a CPU's columns without times."""
    axes = [
        {
            "batch_size": size,
            "decode_len": form,
            "context_len": lengths,
            "padding": 0.1 if size > 8 else 0.0,
            "token_padding": 16,
        }
        for size in (8, 256)
        for form, lengths in (("uniform", "lognormal(4096;1)"), ("ragged", "uniform(65536;131072)"))
    ]
    times = {"op_chain": 36.6, "triton_uniform": None, "triton_fused": None, "cuda_fused": None, "compiled_chain": 50.0}
    cells = [
        factory.cell(operator, variant, point, cpu=cpu)
        for operator, point, (variant, cpu) in product(("decode_flatten", "decode_native"), axes, times.items())
    ]
    return factory.run(environment, cells)


def cache_states_run():
    """The pointer chase of a run whose cache state is "serving": as many bars as it may have."""
    run = factory.sweep_run(batch_sizes=(8,))
    chase = dict.fromkeys(("l2", "memory", "hot", "cold", "serving", "serving_table"), [665.0] * 5)
    calibration = replace(run.header.calibration, chase_cycles=chase)
    return factory.run(run.header.environment, run.cells, calibration=calibration)


CASES = {
    "gpu": lambda: [factory.sweep_run()],
    "cpu": lambda: [factory.sweep_run(factory.cpu_environment())],
    "mixed": lambda: [factory.sweep_run(factory.cpu_environment()), factory.sweep_run(BLACKWELL), factory.sweep_run()],
    "statuses": lambda: [wide_run(3)],
    "sixty points": lambda: [wide_run(1, (*MTP3, 100, 250, 500, 512, 1024))],
    "eighty points": lambda: [wide_run(1, range(1, 21))],
    "one batch size": lambda: [factory.sweep_run(batch_sizes=(32,))],
    "one variant": lambda: [one_variant_run()],
    "cache states": lambda: [cache_states_run()],
    "long labels": lambda: [long_labels_run(factory.cpu_environment())],
}
#: Figure -> the cases that have nothing for it: without a GPU or a second one, or without a baseline beside another
#: variant.
ABSENT = {
    "itl_tpot": ("cpu", "one variant", "long labels"),
    "calibration": ("cpu", "long labels"),
    "roofline": ("cpu", "long labels"),
    "generations": tuple(case for case in CASES if case != "mixed"),
}


def texts(fig: Figure) -> list[Text]:
    """All texts shown in the figure."""
    return [text for text in fig.findobj(Text) if text.get_visible() and text.get_text().strip()]


def overlaps(fig: Figure) -> list[tuple[str, str]]:
    fig.canvas.draw()
    # Slanted names have boxes that overlap where the letters do not.
    upright = [text for text in texts(fig) if text.get_rotation() in (0, 90)]
    x0, y0, x1, y1 = np.array([text.get_window_extent().padded(-1).extents for text in upright]).T
    meet = (x0[:, None] < x1) & (x0 < x1[:, None]) & (y0[:, None] < y1) & (y0 < y1[:, None])
    return [(upright[a].get_text(), upright[b].get_text()) for a, b in np.argwhere(np.triu(meet, 1))]


def test_captured_steps_have_no_latency_against_batch_size():
    run = factory.sweep_run()
    captured = [replace(cell, point=f"{cell.point},capture=file@{n}") for n, cell in enumerate(run.cells)]
    assert latency.figure([replace(run, cells=captured)]) is None


@pytest.mark.parametrize("case", few(CASES, 3))
@pytest.mark.parametrize("name", FIGURES)
def test_drawn_without_overlaps(name, case, tmp_path):
    runs = CASES[case]()
    fig = FIGURES[name].figure(runs)
    if case in ABSENT.get(name, ()):
        assert fig is None
        assert plots.draw_all(runs, tmp_path, figures=[name]) == []
        assert not list(tmp_path.iterdir())
        return
    assert overlaps(fig) == []
    assert 1100 <= _style._bounds(fig).width * _style.DPI <= 1400


@pytest.mark.parametrize(
    "runs", [[], [untimed_run()], [factory.run(factory.cpu_environment(), [])]], ids=["none", "untimed", "empty"]
)
def test_without_times_only_the_calibration_is_drawn(runs, tmp_path):
    timer = (
        [tmp_path / f"calibration.{suffix}" for suffix in ("png", "svg")]
        if any(run.header.calibration for run in runs)
        else []
    )
    assert plots.draw_all(runs, tmp_path) == timer
    assert sorted(tmp_path.iterdir()) == timer


@full
def test_recorded_runs_beside_a_run_on_a_cpu_are_named_and_alone_in_no_figure(tmp_path):
    run, recorded = factory.sweep_run(factory.cpu_environment(), batch_sizes=(1, 8)), factory.sweep_run()
    drawn = plots.draw_all([run], tmp_path, beside=[recorded])
    assert {path.stem for path in drawn} == {"latency", "speedup"}
    for path in drawn[1::2]:
        assert "Panels of NVIDIA H200: runs recorded earlier" in path.read_text(encoding="utf-8")


@full
def test_draw_all_and_the_same_bytes_twice(tmp_path):
    runs = [factory.sweep_run(batch_sizes=(1, 8))]
    first, second = (plots.draw_all(runs, tmp_path / folder) for folder in ("first", "second"))
    assert {path.stem for path in first} == set(FIGURES) - {"generations"}
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert all(path.stat().st_size > 10_000 for path in first)


def test_cpu_and_gpu_times_have_panels_of_their_own():
    fig = latency.figure(CASES["mixed"]())
    labels = {ax.get_title().split("\n")[1]: ax.get_ylabel() for ax in fig.axes}
    assert labels == {
        "H200 (Hopper)": "GPU time per call (µs)",
        "RTX PRO 6000 Blackwell Server Edition": "GPU time per call (µs)",
        "CPU wall time, test CPU": "CPU wall time per call (µs)",
    }
    assert all("CPU" not in ax.get_title() for ax in itl_tpot.figure(CASES["mixed"]()).axes)


def test_no_two_variants_of_an_operator_share_a_colour():
    """If this fails for a new name, choose its look in plots._style.LOOKS."""
    catalog = discover()
    timed = {name: [v.name for v in catalog.of(name) if v.defect is None] for name in catalog.operators}
    every = {name for names in timed.values() for name in names}
    assert _style.LOOKS.keys() <= every
    own = sorted(every - _style.LOOKS.keys())
    for operator, names in timed.items():
        assert len({_style.variant_style(name, own)["color"] for name in names}) == len(names), operator


@full
def test_noise_below_zero_is_no_reason_to_fail(tmp_path):
    cells = [
        factory.cell("decode_flatten", name, {"batch_size": 8}, gpu)
        for name, gpu in (("op_chain", 40.0), ("fused", -0.1))
    ]
    assert len(plots.draw_all([factory.run(factory.gpu_environment(), cells)], tmp_path)) == 10
