"""Reports of real sessions on an H200, cut to a few cells: `bench.py profile configs/smoke.yaml --calls 5`."""

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from spec_decode_bench.profiler import chrome_trace, ncu, nsys
from spec_decode_bench.profiler.attribution import attribute
from spec_decode_bench.profiler.records import Profile
from spec_decode_bench.profiler.tables import l2_bytes, profile_tables
from spec_decode_bench.profiler.trace import ReportError
from tests import factory

DATA = Path(__file__).parents[1] / "data" / "profiles"
CHAIN, FUSED = (f"decode_flatten/{name}/batch_size=8,context_len=2048" for name in ("op_chain", "cuda_fused"))
CALLS = 5


@pytest.fixture(params=["nsys.sqlite", "torch.json.gz"])
def trace(request):
    return (nsys if request.param.endswith(".sqlite") else chrome_trace).read(DATA / request.param)


def rows_of(trace):
    trace.ranges = [one for one in trace.ranges if one.name in (CHAIN, FUSED)]
    found = attribute(trace)
    return {(row.cell, row.phase): row for row in found.rows}, found


def test_every_call_of_every_cell_is_found(trace):
    rows, _ = rows_of(trace)
    assert {key: row.calls for key, row in rows.items()} == {
        (cell, phase): CALLS for cell in (CHAIN, FUSED) for phase in ("eager", "graph")
    }


def test_a_chain_is_23_kernels_and_2_copies_called_or_replayed_and_a_fused_kernel_is_one(trace):
    rows, _ = rows_of(trace)
    for phase in ("eager", "graph"):
        chain, fused = rows[CHAIN, phase], rows[FUSED, phase]
        assert (chain.kernels, chain.memcpys) == (23 * CALLS, 2 * CALLS)
        assert (fused.kernels, fused.memcpys, fused.memsets) == (CALLS, 0, 0)
        assert min(chain.device_us) > 10 * max(fused.device_us) > 10
    assert min(rows[CHAIN, "eager"].gap_us) > 10 * max(rows[CHAIN, "graph"].gap_us)
    assert set(rows[FUSED, "graph"].gap_us) == {0.0}


def test_kernels_inside_of_cubs_ranges_are_the_cells():
    """Three scans of two kernels in each call; in a replay nothing is launched inside of them."""
    rows, found = rows_of(nsys.read(DATA / "nsys.sqlite"))
    assert rows[CHAIN, "eager"].kernels == 23 * CALLS
    assert found.share.of_operations == 1.0
    assert [(one.name, one.count) for one in found.outside] == [("cuProfilerStart", 1)]


def test_kernels_of_the_ramp_are_in_no_cell():
    _, found = rows_of(chrome_trace.read(DATA / "torch.json.gz"))
    outside = {one.name: one.count for one in found.outside}
    assert outside == {"busy": 2, "cuLaunchKernelEx": 2, "cudaProfilerStart": 1}
    assert found.share.operations - found.share.operations_attributed == 2


def test_without_the_correlation_of_its_launch_a_kernel_is_in_no_cell(tmp_path):
    document = json.loads(gzip.decompress((DATA / "torch.json.gz").read_bytes()))
    fused = next(event for event in document["traceEvents"] if event["name"] == "flatten_vec4")
    fused["args"]["correlation"] = 1
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    rows, found = rows_of(chrome_trace.read(path))
    assert sum(rows[FUSED, phase].kernels for phase in ("eager", "graph")) == 2 * CALLS - 1
    assert "flatten_vec4" in {one.name for one in found.outside}


def test_a_report_of_another_domain_is_refused(tmp_path):
    path = tmp_path / "other.sqlite"
    path.write_bytes((DATA / "nsys.sqlite").read_bytes())
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = 'another' WHERE eventType = 75 AND text LIKE 'spec%'")
    connection.close()
    with pytest.raises(ReportError, match="no range in the domain spec-decode-metadata"):
        nsys.read(path)


def test_counters_of_each_kernel_with_its_cell():
    keys = [
        CHAIN,
        FUSED,
        CHAIN.replace("op_chain", "triton_fused"),
        "decode_native/chain/batch_size=8,context_len=2048",
    ]
    found = ncu.read(DATA / "ncu.csv", keys)
    assert [(one.cell.split("/")[1], one.name) for one in found[:2]] == [
        ("triton_fused", "_fused"),
        ("cuda_fused", "flatten_vec4"),
    ]
    assert [one.cell for one in found[2:]] == [keys[3]] * 2
    fused = found[1]
    assert (fused.us, fused.dram_read, fused.dram_write) == (pytest.approx(2.784), 38144, 0)
    assert (fused.l2_read, fused.l2_write) == (1063 * 32, 1164 * 32)
    assert l2_bytes([fused]) == (1063 + 1164) * 32
    assert (fused.registers, fused.grid, fused.block) == (26, "11×3", "256")
    assert (round(fused.occupancy, 4), fused.theoretical) == (0.1196, 1.0)
    assert ncu.read(DATA / "ncu.csv", ["decode_step/op_chain/default"]) == []


def test_times_of_a_record_stand_beside_the_profile_by_the_key_of_the_cell():
    rows, _ = rows_of(nsys.read(DATA / "nsys.sqlite"))
    axes = {"batch_size": 8, "context_len": 2048}
    record = factory.run(factory.gpu_environment(), [factory.cell("decode_flatten", "cuda_fused", axes, 1.5, 9.0)])
    profile = Profile(version=1, tool="nsys", tool_version="1", name="n", command="c", rows=list(rows.values()))
    (table,) = profile_tables(profile, record)
    assert table.heads[-2:] == ("mtp3: gpu µs", "host µs")
    shown = {(row[0].text, row[1].text): [entry.text for entry in row[-2:]] for row in table.rows}
    assert shown[("op_chain", "graph")] == shown[("op_chain", "eager")] == ["", ""]
    gpu, host = shown[("cuda_fused", "graph")][0], shown[("cuda_fused", "eager")][1]
    assert (float(gpu), float(host)) == (pytest.approx(1.5, rel=0.05), pytest.approx(9.0, rel=0.05))
