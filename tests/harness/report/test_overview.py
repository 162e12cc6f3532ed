"""Overviews: the fastest of each kind at a point."""

import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.records.schema import RecordError
from spec_decode_bench.harness.report import overview
from spec_decode_bench.harness.report.table import markdown_rows
from tests import factory


def run_at(point, speeds):
    """A made-up record of cells at one point. speeds: operator -> variant -> GPU time."""
    cells = [
        factory.cell(operator, name, point, gpu=us) for operator, all_ in speeds.items() for name, us in all_.items()
    ]
    return factory.run(factory.gpu_environment(), cells)


SPEEDS = {
    "k_quant_gather": {"op_chain": 2.9, "vllm_cuda": 6.0, "sglang_dsa_triton": 3.0, "unfused": 2.5},
    "decode_native": {"chain_clamp": 6.0, "flat_view": 3.0, "triton_sequence": 2.5},
}


@pytest.fixture
def rows():
    speeds = {name: all_ | {"triton_fused": 2.0, "cuda_fused": 1.5} for name, all_ in SPEEDS.items()}
    return overview.rows_at([run_at({"batch_size": 128}, speeds)], "batch_size=128*")


def test_a_fused_kernel_is_compared_with_its_fastest_opponent(rows):
    """An engine's kernel, else PyTorch operators; never a slower one of the same kind, nor a kernel of ours."""
    found = {row.operator: [cell.variant for cell in overview.before_and_fused(row)] for row in rows}
    assert found == {
        "k_quant_gather": ["sglang_dsa_triton", "cuda_fused"],
        "decode_native": ["flat_view", "cuda_fused"],
    }
    text = "\n".join(markdown_rows(overview.speedup_table(rows)))
    assert "SGLang 3.00 | 1.50 | 2.0×" in text


def test_each_column_has_the_fastest_of_its_kind_and_the_row_its_mark(rows):
    row = next(row for row in rows if row.operator == "k_quant_gather")
    shown = [cell.variant for cell in overview.shown(row)]
    assert shown == ["sglang_dsa_triton", "op_chain", "triton_fused", "cuda_fused"]
    marked = [line for line in markdown_rows(overview.overview_table([row])) if "**1.50" in line]
    assert len(marked) == 1


def test_known_failures_stand_below(rows):
    limited = [replace(cell, known_failures={"negative lengths*": "clamped before"}) for cell in rows[0].cells]
    table = overview.overview_table([rows[0]._replace(cells=limited)])
    assert any("negative lengths" in note for note in table.notes)
    with pytest.raises(RecordError, match="batch_size=7"):
        overview.rows_at([run_at({"batch_size": 128}, SPEEDS)], "batch_size=7*")


def test_points_are_found_by_their_defaults_too():
    cells = [factory.cell("decode_native", "op_chain", axes, gpu=3.0) for axes in ({"batch_size": 8}, {"next_n": 2})]
    spelt = [replace(cell, axes={"batch_size": 8, "next_n": 4} | cell.axes) for cell in cells]
    run = factory.run(factory.gpu_environment(), spelt)
    assert [row.what for row in overview.rows_at([run], "*next_n=4*")] == [cells[0].point]
    assert len(overview.rows_at([run], "batch_size=8*")) == 2
    with pytest.raises(RecordError, match=r"no point matches '\*next_n=5\*' in .*may be left out"):
        overview.rows_at([run], "*next_n=5*")


def test_every_kernel_of_an_engine_counts_as_one():
    for variant in discover().variants:
        cell = factory.cell(variant.operator, variant.name, {"batch_size": 1})
        assert overview.is_engine(cell) == variant.is_upstream
