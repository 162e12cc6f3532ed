"""`bench.py history`: what it prints and writes, and its picture."""

import re

import pytest

from spec_decode_bench.regression.history import history
from spec_decode_bench.regression.history_report import history_markdown
from spec_decode_bench.regression.plots import history as picture
from tests import factory, histories
from tests.cli.test_cli import call
from tests.plots.test_plots import overlaps
from tests.tier import few

LEVELS = {"cuda_fused": [5.0] * 4 + [5.2] * 5, "triton_fused": [6.0] * 4 + [6.3] * 5, "op_chain": [40.0] * 9}


@pytest.fixture
def records(tmp_path):
    for number, run in enumerate(histories.runs(LEVELS)):
        factory.write(run, tmp_path / "runs" / f"{number}.jsonl")
    return tmp_path / "runs"


def test_the_command(records, tmp_path):
    code, out, err = call("history", records, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "gpu_us of 6 cells over 9 commits, 000000a (2026-01-01) to 0000012 (2026-01-09), 9 processes" in " ".join(
        out.split()
    )
    assert "4 cells changed by more than 2 %" in out
    assert re.search(r"000000e \(2026-01-05\)\nvariant", out)
    assert re.search(r"decode_native/triton_fused +\+5.\d\s% .*2 of 2", out)
    assert "op_chain" not in out
    text = (tmp_path / "out" / "history.md").read_text()
    assert "![times over commits, changes marked](history.png)" in text
    assert text.count("| decode_native/triton_fused/") == 2
    assert (tmp_path / "out" / "history.png").stat().st_size > 10_000


def test_only_some_cells(records, tmp_path):
    _, out, _ = call("history", records, "--out", tmp_path / "out", "--only", "*/cuda_fused/batch_size=8,*")
    assert "1 cell changed" in out
    code, _, err = call("history", records, "--out", tmp_path / "out", "--only", "nothing")
    assert code == 2
    assert "--only nothing" in err


def test_one_commit_is_no_history(records, tmp_path):
    code, _, err = call("history", records / "0.jsonl", "--out", tmp_path / "out")
    assert code == 2
    assert "a history needs two commits or more" in err
    assert not (tmp_path / "out").exists()


def test_what_a_record_says_is_text():
    runs = histories.runs({"a": [5.0] * 4 + [6.0] * 4, "b|<b>": [5.0] * 4 + [6.0] * 4})
    text = history_markdown(history(runs), None)
    assert "b|<b>" not in text
    assert r"b\|\<b>" in text


@pytest.mark.parametrize(("commits", "variants"), few([(9, 3), (2, 1), (60, 20)], 1))
def test_nothing_overlaps_in_the_picture(commits, variants):
    steps = [5.0] * (commits // 2) + [5.5] * (commits - commits // 2)
    environments = {place: factory.gpu_environment(commit=f"{place:07x}") for place in range(commits)}
    levels = {f"a_variant_with_a_long_name_{number}": steps for number in range(variants)}
    runs = histories.runs(levels, 2, environments)
    figure = picture.figure(history([*runs]))
    assert overlaps(figure) == []
    assert len(figure.axes) <= picture.MAX_PANELS
    assert figure.get_figheight() <= 10


def test_without_a_change_it_draws_what_varies_most():
    times = history(histories.runs({"a": [5.0] * 6, "b": [7.0] * 6}))
    assert times.changed == []
    assert "no change found" in picture.figure(times).get_suptitle()
