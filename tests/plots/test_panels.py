"""Contents of the figures: panels, slices, labels, ratios, and the reasons where there is no ratio."""

import pytest
from msgspec.structs import replace

from spec_decode_bench.plots import speedup
from spec_decode_bench.plots._axes import panel_title
from spec_decode_bench.plots._panels import panels
from spec_decode_bench.plots._speedup_table import speedup_table
from tests import factory
from tests.plots.test_plots import untimed_run, wide_run


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


def test_a_mean_does_not_hide_a_mismatch_at_one_point():
    run = wide_run(1, range(1, 21))
    broken = [replace(run.cells[5], status="mismatch", metrics=None), *run.cells[6:], *run.cells[:5]]
    (panel,) = panels([factory.run(factory.gpu_environment(), broken)])
    row = next(row for row in speedup_table(panel, 60).rows if row.label == "1")
    assert row.reasons["cuda_fused"] == "wrong"
    assert "cuda_fused" not in row.ratios


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
