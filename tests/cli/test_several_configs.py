"""One command for several configurations: a record for each, all planned before the first begins."""

import itertools
from functools import partial
from pathlib import Path

import pytest

from spec_decode_bench.harness.command import recording
from tests.cli.test_cli import TINY
from tests.harness.session.test_resume import KEYS, bench, keys  # noqa: F401 - bench is a fixture


@pytest.fixture
def two(bench):  # noqa: F811
    """bench with a second configuration: one variant at the points of the first."""
    text = TINY.replace("name: tiny", "name: other").replace("[chain_clamp, flat_view]", "[flat_view]")
    Path("other.yaml").write_text(text)
    return partial(bench, configs=("tiny.yaml", "other.yaml"))


def test_each_gets_a_record_in_a_folder_of_its_name(two):
    code, out, err, workers = two("--out", "all")
    assert (code, err) == (0, "")
    assert len(workers.started["evaluate"]) == 2
    assert keys("all/tiny/run.jsonl") == KEYS
    assert keys("all/other/run.jsonl") == [key for key in KEYS if "flat_view" in key]
    assert out.index("─ tiny ─") < out.index("4 passed") < out.index("─ other ─") < out.index("2 passed")


def test_ctrl_c_begins_no_other(two):
    code, _, err, _ = two("--out", "all", dies_after=1)
    assert code == 130
    assert "complete them with --resume all/tiny/run.jsonl" in err
    assert not Path("all/other").exists()


def test_a_file_that_changes_in_between_ends_the_command(two, monkeypatch):
    hashes, calls = recording.source_hashes, itertools.count()

    def changed_later(*of):
        later = next(calls) > 0
        return {name: "x" if later else known for name, known in hashes(*of).items()}

    monkeypatch.setattr(recording, "source_hashes", changed_later)
    code, _, err, _ = two("--out", "all")
    assert code == 2
    assert "was changed during the run, whose cells must all come from one version" in err
    assert not Path("all/other/run.jsonl").exists()


def test_a_mistake_in_the_second_is_found_before_the_first_begins(two):
    Path("other.yaml").write_text(TINY.replace("tiny", "other").replace("flat_view", "flat_views"))
    code, _, err, workers = two("--out", "all")
    assert (code, workers.started["evaluate"]) == (2, [])
    assert "other.yaml:3: variants[1]: no variant matches 'flat_views'" in err
