"""Several GPUs side by side: medians, ratios and means of known values, and what is refused."""

import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.analysis.across_gpus import across_gpus
from spec_decode_bench.harness.analysis.stats import geometric_mean
from spec_decode_bench.harness.records.schema import RecordError
from spec_decode_bench.harness.report.across_gpus import operator_tables, summary_table
from spec_decode_bench.harness.report.table import markdown
from tests import factory

H200, H100 = factory.gpu_environment(), factory.gpu_environment("NVIDIA H100")


def gpu_run(environment, us, **header):
    """us: (variant, batch size) -> GPU time."""
    cells = [factory.cell("decode_native", name, {"batch_size": size}, time) for (name, size), time in us.items()]
    return replace(factory.run(environment, cells, **header), path=f"{environment.gpu}.jsonl")


def with_config(run, **measure):
    return factory.with_header(run, config={"name": "mtp3", "measure": measure})


def test_medians_ratios_and_means_over_the_points_that_all_gpus_have():
    ours = gpu_run(H200, {("fused", 1): 2.0, ("fused", 8): 8.0, ("fused", 32): 20.0})
    theirs = gpu_run(H100, {("fused", 1): 4.0, ("fused", 8): 8.0, ("chain", 8): 40.0})
    across = across_gpus([ours, theirs], "gpu_us")
    assert across.gpus == ("NVIDIA H200", "NVIDIA H100")
    assert len(across.common("decode_native", "fused")) == 2
    (row,) = summary_table(across).rows
    assert [entry.text for entry in row] == ["decode_native", "fused", "2", "4.00", "5.66\u00a00.71×"]
    (table,) = operator_tables(across)
    texts = {(size.text, variant.text): [entry.text for entry in entries] for size, variant, *entries in table.rows}
    assert texts["1", "fused"] == ["2.00", "4.00\u00a00.50×"]
    assert texts["32", "fused"] == ["20.0", ""]
    assert texts["8", "chain"] == ["", "40.0"]
    assert "| 1 | fused | 2.00 | 4.00\u00a00.50× |" in markdown([table])
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_gpus_without_a_common_point_are_said_to_have_none():
    ours, theirs = gpu_run(H200, {("fused", 1): 2.0}), gpu_run(H100, {("fused", 8): 8.0})
    summary = summary_table(across_gpus([ours, theirs], "gpu_us"))
    assert not summary.rows
    assert summary.title.endswith("no point was timed on all of these GPUs")


def test_other_seeds_are_refused():
    a, b = gpu_run(H200, {("fused", 1): 2.0}), gpu_run(H100, {("fused", 1): 4.0}, seed=3)
    with pytest.raises(RecordError, match=r"has seed 0, NVIDIA H100\.jsonl has 3"):
        across_gpus([a, b], "gpu_us")


def test_cold_and_hot_are_never_in_one_table():
    hot, cold = gpu_run(H200, {("fused", 1): 2.0}), with_config(gpu_run(H100, {("fused", 1): 4.0}), cache="cold")
    with pytest.raises(RecordError, match=r"was measured with a cold cache, NVIDIA H200\.jsonl with a hot one"):
        across_gpus([hot, cold], "gpu_us")


def test_what_holds_no_time_of_a_gpu_is_refused():
    with pytest.raises(RecordError, match="is of a CPU"):
        across_gpus([factory.sweep_run(factory.cpu_environment())], "gpu_us")
    with pytest.raises(RecordError, match="no cell of these records has gpu_us"):
        across_gpus([factory.run(H200, [factory.cell("o", "v", {"n": 1}, status="failed")])], "gpu_us")
