"""`bench.py history`: what it prints and writes, and its picture."""

import re

import pytest

from tests import factory, histories
from tests.cli.test_cli import call

LEVELS = {"cuda_fused": [5.0] * 4 + [5.2] * 5, "triton_fused": [6.0] * 4 + [6.3] * 5, "op_chain": [40.0] * 9}


@pytest.fixture
def records(tmp_path):
    for number, run in enumerate(histories.runs(LEVELS)):
        factory.write(run, tmp_path / "runs" / f"{number}.jsonl")
    return tmp_path / "runs"


def test_the_command(records, tmp_path):
    code, out, err = call("history", records, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "gpu_us of 6 cells over 9 commits" in " ".join(out.split())
    assert "4 cells changed by more than 2 %" in out
    assert re.search(r"decode_native/triton_fused +\+5.\d\s% .*2 of 2", out)
    assert "op_chain" not in out
    assert (tmp_path / "out" / "history.md").read_text().count("| decode_native/triton_fused/") == 2
    assert (tmp_path / "out" / "history.png").stat().st_size > 10_000
    _, out, _ = call("history", records, "--out", tmp_path / "out", "--only", "*/cuda_fused/batch_size=8,*")
    assert "1 cell changed" in out
    code, _, err = call("history", records, "--out", tmp_path / "out", "--only", "nothing")
    assert code == 2
    assert "--only nothing" in err
