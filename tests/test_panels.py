"""What stands in the figures: panels, slices, labels, ratios and the words where there is no ratio."""

import msgspec
import pytest

from harness.results.records import Metrics
from plots import speedup
from plots._panels import panels
from plots._rows import table
from tests import factory
from tests.test_plots import one_variant_run, untimed_run, wide_run


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
    assert (one.axes, [row.label for row in one.rows]) == (["padding"], ["  0", "0.1"])


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
