"""Exit codes follow the verdicts; what differs or is missing is reported; CPU is never compared with GPU."""

import math
import re
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from harness.analysis.compare import CORRELATED, CompareError, compare
from harness.records.schema import Metrics, Status
from harness.report.comparison import COMMENT_CHARACTERS, comparison_console, comparison_markdown, summaries
from plots.regression import MAX_CELLS, draw
from tests import factory

GPU, CPU = factory.gpu_environment(), factory.cpu_environment()
ROOT = Path(__file__).parents[3]
replace = msgspec.structs.replace


def run_of(*gpu_us: float, seed: int = 0, noisy: bool = False):
    """One cell per time; ``noisy``: the first is 5 us and too noisy for any verdict."""
    rng = np.random.default_rng(seed)
    cells = [
        factory.cell("decode_native", "flat_view", {"batch_size": n}, gpu=us, rng=rng) for n, us in enumerate(gpu_us, 1)
    ]
    if noisy:
        cells[0] = replace(cells[0], metrics=replace(cells[0].metrics, graph_us=factory.graph_us(5.0, rng, noise=0.3)))
    return factory.run(GPU, cells)


def with_cell(run, position: int, **changes):
    cells = list(run.cells)
    if "status" in changes:
        changes["status"] = Status(changes["status"])
    cells[position] = replace(cells[position], **changes)
    return replace(run, cells=cells)


@pytest.mark.parametrize("seed", range(3))
def test_a_whole_sweep_against_itself_again(seed):
    comparison = compare(
        factory.sweep_run(seed=2 * seed, batch_sizes=(8, 32)), factory.sweep_run(seed=2 * seed + 1, batch_sizes=(8, 32))
    )
    assert not {row.verdict for row in comparison.cells} & {"slower", "faster"}
    assert comparison.exit_code in (0, 3)


def test_ratios_are_averaged_geometrically():
    (one,) = [
        each
        for each in summaries(compare(run_of(10.0, 10.0), run_of(20.0, 5.0, seed=1)).cells)
        if each.figure == "gpu_us"
    ]
    assert one.cells == 2
    assert one.ratio == pytest.approx(1.0, rel=0.01)
    assert (one.least, one.greatest) == pytest.approx((0.5, 2.0), rel=0.01)


# --- what decides the exit code ---------------------------------------------------------------------------------------


def test_exit_codes():
    base = run_of(5.0, 5.0)
    assert compare(base, run_of(5.0, 5.0, seed=1)).exit_code == 0
    assert compare(base, run_of(5.0, 4.0, seed=1)).exit_code == 0
    assert compare(base, run_of(5.0, 6.0, seed=1)).exit_code == 1
    assert compare(base, run_of(5.0, 6.0, seed=1, noisy=True)).exit_code == 1
    assert compare(base, run_of(5.0, 5.0, seed=1, noisy=True)).exit_code == 3
    assert compare(base, run_of(5.0, seed=1)).exit_code == 3
    assert compare(run_of(5.0, seed=1), base).exit_code == 0


@pytest.mark.parametrize("status", ["mismatch", "failed"])
def test_a_cell_that_broke_is_a_regression_even_if_nothing_else_is_left(status):
    base = run_of(5.0)
    head = with_cell(base, 0, status=status, reason="3 of 40 differ", metrics=None)
    comparison = compare(base, head)
    assert comparison.exit_code == 1
    assert [(one.key, one.base, one.head) for one in comparison.broken] == [
        (base.cells[0].key, "passed", f"{status}: 3 of 40 differ")
    ]


def test_a_cell_that_was_repaired_is_named():
    head = run_of(5.0, 5.0)
    comparison = compare(with_cell(head, 0, status="mismatch", metrics=None), head)
    assert [one.key for one in comparison.fixed] == [head.cells[0].key]
    assert comparison.exit_code == 0


def test_a_cell_that_is_no_longer_timed_is_unsure():
    base = run_of(5.0, 5.0)
    skipped = compare(base, with_cell(base, 0, status="unavailable", reason="no compiler", metrics=None))
    uncaptured = compare(
        base, with_cell(base, 0, metrics=Metrics(bytes_moved=1, host_us=[20.0] * 9, no_graph="it synchronises"))
    )
    moved = compare(base, with_cell(base, 0, axes={"batch_size": 64}))
    for comparison, why in ((skipped, "no compiler"), (uncaptured, "it synchronises"), (moved, "batch_size 1 → 64")):
        assert comparison.exit_code == 3
        assert [one.key for one in comparison.untimed] == [base.cells[0].key]
        assert why in comparison.lost[0].head
        assert len(comparison.gating_cells) == 1


@pytest.mark.parametrize(("rounds", "verdict"), [(3, "unsure"), (4, "unsure"), (5, "slower")])
def test_fewer_than_five_samples_give_no_verdict(rounds, verdict):
    """Of four samples the bootstrap interval misses the true median every fourth time."""
    base, head = (
        factory.run(GPU, [factory.cell("decode_native", "flat_view", {"batch_size": 1}, gpu=us, rounds=rounds)])
        for us in (5.0, 50.0)
    )
    assert compare(base, head).counts("gpu_us") == {verdict: 1}


def test_host_times_are_shown_and_gate_only_when_asked():
    base = factory.run(GPU, [factory.cell("decode_native", "flat_view", {"batch_size": 1}, gpu=5.0, host=20.0)])
    head = factory.run(GPU, [factory.cell("decode_native", "flat_view", {"batch_size": 1}, gpu=5.0, host=40.0)])
    assert compare(base, head).counts("host_us") == {"slower": 1}
    assert compare(base, head).exit_code == 0
    asked = compare(base, head, figures=["host_us"])
    assert asked.exit_code == 1
    assert "--figure host_us" in comparison_markdown(asked)


def test_refusals():
    gpu, cpu = factory.sweep_run(batch_sizes=(8,)), factory.sweep_run(CPU, batch_sizes=(8,))
    for base, head in ((gpu, cpu), (cpu, gpu)):
        with pytest.raises(CompareError, match="never compared"):
            compare(base, head)
    with pytest.raises(CompareError, match="no cell in common"):
        compare(run_of(5.0), replace(gpu, cells=gpu.cells[:1]))
    with pytest.raises(CompareError, match="did you mean gpu_us"):
        compare(gpu, gpu, figures=["gpu_u"])
    with pytest.raises(CompareError, match="no cell in common"):
        compare(cpu, cpu, figures=["gpu_us"])
    for threshold, floor_us in ((0, 0.1), (2, 0.1), (math.nan, 0.1), (0.02, -1)):
        with pytest.raises(CompareError, match="threshold"):
            compare(gpu, gpu, threshold, floor_us)


def test_two_cpu_runs_are_compared_by_cpu_time():
    base, head = factory.sweep_run(CPU, batch_sizes=(8,)), factory.run(CPU, [])
    cells = [factory.cell("decode_native", "flat_view", base.cells[0].axes, cpu=500.0)]
    comparison = compare(base, replace(head, cells=cells))
    assert [(row.figure, row.verdict) for row in comparison.cells] == [("cpu_us", "slower")]
    assert comparison.exit_code == 1


# --- what is said -----------------------------------------------------------------------------------------------------


def changed_pair():
    base = factory.sweep_run(batch_sizes=(8,))
    head = factory.sweep_run(
        factory.gpu_environment(driver="590.2", commit="fffaaa", dirty=True), scale=1.5, seed=1, batch_sizes=(8,)
    )
    head = with_cell(head, 0, status="mismatch", reason="a | b\n`c` <d>", metrics=None)
    return base, replace(
        head, cells=[*head.cells[:-1], factory.cell("decode_native", "new_one", {"batch_size": 8}, gpu=1.0)]
    )


def test_everything_that_differs_is_named():
    base, head = changed_pair()
    config = {"name": "mtp3", "itl_tpot": {"model_step_us": 9000.0}, "sweep": [{"next_n": 5}]}
    head = replace(head, header=replace(head.header, name="mtp5", config=config))
    comparison = compare(base, head)
    named = {one.name: (one.base, one.head) for one in comparison.differences}
    assert (
        named.items()
        >= {
            "driver": ("580.1", "590.2"),
            "name": ("mtp3", "mtp5"),
            "seed": (0, 1),
            "config.itl_tpot.model_step_us": (12000.0, 9000.0),
            "config.itl_tpot.acceptance": (0.75, None),
            "config.sweep.0.next_n": (None, 5),
        }.items()
    )
    assert not {"commit", "dirty", "gpu"} & named.keys()
    assert [one.key for one in comparison.base_only] == [base.cells[-1].key]
    assert [one.key for one in comparison.head_only] == [head.cells[-1].key]


def test_the_comment_says_the_verdict_first_and_then_what_is_wrong():
    base, head = changed_pair()
    text = comparison_markdown(compare(base, head))
    verdicts = r"\*\*1 broken\*\*, \*\*\d+ slower\*\*, \d+ faster, \d+ same, \d+ unsure, 1 no longer timed"
    assert re.fullmatch(rf"{verdicts} \(gpu_us, threshold 2 %\)", text.splitlines()[0])
    wanted = [
        "fffaaa",
        CORRELATED,
        "| driver |",
        "Broken",
        "op_chain",
        "In base only",
        "Changed",
        "<details>",
        "python bench.py compare",
    ]
    places = [text.index(part) for part in wanted]
    assert places == sorted(places)
    assert "µs" in text
    tables = [token for token in MarkdownIt("commonmark").enable("table").parse(text) if token.type == "table_open"]
    assert len(tables) == text.count("\n|--")
    assert r"a \| b \`c\` \<d>" in text


def test_the_comment_of_a_huge_run_is_still_accepted():
    cells = [
        factory.cell("decode_native", "flat_view", {"batch_size": n, "max_model_len": 163840}, cpu=50.0, rounds=5)
        for n in range(600)
    ]
    run = factory.run(CPU, cells)
    text = comparison_markdown(compare(run, run))
    assert len(text) <= COMMENT_CHARACTERS
    assert "left out" in text


def test_the_terminal_gets_the_same_words_without_colour_in_a_hundred_columns():
    console = Console(width=100, force_terminal=False, record=True, file=sys.stderr)
    comparison_console(compare(*changed_pair()), console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 100
    text = " ".join(text.split())
    assert all(
        word in text for word in ("1 broken", "590.2", "fffaaa", "decode_native/new_one", "slower", "Exit code 1")
    )


@pytest.mark.parametrize("batch_sizes", [(8,), (1, 8, 32)])
def test_the_plot_is_written_at_a_readable_size(tmp_path, batch_sizes):
    base, head = (
        factory.sweep_run(batch_sizes=batch_sizes),
        factory.sweep_run(seed=1, scale=1.3, batch_sizes=batch_sizes),
    )
    png, svg = draw(compare(base, head), tmp_path / "regression")
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert 1000 <= width <= 1300
    assert 300 <= height <= 2500
    drawing = svg.read_text(encoding="utf-8")
    assert drawing.startswith("<?xml")
    assert "Not drawn" in drawing or len(base.cells) <= MAX_CELLS


def test_nothing_to_draw_writes_nothing(tmp_path):
    base = run_of(5.0)
    assert draw(compare(base, with_cell(base, 0, status="failed", metrics=None)), tmp_path / "regression") == []
    assert not list(tmp_path.iterdir())


ENDINGS = {
    0: run_of(5.0, seed=1),
    1: run_of(6.0),
    2: factory.sweep_run(CPU, batch_sizes=(1,)),
    3: run_of(5.0, noisy=True),
}


@pytest.mark.parametrize("code", ENDINGS)
def test_the_command_line_ends_with_these_codes(tmp_path, code):
    base, head = (
        factory.write(run_of(5.0), tmp_path / "base.jsonl"),
        factory.write(ENDINGS[code], tmp_path / "head.jsonl"),
    )
    command = [sys.executable, "bench.py", "compare", str(base), str(head), "--out", str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == code
    assert (tmp_path / "comparison.md").exists() == (tmp_path / "regression.png").exists() == (code != 2)
