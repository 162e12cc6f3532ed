"""Tables and pictures of records from an engine."""

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.engine_plugin.plots import engine_arms
from spec_decode_bench.engine_plugin.records import EngineBlock
from spec_decode_bench.engine_plugin.tables import engine_tables
from spec_decode_bench.harness.discover import ROOT
from spec_decode_bench.harness.records.schema import Finding, Place, Status
from tests.cli.test_cli import call
from tests.engine_plugin.fakes import two_speeds
from tests.factory import gpu_environment, run

ENGINE = {"model": "tiny", "layers": 4, "method": "eagle", "num_drafts": 3}


def run_of(blocks):
    environment = gpu_environment(packages={"vllm": "0.22.1"})
    made = run(environment, [], name="measure", config={"engine_plugin": {"every": 50}, "engine": ENGINE})
    return replace(made, others=blocks)


@pytest.fixture
def measured():
    changes = {"engine": 0.0, "suite": -120.0, "packed": -90.0}
    return two_speeds(np.random.default_rng(5), 40, changes)


def test_the_table_of_arms(measured):
    launches = replace(measured[0], itl_us=[], host_us={}, launches={"step_prologue": 14}, number=999)
    measured[3] = replace(measured[3], prefill_us=[30000.0])
    (table,) = engine_tables(run_of([*measured, launches]))
    rows = [[entry.text for entry in row] for row in table.rows]
    assert [row[:2] for row in rows] == [["32", "engine"], ["32", "suite"], ["32", "packed"]]
    assert rows[0][3] == rows[0][4] == rows[0][6] == ""
    assert rows[1][3].startswith("−1")
    assert rows[1][3] != rows[1][4]
    assert [row[8] for row in rows] == ["14", "", ""]
    assert any("1 step with a prefill, of 30.0 ms" in note for note in table.notes)


def test_too_few_steady_palindromes_are_told(measured):
    (table,) = engine_tables(run_of(measured[:12]))
    assert table.rows == ()
    assert any("of 2 palindromes are steady; 6 are needed" in note for note in table.notes)


def block(**given):
    return EngineBlock(**{"mode": "check", "arm": "suite", "batch": 8, "number": 1, "status": Status.PASSED} | given)


def test_what_was_compared_and_what_was_different():
    finding = Finding(
        status=Status.MISMATCH, place=Place.POINT, variant="decode_step/wrong", name="step 3", message="no"
    )
    blocks = [
        block(checked={"step_prologue": 90, "decode_step": 3}, uncovered={"step_prologue": 2}),
        block(number=2, status=Status.MISMATCH, finding=finding),
    ]
    (table,) = engine_tables(run_of(blocks))
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["step_prologue", "90", "0", "2"],
        ["decode_step", "3", "1", "0"],
    ]


def test_what_capturing_costs():
    blocks = [
        block(mode="capture", arm="engine", itl_us=[2000.0, 2010.0, 1990.0]),
        block(mode="capture", arm="engine", captured_us=[7000.0], captured_bytes=1234),
    ]
    (table,) = engine_tables(run_of(blocks))
    assert [[entry.text for entry in row] for row in table.rows] == [["8", "1", "2.00", "7.00", "+100"]]
    assert table.notes == ("1,234 bytes in all; medians",)


def test_the_picture_has_every_arm_and_batch_size(measured):
    run = run_of([*measured, *(replace(one, batch=128) for one in measured)])
    fig = engine_arms.figure([run, run_of([])])
    changes, host = fig.axes
    assert [tick.get_text() for tick in changes.get_xticklabels()] == ["32", "128"]
    assert len(host.patches) == 6
    assert len(changes.containers) == 2
    assert engine_arms.figure([run_of([])]) is None


def test_a_shipped_record_is_reported(tmp_path):
    code, out, err = call("report", ROOT / "results" / "reference" / "nvidia-h200" / "engine_llama_check.jsonl")
    assert (code, err) == (0, "")
    assert "step_prologue" in out
