"""`bench.py run --watch`: what an author's saves do, whatever is in them."""

import re
import signal
from itertools import pairwise

import pytest

from spec_decode_bench.cli import watch
from spec_decode_bench.harness.records.file import content, read_run
from spec_decode_bench.harness.session.saved_files import SavedFiles
from spec_decode_bench.harness.session.worker import Outdated
from tests.cli.test_cli import TINY, call
from tests.tier import few, full

#: A variant of which PLACE is edited; it computes with what lies beside it.
MINE = """\
import sys
from pathlib import Path

import torch
from spec_decode_bench import variant

sys.path.insert(0, str(Path(__file__).parent))
import beside

sys.modules["torch"].edits = getattr(torch, "edits", 0) + 1
assert torch.edits == 1, "an earlier edit lives on"


@variant("decode_native", skip=lambda p: (p.row_alignment, p.cp_size) != ("end", 1) and "no" or None, waives="no_alloc")
def mine(point, x, out):
    steps = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32)
    rows = out.buffer[: point.batch_size * point.max_decode_len]

    def launch():
        lens = ((x.seq_lens[:, None] + steps).clamp_(min=beside.LEAST) // point.compress_ratio).flatten()
        rows.copy_(lens)  # PLACE

    return launch
"""


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Run an editing session: each edit is a text that takes PLACE, or a function; then Ctrl-C. Returns (exit code,
    output, errors, record).
    """
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    (tmp_path / "beside.py").write_text("LEAST = 0\n")
    (tmp_path / "tiny.yaml").write_text(TINY.replace("flat_view", "mine").replace("max_rounds: 3", "max_rounds: 20"))

    def run(*edits, meanwhile=lambda: None, timeout_s=60):
        left = list(edits)

        class Author(SavedFiles):
            def wait(self):
                try:
                    super().check()
                except Outdated:  # the author did not wait
                    return super().wait()
                if not left:
                    signal.raise_signal(signal.SIGINT)
                edit = left.pop(0)
                if callable(edit):
                    edit()
                else:
                    file.write_text(edit if edit.startswith("import") else MINE.replace("# PLACE", edit))
                return super().wait()

            def check(self):
                meanwhile()
                super().check()

        monkeypatch.setattr(watch, "SavedFiles", Author)
        more = "--set", f"measure.timeout_s={timeout_s}", "--seed", 0, "--variants", file
        globs = "--only", "*/mine/*", "--only", "*/chain_clamp/*"
        code, out, err = call("tiny.yaml", *more, *globs, "--watch", "--out", "out")
        assert not left, err
        assert "Traceback" not in err
        return code, out, err, tmp_path / "out" / "run.jsonl"

    return run


def test_every_save_is_verified_timed_and_compared(session, tmp_path):
    """The file, and a module that it imports. The other variant is the one to compare with."""
    beside = tmp_path / "beside.py"
    code, out, err, path = session(
        "\n        [rows.sum() for _ in range(20)]", lambda: beside.write_text("LEAST = min(0, 0)\n")
    )
    assert code == 130
    assert "interrupted: out/run.jsonl holds 3 saves; " in err
    assert re.findall("─ save (.*?) ─", out) == ["2: mine.py", "3: beside.py"]
    first, second, third = out.split("─ save ")
    assert "against chain_clamp" in first
    assert "since the last save" not in first
    assert "slower" in second
    assert "since the last save" in second
    assert "since the last save" in third
    run = read_run(path)
    assert [(len(save.cells), save.missing) for save in (*run.earlier, run)] == [(4, [])] * 3
    assert all(cell.was_timed and cell.process == 2 for cell in run.cells)
    assert all(before.header.sources != after.header.sources for before, after in pairwise((*run.earlier, run)))
    assert "against" in (path.parent / "table.md").read_text()
    code, out, _ = call("report", path)
    assert code == 0
    assert out.count("chain_clamp") >= 1


BAD = {
    "wrong": ("; rows.add_(1)", "decode_native/mine: edge case 'B=1': exact"),
    "a syntax error": ("(", "mine.py: cannot be imported: SyntaxError"),
    "hangs": ("\n        while True: pass", "did not respond for 2 s (measure.timeout_s)"),
    "kills its process": ("\n        __import__('os').kill(0, 9)", "was killed by SIGKILL"),
    "ends at its import": ("import os; os._exit(3)", "the worker process ended with exit code 3"),
}


@pytest.mark.parametrize("what", few(BAD, 2))
def test_the_watch_goes_on_after(session, what):
    """It is told and kept, and the next save is measured as if it had not been."""
    edit, said = BAD[what]
    code, _, err, path = session(edit, "# right again", timeout_s=2)
    assert code == 130
    assert said in err
    run = read_run(path)
    assert [cell.status for cell in run.cells] == ["passed"] * 4
    assert min(cell.process for cell in run.cells) > 1
    assert content(path).count(b'"save":') == 2


def test_a_save_in_the_middle_of_a_measurement(session, tmp_path):
    """It is begun again; what was measured before is kept."""
    edits = ["# saved again"]

    def meanwhile():
        path = tmp_path / "out" / "run.jsonl"
        if path.exists() and content(path).count(b'"process":1') > 1 and edits:  # a segment and a cell
            (tmp_path / "mine.py").write_text(MINE.replace("# PLACE", edits.pop()))

    code, _, err, path = session("# once", meanwhile=meanwhile)
    assert code == 130
    assert "saved again: starting over" in err
    assert not edits
    run = read_run(path)
    once, begun = run.earlier
    assert len(once.cells) == len(run.cells) == 4
    assert len(begun.missing) > 0


def test_a_save_before_anything_was_measured(session, tmp_path):
    edits = ["# saved again"]

    def meanwhile():
        if edits:
            (tmp_path / "mine.py").write_text(MINE.replace("# PLACE", edits.pop()))

    code, _, err, path = session(meanwhile=meanwhile)
    assert code == 130
    assert "saved again: starting over" in err
    run = read_run(path)
    assert len(run.cells) == 4
    assert not run.earlier


@full
def test_code_of_the_suite_is_imported_anew_or_ends_the_watch(session, monkeypatch):
    """A kernel has a new process, which has not waited; what all processes share cannot be changed."""
    monkeypatch.setattr(watch, "_is_of_suite", lambda file: True)
    code, _, _, path = session("# once")
    assert code == 130
    assert len(read_run(path).earlier) == 1
    path.rename(path.with_name("first.jsonl"))
    changes = iter([None, "baselines/one.py"])
    monkeypatch.setattr(watch, "changed_source", lambda before, now: next(changes))
    code, _, err, path = session("# twice")
    assert code == 1
    assert "stopped: baselines/one.py was changed" in err
    assert not read_run(path).missing


def test_a_file_that_vanishes_for_a_moment_is_waited_for(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("1")
    files = SavedFiles([str(file)])
    files.check()
    file.unlink()
    with pytest.raises(Outdated):
        files.check()
    (tmp_path / "b.py").write_text("2")
    (tmp_path / "b.py").rename(file)
    assert files.wait()[1] == [str(file)]
    files.check()


def test_what_cannot_be_watched(session, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def (")
    code, _, err = call("tiny.yaml", "--variants", "mine.py", "--watch", "--out", "out")
    assert code == 2
    assert "SyntaxError" in err
    assert not (tmp_path / "out").exists()
    code, _, err = call("tiny.yaml", "--watch", "--plan")
    assert code == 2
    assert "--watch and --plan exclude each other" in err
