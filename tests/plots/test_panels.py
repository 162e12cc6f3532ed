"""Contents of the figures: panels, slices, labels, ratios, and the reasons where there is no ratio."""

import importlib

import pytest
from matplotlib.text import Text
from msgspec.structs import replace

from spec_decode_bench.harness.analysis.stats import Interval
from spec_decode_bench.harness.records.schema import Metrics
from spec_decode_bench.plots import _by_gpu, _style, speedup
from spec_decode_bench.plots._axes import panel_title
from spec_decode_bench.plots._panels import panels
from spec_decode_bench.plots._speedup_table import speedup_table
from spec_decode_bench.regression.comparison import VERDICTS, CellComparison, Comparison, Machines, Rule, compare
from spec_decode_bench.regression.plots import regression
from tests import factory
from tests.plots.test_plots import one_variant_run, untimed_run, wide_run
from tests.tier import few


def test_two_gpus_of_one_generation_have_panels_of_their_own():
    runs = [factory.sweep_run(), factory.sweep_run(factory.gpu_environment("NVIDIA H100"))]
    assert [(panel.device, panel.operator) for panel in panels(runs)] == [
        (gpu, operator) for gpu in ("NVIDIA H200", "NVIDIA H100") for operator in ("decode_flatten", "decode_native")
    ]


def test_each_cache_state_has_panels_of_its_own():
    """A cold run does not replace a hot one. Only gpu_us depends on the state; other metrics are taken hot."""
    hot, other = factory.sweep_run(), factory.sweep_run(seed=1)
    cold = factory.run(
        other.header.environment, other.cells, config=other.header.config | {"measure": {"cache": "cold"}}
    )
    found = panels([hot, cold])
    assert [(panel.cache, panel.operator) for panel in found] == [
        (cache, operator) for cache in ("hot", "cold") for operator in ("decode_flatten", "decode_native")
    ]
    assert [{id(point.run) for point in panel.points} for panel in found] == 2 * [{id(hot)}] + 2 * [{id(cold)}]
    assert [", cold cache" in panel_title(panel, "", 4) for panel in found] == [False, False, True, True]
    assert {panel.cache for panel in panels([hot, cold], "eager_us")} == {"hot"}


def test_a_point_comes_whole_from_its_latest_run():
    def started(day: int, chain: float, fused: float):
        cells = [
            factory.cell("decode_flatten", name, {"batch_size": 8}, gpu)
            for name, gpu in (("op_chain", chain), ("fused", fused))
        ]
        return factory.run(factory.gpu_environment(), cells, started=f"2026-01-0{day}T00:00:00+00:00")

    (panel,) = panels([started(2, 40, 4), started(1, 100, 50), untimed_run()])
    (row,) = speedup_table(panel, 60).rows
    assert row.ratios["fused"] == pytest.approx(10, rel=0.02)


def test_the_slice_covers_most_batch_sizes_then_variants_then_the_longest_rows():
    cells = [
        factory.cell("decode_flatten", variant, {"batch_size": size, "max_decode_len": rows, "padding": pad}, 5.0)
        for rows, pad, sizes, variants in [
            (1, 0, (1, 2, 3), ("op_chain", "fused")),
            (3, 0, (1, 2, 3), ("op_chain", "fused")),
            (4, 0, (1, 2, 3), ("op_chain",)),
            (5, 0, (1, 2), ("op_chain", "fused", "more")),
        ]
        for size in sizes
        for variant in variants
    ]
    (panel,) = panels([factory.run(factory.gpu_environment(), cells)])
    name, points = panel.slice("batch_size")
    assert name == "max_decode_len=3"
    assert [point.axes["batch_size"] for point in points] == [1, 2, 3]


def test_among_equal_slices_the_largest_whole_numbers_win():
    cells = [
        factory.cell("k_quant_gather", "op_chain", {"batch_size": size, "chunk_tokens": chunk, "padding": pad}, 5.0)
        for chunk, pad in ((2048, 0.5), (32768, 0.0), (32768, 0.1), (8192, 0.0))
        for size in (1, 32)
    ]
    (panel,) = panels([factory.run(factory.gpu_environment(), cells)])
    assert panel.slice("batch_size")[0] == "chunk_tokens=32768, padding=0.0"


@pytest.mark.parametrize("name", ["latency", "roofline"])
def test_a_curve_that_would_hide_another_one_surrounds_it(name):
    times = {"op_chain": 40.0, "cuda_fused": 2.0, "cuda_replayed": 2.0, "triton_fused": 2.2}
    run = pairs_run({(8, 0): times, (64, 0): times})
    (ax,) = importlib.import_module(f"spec_decode_bench.plots.{name}").figure([run]).axes
    halos = [line.get_color() for line in ax.get_lines() if line.get_markersize() == _style.HALO_STYLE["markersize"]]
    assert halos == [_style.variant_style("cuda_replayed")["color"]]


def test_labels_name_axes_that_vary_and_defaults_that_point_labels_leave_out():
    points = [{"batch_size": 32, "padding": 0.0, "tokens": 3}, {"batch_size": 32, "padding": 0.1, "tokens": 4}]
    cells = [factory.cell("decode_flatten", "op_chain", axes, 5.0) for axes in points]
    cells = [replace(cell, point="padding=0.1" if cell.axes["padding"] else "default") for cell in cells]
    (panel,) = panels([factory.run(factory.gpu_environment(), cells)])
    one = speedup_table(panel, 60)
    assert (one.axes, [row.label for row in one.rows]) == (["padding"], ["  0", "0.1"])


def test_reasons_and_geometric_means_of_a_table():
    (panel,) = panels([wide_run(1, range(1, 21))])
    rows = {row.label: row for row in speedup_table(panel, 60).rows}
    assert len(rows) == 20
    assert rows["1"].ratios["cuda_fused"] == pytest.approx(46 / 1.6, rel=0.05)
    assert rows["1"].reasons == {"upstream": "n/a"}
    assert rows["4"].reasons["merged_chain"] == "wrong"
    assert rows["8"].reasons["triton_fused"] == "failed"
    assert rows["16"].reasons == {"op_chain": "skip", "upstream": "n/a"}
    assert set(rows["16"].times) == {"merged_chain", "compiled_chain", "triton_fused", "cuda_fused"}
    assert not rows["16"].ratios
    assert not rows["1"].times
    assert "geometric mean" in speedup.figure([wide_run(1, range(1, 21))]).axes[0].get_title()


def test_where_the_chain_has_no_time_a_mean_is_one_of_times():
    uncaptured = factory.cell("decode_flatten", "op_chain", {"batch_size": 8, "padding": 0}, 5.0)
    uncaptured = replace(uncaptured, metrics=Metrics(bytes_moved=1, eager_us=[50.0], no_graph="waits"))
    run = pairs_run({(8, 0): {"cuda_fused": 2.0}, (8, 0.1): {"cuda_fused": 8.0}})
    (panel,) = panels([factory.run(run.header.environment, [uncaptured, *run.cells])])
    (row,) = speedup_table(panel, 1).rows
    assert (row.reasons, row.ratios) == ({"op_chain": "no graph"}, {})
    assert row.times["cuda_fused"] == pytest.approx(4.0, rel=0.05)
    assert speedup.figure([run]) is None


def test_an_operator_without_a_timed_baseline_is_named_below_the_tables():
    cells = [factory.cell("decode_native", name, {"batch_size": 8}, gpu=2.0) for name in ("chain", "cuda_fused")]
    cells[0] = replace(cells[0], status="skipped", metrics=None, reason="no")
    figure = speedup.figure([factory.run(factory.gpu_environment(), [*one_variant_run().cells, *cells])])
    assert [ax.get_title().split("\n")[0] for ax in figure.axes if ax.get_title()] == ["decode_flatten"]
    assert any("left out: decode_native, whose baseline" in text.get_text() for text in figure.texts)


def test_a_mean_does_not_hide_a_mismatch_at_one_point():
    run = wide_run(1, range(1, 21))
    broken = [replace(run.cells[5], status="mismatch", metrics=None), *run.cells[6:], *run.cells[:5]]
    (panel,) = panels([factory.run(factory.gpu_environment(), broken)])
    row = next(row for row in speedup_table(panel, 60).rows if row.label == "1")
    assert row.reasons["cuda_fused"] == "wrong"
    assert "cuda_fused" not in row.ratios


def test_a_variant_that_cannot_be_captured_is_named_so():
    cell = factory.cell("decode_flatten", "upstream", {"batch_size": 8}, 5.0)
    no_graph = replace(cell, metrics=Metrics(bytes_moved=1, eager_us=[50.0], no_graph="allocates"))
    run = one_variant_run()
    (panel,) = panels([factory.run(run.header.environment, [*run.cells, no_graph])])
    assert speedup_table(panel, 60).rows[0].reasons == {"upstream": "no graph"}


def test_a_point_or_variant_that_applies_nowhere_takes_no_room():
    run = one_variant_run()
    skipped = [
        factory.cell("decode_flatten", name, {"batch_size": size}, 5.0, status="skipped", reason="no")
        for name, size in (("upstream", 8), ("upstream", 9), (run.cells[0].variant, 9))
    ]
    (panel,) = panels([factory.run(run.header.environment, [*run.cells, *skipped])])
    one = speedup_table(panel, 60)
    assert "upstream" not in one.columns
    assert [row.label for row in one.rows] == ["8"]


def pairs_run(points):
    """(batch_size, padding) -> variant -> time."""
    cells = [
        factory.cell("decode_flatten", name, {"batch_size": size, "padding": pad}, gpu)
        for (size, pad), times in points.items()
        for name, gpu in times.items()
    ]
    return factory.run(factory.gpu_environment(), cells)


def test_means_of_a_row_are_taken_over_the_points_that_its_variants_share():
    easy, hard = {"op_chain": 40.0, "cuda_fused": 4.0}, {"op_chain": 40.0, "cuda_fused": 1.0}
    apart = {(64, 0): {"op_chain": 40.0, "cuda_fused": 2.0}, (64, 0.1): {"op_chain": 40.0, "triton_uniform": 5.0}}
    points = {(8, 0): easy | {"triton_uniform": 8.0}, (8, 0.1): hard}
    (panel,) = panels([pairs_run(points)])
    one = speedup_table(panel, 1)
    assert "that all variants of the row have" in one.mean
    assert {name: round(ratio) for name, ratio in one.rows[0].ratios.items()} == {
        "op_chain": 1,
        "cuda_fused": 10,
        "triton_uniform": 5,
    }
    (panel,) = panels([pairs_run(points | apart)])
    one = speedup_table(panel, 1)
    assert one.mean.endswith("; at 64 they share none: each over its own")
    assert {name: round(ratio) for name, ratio in one.rows[1].ratios.items()} == {
        "op_chain": 1,
        "cuda_fused": 20,
        "triton_uniform": 8,
    }
    (panel,) = panels([pairs_run({(8, 0): easy, (8, 0.1): hard})])
    assert "over all points" in speedup_table(panel, 1).mean
    assert round(speedup_table(panel, 1).rows[0].ratios["cuda_fused"]) == 20
    assert speedup_table(panel, 2).mean == ""


def test_a_point_that_all_available_variants_skip_has_no_row():
    timed = factory.cell("decode_flatten", "op_chain", {"batch_size": 8}, 4.0)
    skipped = factory.cell("decode_flatten", "op_chain", {"batch_size": 8, "padding": 0.1}, status="skipped")
    absent = factory.cell("decode_flatten", "cuda_fused", {"batch_size": 8, "padding": 0.1}, status="unavailable")
    (panel,) = panels([factory.run(factory.gpu_environment(), [timed, skipped, absent])])
    assert len(speedup_table(panel, 9).rows) == 1


def test_a_variant_that_a_run_left_out_has_a_reason_and_its_meaning():
    run = pairs_run({(8, 0): {"op_chain": 40.0, "merged_chain": 20.0}, (64, 0): {"op_chain": 40.0}})
    (panel,) = panels([run])
    assert [row.reasons for row in speedup_table(panel, 60).rows] == [{}, {"merged_chain": "not run"}]
    assert speedup_table(panel, 1).rows[1].reasons == {"merged_chain": "not run"}
    assert any("not run: not part of the run" in text.get_text() for text in speedup.figure([run]).findobj(Text))


def test_a_short_comparison_draws_what_is_slower_then_faster_then_unsure(monkeypatch):
    def row(verdict, i):
        ratio = {"slower": 1.2, "faster": 0.9, "same": 1.0, "unsure": 2.0}[verdict] + i / 1000
        interval = Interval(ratio, ratio, ratio)
        change = Interval(0, 0, 0)
        return CellComparison(
            operator="op",
            variant=f"{verdict}{i}",
            point="batch_size=1",
            metric="gpu_us",
            base_us=1.0,
            head_us=ratio,
            ratio=interval,
            change_us=change,
            verdict=verdict,
        )

    run = one_variant_run()
    rows = [row(verdict, i) for i in range(20) for verdict in VERDICTS]
    drawn = []
    monkeypatch.setattr(regression, "_forest", lambda axes, lines, *_: drawn.extend(lines))
    monkeypatch.setattr(regression, "save", lambda *_: [])
    monkeypatch.setattr(regression, "MAX_CELLS", 45)
    machines = Machines((), (), 0.0, None)
    regression.draw(Comparison((run,), (run,), Rule(), ("gpu_us",), [], machines, cells=rows), None)
    verdicts = [line.verdict for line in drawn if line.ratio]
    assert verdicts == ["slower"] * 20 + ["faster"] * 20 + ["unsure"] * 5


def test_labels_of_a_comparison_lie_inside_the_frame_at_the_resolution_of_the_file(monkeypatch):
    """The width of text depends on the resolution: bounds taken at another one would clip the labels."""
    caught = []
    monkeypatch.setattr(regression, "save", lambda figure, stem: caught.append(figure) or [])
    run = factory.sweep_run(factory.cpu_environment(), batch_sizes=(1, 8))
    regression.draw(compare([run], [run]), None)
    (figure,) = caught
    _style._freeze_layout(figure)
    frame = _style._bounds(figure)
    figure.set_dpi(_style.DPI)
    figure.draw_without_rendering()
    edges = [
        text.get_window_extent().x0 / _style.DPI
        for text in figure.findobj(Text)
        if text.get_text().strip() and text.get_visible()
    ]
    assert min(edges) >= frame.x0


# --- several GPUs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def two_gpus():
    return [factory.sweep_run(), factory.sweep_run(factory.gpu_environment("NVIDIA H100"), scale=300)]


@pytest.mark.parametrize("name", few(["latency", "itl_tpot"], 1))
def test_gpus_stand_side_by_side_on_one_scale(name, two_gpus):
    """A row per operator and a column per GPU, although the times of the second one are other times."""
    module = importlib.import_module(f"spec_decode_bench.plots.{name}")
    figure = module.figure(two_gpus)
    places = [ax.get_subplotspec() for ax in figure.axes]
    assert [(one.rowspan.start, one.colspan.start) for one in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for first, second in zip(figure.axes[::2], figure.axes[1::2], strict=True):
        assert first.get_title().split("\n")[0] == second.get_title().split("\n")[0]
        assert (first.get_xlim(), first.get_ylim()) == (second.get_xlim(), second.get_ylim())
        alone = [module.figure([run]).axes[figure.axes.index(first) // 2].get_ylim() for run in two_gpus]
        assert alone[0] != alone[1]
        low, high = first.get_ylim()
        assert low <= 1.01 * min(low for low, _ in alone) or low < 0
        assert high >= 0.99 * max(high for _, high in alone)


@pytest.mark.parametrize("name", few(["latency", "itl_tpot"], 1))
def test_by_gpu_draws_all_of_them_into_one_panel_in_colours_of_their_own(name, two_gpus):
    figure = importlib.import_module(f"spec_decode_bench.plots.{name}").figure(two_gpus, by="gpu")
    assert len(figure.axes) == 2
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"NVIDIA H200", "NVIDIA H100", "triton_fused", "cuda_fused"} <= legend
    assert len({line.get_color() for line in figure.axes[0].get_lines()} & set(_by_gpu.COLOURS[:2])) == 2
    assert "Hopper" not in figure.axes[0].get_title()


def test_tables_of_one_operator_on_two_gpus_follow_each_other(two_gpus):
    titles = [ax.get_title() for ax in speedup.figure(two_gpus).axes if ax.get_title()]
    assert [title.split("\n")[0] for title in titles] == ["decode_flatten"] * 2 + ["decode_native"] * 2


def test_a_cold_run_changes_no_figure_of_the_hot_one(two_gpus):
    """Neither its GPU times nor those that are always taken hot, although it is the later one."""
    hot = two_gpus[0]
    cold = factory.sweep_run(scale=3, seed=1)
    config = cold.header.config | {"measure": {"cache": "cold"}}
    both = [hot, factory.with_header(cold, config=config, started="2027-01-01T00:00:00+00:00")]
    for figure in ("gpu_us", "eager_us", "queued_us"):
        shown = [panel for panel in panels(both, figure) if panel.cache == "hot"]
        assert {id(point.run) for panel in shown for point in panel.points} <= {id(hot)}


def test_panels_of_a_cpu_fill_rows_below_those_of_the_gpus(two_gpus):
    figure = importlib.import_module("spec_decode_bench.plots.latency").figure(
        [*two_gpus, factory.sweep_run(factory.cpu_environment())]
    )
    places = [ax.get_subplotspec() for ax in figure.axes]
    assert [(one.rowspan.start, one.colspan.start) for one in places] == [(row, i) for row in (0, 1, 2) for i in (0, 1)]
    assert ["CPU wall time" in ax.get_title() for ax in figure.axes] == [False] * 4 + [True] * 2
