"""Figures: every kind of record gives files, nothing overlaps, CPU and GPU times never share an axis."""

import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

import plots
from harness.records import Metrics
from plots import _axes, _style, latency, speedup, worth
from plots._panels import panels
from plots._rows import table
from tests import factory

FIGURES = {"latency": latency, "speedup": speedup, "worth": worth}
BLACKWELL = factory.gpu_environment("NVIDIA RTX PRO 6000 Blackwell Server Edition", "Blackwell", "sm_120", dirty=True)
MTP3 = (1, 2, 4, 8, 12, 16, 32, 64, 128, 256)


def wide_run(operators: int, batch_sizes=MTP3, environment=None):
    """Many operators, points and variants, with every status among the cells."""
    rng, cells = np.random.default_rng(0), []
    variants = {"op_chain": 46, "merged_chain": 36, "compiled_chain": 20, "upstream": 12, "triton_fused": 2, "cuda_fused": 1.6}
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
    return factory.run(factory.gpu_environment(), [unavailable, factory.cell("decode_flatten", "op_chain", {"batch_size": 8})])


CASES = {
    "gpu": lambda: [factory.sweep_run()],
    "cpu": lambda: [factory.sweep_run(factory.cpu_environment())],
    "mixed": lambda: [factory.sweep_run(factory.cpu_environment()), factory.sweep_run(BLACKWELL), factory.sweep_run()],
    "statuses": lambda: [wide_run(3)],
    "sixty points": lambda: [wide_run(1, (*MTP3, 100, 250, 500, 512, 1024))],
    "eighty points": lambda: [wide_run(1, range(1, 21))],
    "one batch size": lambda: [factory.sweep_run(batch_sizes=(32,))],
    "one variant": lambda: [one_variant_run()],
}


def texts(fig: Figure) -> list[Text]:
    """All text that is shown, wherever it stands in the figure."""
    return [text for text in fig.findobj(Text) if text.get_visible() and text.get_text().strip()]


def overlaps(fig: Figure) -> list[tuple[str, str]]:
    fig.canvas.draw()
    # Slanted names have boxes that overlap where the letters do not.
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(fig) if text.get_rotation() in (0, 90)]
    return [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.padded(-1).overlaps(other.padded(-1))]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FIGURES)
def test_drawn_without_overlaps(name, case, tmp_path):
    runs = CASES[case]()
    fig = FIGURES[name].figure(runs)
    if name == "worth" and case in ("cpu", "one variant"):
        assert fig is None
        assert FIGURES[name].draw(runs, tmp_path / name) == []
        assert not list(tmp_path.iterdir())
        return
    assert overlaps(fig) == []
    written = _style.save(fig, tmp_path / "deep" / name)
    assert [path.name for path in written] == [f"{name}.png", f"{name}.svg"]
    assert 1100 <= imread(written[0]).shape[1] <= 1400


@pytest.mark.parametrize("runs", [[], [untimed_run()], [factory.run(factory.cpu_environment(), [])]], ids=["none", "untimed", "empty"])
def test_nothing_timed_draws_nothing(runs, tmp_path):
    assert plots.draw_all(runs, tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_draw_all_and_the_same_bytes_twice(tmp_path):
    runs = [factory.sweep_run(batch_sizes=(1, 8))]
    first, second = (plots.draw_all(runs, tmp_path / folder) for folder in ("first", "second"))
    assert {path.stem for path in first} == set(FIGURES)
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
    assert all("CPU" not in ax.get_title() for ax in worth.figure(CASES["mixed"]()).axes)


def test_generations_in_their_order():
    names = ["CPU", "Rubin", "Blackwell", "Ampere", "Hopper"]
    runs = [factory.run(factory.gpu_environment(generation=name), []) for name in names]
    runs.append(factory.run(factory.gpu_environment(generation=None, sm="sm_130"), []))
    assert list(_style.group_by_generation(runs)) == ["Ampere", "Hopper", "Blackwell", "CPU", "Rubin", "unknown generation (sm_130)"]


def test_two_gpus_of_one_generation_have_panels_of_their_own():
    runs = [factory.sweep_run(), factory.sweep_run(factory.gpu_environment("NVIDIA H100"))]
    assert [(panel.device, panel.operator) for panel in panels(runs)] == [
        (gpu, operator) for gpu in ("NVIDIA H200", "NVIDIA H100") for operator in ("decode_flatten", "decode_native")
    ]


def test_a_point_comes_whole_from_its_latest_run():
    def started(day: int, chain: float, fused: float):
        cells = [factory.cell("decode_flatten", name, {"batch_size": 8}, gpu) for name, gpu in (("op_chain", chain), ("fused", fused))]
        return factory.run(factory.gpu_environment(), cells, started=f"2026-01-0{day}T00:00:00+00:00")

    (panel,) = panels([started(2, 40, 4), started(1, 100, 50), untimed_run()])
    (row,) = table(panel, 60).rows
    assert row.ratios["fused"] == pytest.approx(10, rel=0.02)


def test_variant_styles_are_stable_and_tell_fused_kernels_from_chains():
    assert _style.variant_style("cuda_fused") == {"color": "#0072B2", "marker": "o", "linestyle": "-"}
    names = ("op_chain", "merged_chain", "compiled_chain", "triton_uniform", "triton_fused", "cuda_fused")
    assert len({_style.variant_style(name)["color"] for name in names}) == len(names)
    assert [_style.variant_style(name)["linestyle"] for name in names] == ["-."] * 3 + ["-"] * 3


def test_environment_caption():
    lines = _style.environment_caption([*CASES["mixed"](), factory.sweep_run()]).split("\n")
    assert lines == [
        "mtp3 — CPU: test CPU · torch 2.13.0+cpu · commit unknown",
        "mtp3 — NVIDIA RTX PRO 6000 Blackwell Server Edition · driver 580.1 · torch 2.11.0+cu130 · commit 0123abc+",
        "mtp3 — NVIDIA H200 · driver 580.1 · torch 2.11.0+cu130 · commit 0123abc",
    ]


def test_the_slice_covers_most_batch_sizes_then_variants_then_the_longest_rows():
    cells = [
        factory.cell("decode_flatten", variant, {"batch_size": size, "max_decode_len": rows, "padding": pad}, 5.0)
        for rows, pad, sizes, variants in [
            (1, 0, (1, 2, 3), ("op_chain", "fused")), (3, 0, (1, 2, 3), ("op_chain", "fused")),
            (4, 0, (1, 2, 3), ("op_chain",)), (5, 0, (1, 2), ("op_chain", "fused", "more")),
        ]
        for size in sizes for variant in variants
    ]  # fmt: skip
    (panel,) = panels([factory.run(factory.gpu_environment(), cells)])
    name, places = panel.slice("batch_size")
    assert name == "max_decode_len=3"
    assert [place.axes["batch_size"] for place in places] == [1, 2, 3]


def test_labels_name_axes_that_vary_and_defaults_that_point_labels_leave_out():
    points = [{"batch_size": 32, "padding": 0.0, "tokens": 3}, {"batch_size": 32, "padding": 0.1, "tokens": 4}]
    cells = [factory.cell("decode_flatten", "op_chain", axes, 5.0) for axes in points]
    cells = [msgspec.structs.replace(cell, point="padding=0.1" if cell.axes["padding"] else "default") for cell in cells]
    (panel,) = panels([factory.run(factory.gpu_environment(), cells)])
    one = table(panel, 60)
    assert (one.axes, [row.label for row in one.rows]) == (["padding"], ["0", "0.1"])


def test_words_and_geometric_means_of_a_table():
    (panel,) = panels([wide_run(1, range(1, 21))])
    rows = {row.label: row for row in table(panel, 60).rows}
    assert len(rows) == 20
    assert rows["1"].ratios["cuda_fused"] == pytest.approx(46 / 1.6, rel=0.05)
    assert rows["1"].words == {"upstream": "n/a"}
    assert rows["4"].words["merged_chain"] == "wrong"
    assert rows["8"].words["triton_fused"] == "failed"
    assert rows["16"].words == {"op_chain": "skip", "upstream": "n/a"} | dict.fromkeys(
        ("merged_chain", "compiled_chain", "triton_fused", "cuda_fused"), "no chain"
    )
    assert "geometric mean" in speedup.figure([wide_run(1, range(1, 21))]).axes[0].get_title()


def test_a_mean_does_not_hide_a_mismatch_at_one_point():
    run = wide_run(1, range(1, 21))
    broken = [msgspec.structs.replace(run.cells[5], status="mismatch", metrics=None), *run.cells[6:], *run.cells[:5]]
    (panel,) = panels([factory.run(factory.gpu_environment(), broken)])
    row = next(row for row in table(panel, 60).rows if row.label == "1")
    assert row.words["cuda_fused"] == "wrong"
    assert "cuda_fused" not in row.ratios


def test_a_variant_that_cannot_be_captured_is_named_so():
    cell = factory.cell("decode_flatten", "upstream", {"batch_size": 8}, 5.0)
    no_graph = msgspec.structs.replace(cell, metrics=Metrics(bytes_moved=1, eager_us=[50.0], no_graph="allocates"))
    run = one_variant_run()
    (panel,) = panels([factory.run(run.header.environment, [*run.cells, no_graph])])
    assert table(panel, 60).rows[0].words == {"upstream": "no graph"}


def test_worth_names_the_model_and_keeps_models_apart():
    run, header = factory.sweep_run(batch_sizes=(1,)), factory.sweep_run().header
    assert "model step 12 ms, acceptance 0.75, 1 call per step, sync" in worth.figure([run]).get_suptitle()
    other = {"serving": {"model_step_us": 9500.0, "acceptance": 0.6, "calls_per_step": 2, "scheduling": "async"}}
    runs = [run, msgspec.structs.replace(run, header=msgspec.structs.replace(header, config=other))]
    titles = [ax.get_title().replace("\n", " ") for ax in worth.figure(runs).axes]
    assert len(titles) == 4
    assert sum("9.5 ms, acceptance 0.6, 2 calls per step, async" in title for title in titles) == 2
    no_model = msgspec.structs.replace(run, header=msgspec.structs.replace(header, config={}))
    assert worth.figure([no_model]) is None


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.6, 46, [1, 2, 5, 10, 20, 50]),
        (208, 290, [200, 300]),
        (1, 1, [1, 2]),
        (0.9, 1.1, [0.9, 1, 2]),
        (0.02, 70_000, [0.01, 0.1, 1, 10, 100, 1e3, 1e4, 1e5]),
    ],
)
def test_round_numbers(low, high, ticks):
    assert _axes.round_numbers(low, high) == pytest.approx(ticks)


def test_noise_below_zero_is_no_reason_to_fail(tmp_path):
    cells = [factory.cell("decode_flatten", name, {"batch_size": 8}, gpu) for name, gpu in (("op_chain", 40.0), ("fused", -0.1))]
    assert len(plots.draw_all([factory.run(factory.gpu_environment(), cells)], tmp_path)) == 6


def test_never_imports_torch():
    code = "import sys, plots.latency, plots.speedup, plots.worth; assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(plots.__file__).parents[1])
