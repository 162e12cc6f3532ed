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


ONE = gpu_run(H200, {("fused", 1): 2.0})
COLD = {"name": "mtp3", "measure": {"cache": "cold"}}


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([ONE, gpu_run(H100, {("fused", 1): 4.0}, seed=3)], r"has seed 0, NVIDIA H100\.jsonl has 3"),
        ([ONE, gpu_run(H100, {("fused", 1): 4.0}, config=COLD)], r"a cold cache, NVIDIA H200\.jsonl with a hot one"),
        ([factory.sweep_run(factory.cpu_environment())], "is of a CPU"),
        ([gpu_run(H200, {("fused", 1): None})], "no cell of these records has gpu_us"),
    ],
    ids=["another seed", "cold and hot", "a CPU", "no time"],
)
def test_what_is_never_in_one_table_is_refused(runs, words):
    with pytest.raises(RecordError, match=words):
        across_gpus(runs, "gpu_us")
