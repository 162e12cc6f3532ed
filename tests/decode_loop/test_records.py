"""Lines of decode loops survive the file, and commands without a table for them say so."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.records.file import read_run, write_run
from spec_decode_bench.harness.records.merge import merge
from spec_decode_bench.harness.records.schema import RecordError, Status
from tests import factory
from tests.cli.test_cli import call
from tests.decode_loop import factory_loops
from tests.factory import gpu_environment

RECORD = Path(__file__).parents[2] / "results" / "reference" / "nvidia-h200" / "decode_loop.jsonl"
SWEEP = RECORD.with_name("decode_tables.jsonl")


@pytest.fixture
def loops():
    loops = factory_loops.many_loops(np.random.default_rng(0), concurrencies=(1, 8))
    failed = replace(
        loops[1], stack="wrong", status=Status.MISMATCH, blocks=[], **factory.why_not("mismatch", "step 3: table lens")
    )
    return [*loops, failed]


def test_what_is_written_is_read(tmp_path, loops):
    path = tmp_path / "run.jsonl"
    run = factory_loops.run(loops, gpu_environment())
    write_run(run, path)
    again = read_run(path)
    assert again.others == loops
    assert again.cells == []
    assert again.header.cells == tuple(loop.key for loop in loops)


def test_loops_are_no_shards(loops):
    with pytest.raises(RecordError, match="holds decode loops, which have no shards"):
        merge([factory_loops.run(loops, gpu_environment())] * 2)


COMMANDS = ["report", SWEEP], ["export"], ["history"], ["compare", "--variants", "a", "b"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_commands_without_a_table_for_loops_say_so(command):
    code, out, err = call(command[0], RECORD, *command[1:])
    assert (code, out) == (2, "")
    assert f"{RECORD} holds decode loops" in err


def test_report_of_several_loops_has_rows_for_each(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    other = RECORD.parents[1] / "nvidia-h100" / RECORD.name
    code, out, _ = call("report", RECORD, other, "--no-plots", "--out", tmp_path)
    assert code == 0
    assert ("decode_loop, H200" in out, "decode_loop, H100" in out) == (True, True)


def test_report_prints_the_loops_of_one_record(tmp_path):
    code, out, _ = call("report", RECORD, "--no-plots", "--out", tmp_path)
    assert code == 0
    assert "ITL of chains in ms" in out
    assert "percentiles" in (tmp_path / "report.md").read_text(encoding="utf-8")
