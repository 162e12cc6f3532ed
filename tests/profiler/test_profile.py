"""`bench.py profile` as a user meets it: without a GPU, without tools, with tools that fail, with the wrong report."""

import gzip
import json
import sqlite3
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from spec_decode_bench import bench
from spec_decode_bench.harness.config.load import load
from spec_decode_bench.harness.config.sweep import plan
from spec_decode_bench.harness.report.console import make_console
from spec_decode_bench.profiler import profile as profiling
from spec_decode_bench.profiler.records import PROFILE, SESSION, Profile, Session, read_document
from tests.tier import full

CONFIG = """\
name: tiny
operators: [decode_native]
variants: [chain_clamp, flat_view, cuda_fused]
sweep: [{batch_size: 3, context_len: 64}]
"""
KEY = "decode_native/{}/batch_size=3,context_len=64"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return path


def run(capsys, *words):
    code = bench.main(["profile", *map(str, words)])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return SimpleNamespace(code=code, out=said.out, err=said.err)


@full
def test_torch_on_a_cpu_shows_operators_and_no_gpu_time(capsys, config, tmp_path):
    out = tmp_path / "out"
    done = run(capsys, config, "--tool", "torch", "--device", "cpu", "--calls", 2, "--seed", 3, "--out", out)
    assert done.code == 0, done.err
    profile = read_document(out / PROFILE, Profile)
    assert [row.cell for row in profile.rows] == [KEY.format("chain_clamp"), KEY.format("flat_view")]
    chain, flat = profile.rows
    assert chain.calls == flat.calls == 2
    assert chain.api_calls > flat.api_calls > 0
    assert chain.kernels == 0
    assert profile.session.left_out == {KEY.format("cuda_fused"): "needs a GPU"}
    assert "GPU" not in done.out.replace("needs a GPU", "")
    assert "device µs" not in (out / "table.md").read_text()
    trace = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))
    assert KEY.format("flat_view") in {event["name"] for event in trace["traceEvents"]}
    assert not (out / profiling.PARTIAL).exists()
    again = run(capsys, config, "--out", out)
    assert (again.code, again.err) == (2, f"error: {out} holds a profile already; choose another folder with --out\n")


def program(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def request(config, tool, tmp_path, given):
    from spec_decode_bench.harness.discover import discover

    catalog, source = discover(), load(config)
    items = plan(source, catalog.operators, catalog.variants)
    options = SimpleNamespace(
        calls=None, phase=None, out=tmp_path / "out", nsys=given, ncu=given, config=str(config), only=[], set=[],
        variants=[], no_plots=True,
    )  # fmt: skip
    return profiling.request_of(options, "tiny", items, catalog, "cuda", 1, tool)


def test_a_tool_that_fails_in_the_middle_leaves_nothing_that_looks_whole(config, tmp_path, capsys):
    report = tmp_path / "out" / profiling.PARTIAL / "report.nsys-rep"
    text = f'case $1 in --version) echo "version 2025.3.1";; *) echo half > "{report}"; echo boom; exit 4;; esac'
    tool = program(tmp_path, "nsys", text)
    made = request(config, "nsys", tmp_path, str(tool))
    with pytest.raises(profiling.ToolFailed, match=r"nsys ended with exit code 4: boom; all that was printed: .*\.log"):
        profiling.make_profile(make_console(), made, None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [profiling.PARTIAL]


def other_sqlite(path, *statements):
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_reports_that_cannot_be_used(capsys, config, tmp_path):
    said = {}
    for name, content in {
        "missing.sqlite": None,
        "text.sqlite": b"not a database",
        "cut.sqlite": b"SQLite format 3\0" + bytes(200),
        "cut.json.gz": gzip.compress(b'{"traceEvents": []}')[:-9],
        "other.json": b"[1, 2]",
        "page.csv": b"a,b\n1,2\n",
        "report.txt": b"",
    }.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        out = tmp_path / f"out-{name}"
        done = run(capsys, config, "--device", "cpu", "--attribute", tmp_path / name, "--out", out)
        assert done.code == 2, name
        assert done.err.startswith("error: "), name
        assert done.err.count("\n") == 1, name
        assert not out.exists(), name
        said[name] = done.err
    foreign, without = tmp_path / "foreign.sqlite", tmp_path / "without.sqlite"
    other_sqlite(foreign, "CREATE TABLE shop (id INTEGER)")
    other_sqlite(without, "CREATE TABLE StringIds (id INTEGER, value TEXT)")
    for path in (foreign, without):
        said[path.name] = run(capsys, config, "--device", "cpu", "--attribute", path).err
    assert "No such file" in said["missing.sqlite"]
    assert "nsys export --type sqlite" in said["text.sqlite"]
    assert "not an Nsight Systems report" in said["foreign.sqlite"]
    assert "--trace=cuda,nvtx" in said["without.sqlite"]
    assert "not a complete Chrome trace" in said["cut.json.gz"]
    assert "--csv --page raw" in said["page.csv"]
    assert "a report ends in" in said["report.txt"]


def test_a_decode_loop_is_refused(capsys):
    done = run(capsys, "configs/decode_loop.yaml", "--device", "cpu")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "docs/profiling.md" in done.err


def test_none_runs_the_cells_and_nothing_else(capsys, config, tmp_path):
    done = run(capsys, config, "--tool", "none", "--device", "cpu", "--calls", 1, "--out", tmp_path / "w")
    assert done.code == 0
    assert [path.name for path in (tmp_path / "w").iterdir()] == [SESSION]
    session = read_document(tmp_path / "w" / SESSION, Session)
    assert [cell.key for cell in session.cells] == [KEY.format("chain_clamp"), KEY.format("flat_view")]
    assert all(cell.bytes_moved > 0 and cell.no_graph for cell in session.cells)


def test_the_timeline_of_a_profile_is_drawn_without_a_record(tmp_path):
    folder = Path("results/reference/nvidia-h100/profiles/nsys").resolve()
    assert bench.main(["plot", str(folder), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "timeline.png").stat().st_size > 10_000
