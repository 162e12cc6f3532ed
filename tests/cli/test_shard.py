"""A sweep in pieces: the cut is exact, pieces need one seed, and merged pieces are the planned run."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.config.sweep import shard_of
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Cell
from tests import factory
from tests.cli.test_cli import call
from tests.harness.records.test_merge import piece
from tests.harness.session.test_resume import KEYS, bench, keys, says  # noqa: F401 - bench is a fixture


@pytest.mark.parametrize("points", [1, 7, 8, 23])
def test_the_pieces_are_disjoint_and_hold_every_point(points):
    groups = list(range(points))
    for pieces in range(1, points + 1):
        cut = [shard_of(groups, piece, pieces) for piece in range(1, pieces + 1)]
        assert sorted(point for piece in cut for point in piece) == groups
        assert max(map(len, cut)) - min(map(len, cut)) <= 1


# --- the command line -------------------------------------------------------------------------------------------------


def test_pieces_need_one_seed(bench):  # noqa: F811
    code, _, err, workers = bench("--shard", "1/2", "--out", "a")
    assert (code, workers.started["evaluate"]) == (2, [])
    assert "--seed" in err
    assert bench("--shard", "1/2", "--plan")[1].split() == KEYS[:2]
    assert "use 2 shards at most" in bench("--shard", "1/3", "--seed", "5", "--out", "a")[2]


def test_pieces_merge_into_the_run_that_was_planned(bench):  # noqa: F811
    for i in (1, 2):
        assert bench("--shard", f"{i}/2", "--seed", "5", "--out", f"shard{i}")[0] == 0
    code, out, err = call("merge", "shard1", "shard2/run.jsonl", "--out", "all", "--no-plots")
    assert (code, err) == (0, "")
    assert keys("all/run.jsonl") == KEYS
    assert "4 passed" in out
    assert Path("all/table.md").exists()
    code, _, err = call("merge", "shard1", "shard2", "--out", "all")
    assert code == 2
    assert "already exists" in err
    code, _, err, workers = bench("--resume", "all")
    assert (code, workers.started["evaluate"]) == (0, [])


def test_a_merged_run_with_missing_cells_says_so_and_is_completed_by_resume(bench):  # noqa: F811
    bench("--shard", "2/2", "--seed", "5", "--out", "shard2", dies_after=1)
    bench("--shard", "1/2", "--seed", "5", "--out", "shard1")
    code, _, err = call("merge", "shard2", "shard1", "--out", "all", "--no-plots")
    assert code == 0
    assert "--resume all/run.jsonl" in says(err)
    assert bench("--resume", "all")[0] == 0
    assert sorted(keys("all/run.jsonl")) == sorted(KEYS)


def test_a_merge_without_all_pieces_names_them(bench):  # noqa: F811
    bench("--shard", "2/2", "--seed", "5", "--out", "shard2")
    code, _, err = call("merge", "shard2", "--out", "all", "--no-plots")
    assert code == 0
    assert "shard 1/2 is missing" in says(err)


def test_a_merge_ends_with_1_where_a_cell_failed(tmp_path):
    bad = replace(piece("2/2", [2]), cells=[factory.cell("o", "fused", {"n": 2}, status="failed", reason="no luck")])
    for name, one in (("a", piece("1/2", [1])), ("b", bad)):
        factory.write(one, tmp_path / name / "run.jsonl")
    code, out, _ = call("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "all", "--no-plots")
    assert code == 1
    assert "no luck" in out
    assert isinstance(read_run(tmp_path / "all" / "run.jsonl").cells[-1], Cell)
