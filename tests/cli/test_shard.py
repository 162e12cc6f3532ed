"""A sweep in pieces: the cut is exact, pieces need one seed, and merged pieces are the planned run."""

import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.command import recording
from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.config.sweep import parse_shard, shard_of
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


def test_more_pieces_than_points_are_refused_in_each_piece_alike():
    for i in (1, 4):
        with pytest.raises(ConfigError, match=f"--shard {i}/4: the sweep has 3 points; use 3 shards at most"):
            shard_of([1, 2, 3], i, 4)


@pytest.mark.parametrize(
    "text", ["", "2", "0/4", "5/4", "1/0", "-1/4", "a/b", "1/2/3", " 1/2", "1.0/2", "1/" + "9" * 5000]
)
def test_what_is_no_piece_is_refused(text):
    with pytest.raises(ConfigError, match="expected I/N such as 2/8, counted from 1"):
        parse_shard(text)
    assert parse_shard("2/8") == (2, 8)


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


def test_pieces_that_begin_in_the_same_second_go_to_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recording, "utc_now", lambda: datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC))
    folders = [recording.default_folder("mtp3", "cuda", shard) for shard in ("1/2", "2/2", None)]
    assert [folder.name for folder in folders] == [
        f"mtp3-cuda-20260102T030405{piece}" for piece in ("-1of2", "-2of2", "")
    ]
    folders[2].mkdir(parents=True)
    assert recording.default_folder("mtp3", "cuda", None).name == "mtp3-cuda-20260102T030405-2"


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
