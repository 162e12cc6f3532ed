"""Exit codes follow the verdicts; the process is the unit of evidence; what differs or is missing is reported."""

import json
import math
from collections import Counter
from functools import partial

import msgspec
import numpy as np
import pytest

from spec_decode_bench.harness.checks import Difference
from spec_decode_bench.harness.records.schema import Finding, Metrics, Place, Segment, Status
from spec_decode_bench.regression.comparison import POWER, PRESETS, CompareError, Rule, compare, compare_variants
from spec_decode_bench.regression.comparison_report import JSON_SCHEMA, comparison_json, comparison_markdown
from tests import factory
from tests.cli.test_cli import completed
from tests.sides import side, write_side

GPU, CPU = factory.gpu_environment(), factory.cpu_environment()
replace = msgspec.structs.replace


def cells_of(*gpu_us: float, seed: int = 0, spread: float = 0.002, **cell):
    """One cell per time; a process shifts each by ``spread``, and its rounds scatter by 0.5 %."""
    rng = np.random.default_rng(seed)
    return [
        factory.cell(
            "decode_native", "flat_view", {"batch_size": n}, gpu=us * math.exp(spread * rng.normal()), rng=rng, **cell
        )
        for n, us in enumerate(gpu_us, 1)
    ]


def side_of(*gpu_us: float, processes: int = 4, first: int = 0, **cell):
    return side(lambda seed: factory.run(GPU, cells_of(*gpu_us, seed=seed, **cell)), processes, first)


def sweep(processes: int = 3, first: int = 0, environment=GPU, scale: float = 1.0, batch_sizes=(8,)):
    make = lambda seed: factory.sweep_run(environment, scale, seed, batch_sizes)  # noqa: E731
    return side(make, processes, first)


def with_cell(run, position: int, **changes):
    cells = list(run.cells)
    if "status" in changes:
        changes["status"] = Status(changes["status"])
    cells[position] = replace(cells[position], **changes)
    return replace(run, cells=cells)


def everywhere(runs, position: int, **changes):
    return tuple(with_cell(run, position, **changes) for run in runs)


TEN = (1.1, 1.3, 1.6, 2.0, 2.5, 3.2, 5.0, 8.0, 20.0, 40.0, 60.0, 80.0)


# --- what decides the exit code ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_unchanged_code_passes(seed):
    comparison = compare(side_of(*TEN, first=100 * seed), side_of(*TEN, first=100 * seed + 50))
    assert (comparison.outcome, comparison.exit_code) == ("fine", 0)
    assert comparison.counts("gpu_us")["slower"] == comparison.counts("gpu_us")["faster"] == 0
    assert comparison.power > 0.95


@pytest.mark.parametrize("position", range(len(TEN)))
def test_a_single_slow_down_of_five_per_cent_is_found_and_nothing_else(position):
    head = list(TEN)
    head[position] *= 1.05
    comparison = compare(side_of(*TEN), side_of(*head, first=50))
    assert [cell.point for cell in comparison.failing] == [f"batch_size={position + 1}"]
    (cell,) = comparison.failing
    assert cell.ratio.low < 1.05 < cell.ratio.high
    assert comparison.exit_code == 1


def test_exit_codes():
    base = side_of(5.0, 5.0)
    assert compare(base, side_of(5.0, 5.0, first=9)).exit_code == 0
    assert compare(base, side_of(5.0, 4.0, first=9)).exit_code == 0
    assert compare(base, side_of(5.0, 6.0, first=9)).exit_code == 1
    assert compare(base, side_of(5.0, 5.0, first=9, spread=0.2)).exit_code == 3
    assert compare(base, side_of(5.0, first=9)).exit_code == 3
    assert compare(side_of(5.0, first=9), base).exit_code == 0


@pytest.mark.parametrize(("base", "head"), [(1, 1), (1, 4), (2, 2), (2, 4)])
def test_nothing_can_fail_or_pass_on_one_or_two_processes_a_side(base, head):
    """Any number of rounds in two processes say nothing about a third one."""
    sides = side_of(5.0, 9.0, processes=base, rounds=200), side_of(50.0, 9.0, processes=head, rounds=200, first=9)
    comparison = compare(*sides)
    assert comparison.counts("gpu_us") == {"unsure": 2}
    assert comparison.exit_code == 3
    assert "fewer than 3 a side" in comparison.unclear[0]
    assert f"{base} + {head} processes" in comparison_markdown(comparison)


@pytest.mark.parametrize("status", ["mismatch", "failed"])
@pytest.mark.parametrize(
    ("in_base", "in_head", "told", "code"),
    [
        ("....", "xxxx", {"broken": "{}: 3 of 40 differ"}, 1),
        (".", "x", {"broken": "{}: 3 of 40 differ"}, 1),
        ("....", "..x.", {"broken": "{} (1 of 4 processes): 3 of 40 differ"}, 1),
        ("x...", "xxxx", {"lost": "{}: 3 of 40 differ; no gpu_us"}, 3),
        ("xxxx", "....", {"fixed": "passed"}, 0),
    ],
)
def test_a_cell_that_broke_in_any_process_is_a_regression_and_one_that_was_bad_before_is_none(
    status, in_base, in_head, told, code
):
    bad = {"status": status, "metrics": None, **factory.why_not(status, "3 of 40 differ")}
    sides = []
    for marks, first in ((in_base, 0), (in_head, 9)):
        runs = zip(marks, side_of(5.0, 5.0, processes=len(marks), first=first), strict=True)
        sides.append(tuple(with_cell(run, 0, **bad) if mark == "x" else run for mark, run in runs))
    comparison = compare(*sides)
    key = sides[0][0].cells[0].key
    for name in ("broken", "lost", "fixed"):
        found = [(cell.key, cell.head) for cell in getattr(comparison, name)]
        assert found == ([(key, told[name].format(status))] if name in told else []), name
    assert comparison.exit_code == code


def test_a_cell_that_broke_is_a_regression_even_if_nothing_else_is_left():
    base = side_of(5.0)
    head = everywhere(base, 0, status="failed", metrics=None, **factory.why_not("failed", "3 of 40 differ"))
    assert (compare(base, head).exit_code, compare(base, head).unclear) == (1, [])


def test_a_cell_that_is_no_longer_timed_is_no_pass():
    base = side_of(5.0, 5.0)
    skipped = compare(
        base, everywhere(base, 0, status="unavailable", metrics=None, **factory.why_not("unavailable", "no compiler"))
    )
    uncaptured = compare(
        base, everywhere(base, 0, metrics=Metrics(bytes_moved=1, host_us=[20.0] * 9, no_graph="it synchronises"))
    )
    moved = compare(base, everywhere(base, 0, axes={"batch_size": 64}))
    for comparison, why in ((skipped, "no compiler"), (uncaptured, "it synchronises"), (moved, "batch_size 1 → 64")):
        assert comparison.exit_code == 3
        assert [cell.key for cell in comparison.untimed] == [base[0].cells[0].key]
        assert why in comparison.lost[0].head
        assert len(comparison.gating_cells) == 1


def test_host_times_are_shown_and_gate_only_when_asked():
    base, head = side_of(5.0, host=20.0), side_of(5.0, host=40.0, first=9)
    assert compare(base, head).counts("host_us") == {"slower": 1}
    assert compare(base, head).exit_code == 0
    asked = compare(base, head, Rule(metrics=("host_us",)))
    assert asked.exit_code == 1
    assert "--metric host_us" in comparison_markdown(asked)


def test_a_change_below_the_smallest_change_that_matters_is_named_and_does_not_fail():
    base, head = side_of(*TEN), side_of(1.1 * 1.08, *TEN[1:], first=50)
    comparison = compare(base, head, Rule(min_change_us=0.1))
    assert (comparison.counts("gpu_us")["slower"], comparison.exit_code) == (1, 0)
    text = comparison_markdown(comparison)
    assert "slower (below 0.1 µs)" in text
    assert "1 slower (1 of them below 0.1 µs)" in text.splitlines()[0]
    assert compare(base, head, Rule(min_change_us=0.05)).exit_code == 1
    faster = compare(head, base, Rule(min_change_us=0.1))
    assert "faster (below 0.1 µs)" in comparison_markdown(faster)


def test_presets_and_detect_decide_what_passes():
    base, head = side_of(*TEN), side_of(*TEN[:-1], TEN[-1] * 1.014, first=50)
    assert compare(base, head, PRESETS["pr"]).exit_code == 0
    assert compare(base, head, PRESETS["strict"]).exit_code == 1
    noisy = [side_of(*TEN, first=first, spread=0.02) for first in (0, 50)]
    assert compare(*noisy, Rule(detect=0.05)).exit_code == 3
    assert compare(*noisy, Rule(detect=0.3)).exit_code == 0


def test_a_cell_that_jumps_between_two_states_does_not_spoil_the_others():
    """One cell has a second state, 6 % slower, in half of the processes; the others are judged as without it."""
    rng = np.random.default_rng(4)
    jumping = lambda first: side(  # noqa: E731
        lambda seed: factory.run(GPU, cells_of(*TEN, 5.0 * (1.06 if rng.random() < 0.5 else 1), seed=seed)), 4, first
    )
    with_it, without = compare(jumping(0), jumping(50)), compare(side_of(*TEN), side_of(*TEN, first=50))
    assert not with_it.failing
    jumps = with_it.gating_cells[-1]
    assert (jumps.verdict, jumps in with_it.undecided, jumps.noisy) == ("unsure", True, True)
    assert "may be missed there" in comparison_markdown(with_it)
    assert "decode_native/flat_view batch_size=13" in comparison_markdown(with_it)
    assert (with_it.exit_code, with_it.power) == (0, pytest.approx(without.power, abs=0.02))
    widths = [
        np.median([cell.ratio.high - cell.ratio.low for cell in comparison.gating_cells[:12]])
        for comparison in (with_it, without)
    ]
    assert widths[0] < 1.4 * widths[1]


def test_a_noisy_cell_fails_when_it_is_slower_beyond_its_noise():
    rng = np.random.default_rng(4)
    sides = [
        side(
            lambda seed, us=us: factory.run(GPU, cells_of(*TEN, us * math.exp(0.05 * rng.normal()), seed=seed)),
            6,
            first,
        )
        for us, first in ((5.0, 0), (9.0, 50))
    ]
    comparison = compare(*sides)
    assert [(cell.point, cell.noisy) for cell in comparison.failing] == [("batch_size=13", True)]
    assert comparison.exit_code == 1
    assert comparison.failing[0].power < POWER
    assert comparison.undecided == []  # what failed is decided


# --- what may be compared ---------------------------------------------------------------------------------------------


def test_refusals():
    gpu, cpu = sweep(), sweep(environment=CPU)
    for base, head in ((gpu, cpu), (cpu, gpu), ((gpu[0], cpu[1]), gpu)):
        with pytest.raises(CompareError, match="never compared"):
            compare(base, head)
    with pytest.raises(CompareError, match="no cell in common"):
        compare(side_of(5.0), tuple(replace(run, cells=run.cells[:1]) for run in gpu))
    with pytest.raises(CompareError, match="did you mean gpu_us"):
        compare(gpu, gpu, Rule(metrics=("gpu_u",)))
    with pytest.raises(CompareError, match="no cell in common"):
        compare(cpu, cpu, Rule(metrics=("gpu_us",)))
    with pytest.raises(CompareError, match="matches nothing/at_all"):
        compare(gpu, gpu, Rule(only=("nothing/at_all",)))
    for wrong in ({"threshold": 2}, {"threshold": math.nan}, {"detect": 0.01}):
        with pytest.raises(CompareError, match="must"):
            compare(gpu, gpu, Rule(**wrong))


def of_header(runs, **changes):
    return tuple(replace(run, header=replace(run.header, **changes)) for run in runs)


def of_environment(runs, **changes):
    return of_header(runs, environment=replace(runs[0].header.environment, **changes))


def test_runs_that_do_not_belong_together_are_refused_in_a_sentence():
    """Which of their facts must agree, test_differences.py knows."""
    base = side_of(5.0)
    cases = {
        "has cache state hot, run0.jsonl has cold": of_header(base, config={"measure": {"cache": "cold"}}),
        "bench.py report shows them side by side": of_environment(base, gpu="NVIDIA H100"),
        "incomplete": (replace(base[0], truncated=True), *base[1:]),
        "several revisions": (*base[:2], *of_environment(base[2:], commit="fffaaa")),
        "the same record": (*base, replace(base[0], path="copy.jsonl")),
    }
    for words, head in cases.items():
        with pytest.raises(CompareError, match=words):
            compare(base, head)


def test_different_configurations_are_compared_when_asked():
    base, head = (
        side_of(5.0, 6.0),
        of_header(side_of(5.0, 6.0, 7.0, first=9), config={"measure": {"cache": "hot"}, "sweep": [{"batch_size": 3}]}),
    )
    with pytest.raises(CompareError, match="--any-config"):
        compare(base, head)
    assert len(compare(base, head, Rule(any_config=True)).gating_cells) == 2
    older = side_of(5.0, 6.0)  # from before there was such a field
    assert compare(older, of_header(side_of(5.0, 6.0, first=9), config=older[0].header.config | {"new": None})).cells


def test_two_gpus_of_one_model_get_a_wider_band_and_a_sentence():
    base = of_environment(side_of(*TEN), gpu_id="aaaa")
    head = side_of(*(us * 1.035 for us in TEN), first=50)
    same = compare(base, of_environment(head, gpu_id="aaaa"))
    assert (same.exit_code, same.machines.band, same.machines.why) == (1, 0, None)
    other = compare(base, of_environment(head, gpu_id="bbbb"))
    assert other.exit_code == 0 or not other.failing
    assert other.threshold > 0.05
    assert "different GPUs of one model" in comparison_markdown(other)
    unknown = compare(base, head)
    assert "do not say on which GPU" in comparison_markdown(unknown)
    assert unknown.exit_code == 1


def test_unchanged_code_passes_on_two_gpus_as_what_must_be_visible_is_widened_too():
    base = of_environment(side_of(*TEN), gpu_id="aaaa")
    comparison = compare(base, of_environment(side_of(*TEN, first=50), gpu_id="bbbb"))
    assert (comparison.outcome, comparison.exit_code) == ("fine", 0)
    assert comparison.detect == pytest.approx(1.05 * (1 + comparison.machines.band) - 1)


def test_runs_that_share_two_gpus_get_the_wider_band_too():
    """Cells are handed out as GPUs become free, so that the same cell is another GPU's in the next run."""

    def on_two(side):
        other = Segment(
            started="", why="GPU 1", environment=replace(side[0].header.environment, gpu_id="bbbb"), process=1
        )
        return tuple(
            replace(
                run,
                segments=[other],
                cells=[replace(cell, process=number % 2) for number, cell in enumerate(run.cells)],
            )
            for run in side
        )

    base = on_two(of_environment(side_of(*TEN), gpu_id="aaaa"))
    head = on_two(of_environment(side_of(*(us * 1.035 for us in TEN), first=50), gpu_id="aaaa"))
    assert base[0].gpu_ids == ("aaaa", "bbbb")
    comparison = compare(base, head)
    assert comparison.threshold > 0.05
    assert "may have timed a cell on any of them" in comparison_markdown(comparison)


def on_gpus(gpus: str, *gpu_us: float, first: int = 0, scale: float = 1.0):
    """A side with a process on each of these GPUs; on "b" each cell is faster or slower by 2 % than on "a"."""
    of_b = [us * (1.02 if i % 2 else 0.98) for i, us in enumerate(gpu_us)]
    times = {"a": gpu_us, "b": of_b}
    runs = [side_of(*times[gpu], processes=1, first=first + i)[0] for i, gpu in enumerate(gpus)]
    return tuple(of_environment((run,), gpu_id=gpu * 4)[0] for run, gpu in zip(runs, gpus, strict=True))


@pytest.mark.parametrize(("base", "head"), [("abab", "baba"), ("aabb", "bbba"), ("aaab", "aaaa"), ("aaaaa", "aaabb")])
def test_what_gpus_differ_in_is_no_noise_and_no_change_where_both_sides_ran_on_them(base, head):
    """A randomized block: the threshold stays, and 5 % are found, as if all processes had run on one GPU."""
    sides = on_gpus(base, *TEN), on_gpus(head, *TEN, first=50)
    unchanged = compare(*sides)
    assert (unchanged.exit_code, unchanged.threshold) == (0, pytest.approx(0.02))
    assert max(cell.sd for cell in unchanged.cells) < 0.01
    assert "GPU" in unchanged.machines.why
    slower = list(TEN)
    slower[3] *= 1.05
    changed = compare(sides[0], on_gpus(head, *slower, first=50))
    assert [cell.point for cell in changed.failing] == ["batch_size=4"]
    assert changed.failing[0].ratio.low < 1.05 < changed.failing[0].ratio.high
    assert {summary.verdict for summary in unchanged.summaries} == {"same"}


def test_how_many_processes_would_do_is_said_and_is_enough():
    def compared(processes):
        return compare(
            side_of(*TEN, processes=processes, spread=0.012), side_of(*TEN, processes=processes, first=90, spread=0.012)
        )

    few = compared(4)
    assert few.exit_code == 3
    assert f"about {few.enough} processes a side would do" in few.unclear[0]
    assert 5 <= few.enough <= 12
    assert compared(few.enough + 2).exit_code == 0


def test_the_band_follows_the_calibration_kernels():
    base = of_environment(side_of(5.0), gpu_id="aaaa")
    calibration = base[0].header.calibration
    slower = {
        name: replace(kernel, graph_us={k: [1.08 * us for us in all_us] for k, all_us in kernel.graph_us.items()})
        for name, kernel in calibration.own.items()
    }
    head = of_header(of_environment(side_of(5.0, first=9), gpu_id="bbbb"), calibration=replace(calibration, own=slower))
    assert compare(base, head).machines.band == pytest.approx(0.08, abs=0.02)


def test_two_cpu_runs_are_compared_by_cpu_time():
    def make(us):
        axes = {"batch_size": 8}
        return lambda seed: factory.run(
            CPU, [factory.cell("decode_native", "flat_view", axes, cpu=us, rng=np.random.default_rng(seed))]
        )

    comparison = compare(side(make(500.0)), side(make(700.0), first=9))
    assert [(row.metric, row.verdict) for row in comparison.cells] == [("cpu_us", "slower")]
    assert comparison.exit_code == 1


def test_cells_that_some_processes_lack_are_judged_by_the_others():
    base, head = side_of(5.0, 6.0), side_of(5.0, 6.6, first=9)
    comparison = compare((replace(base[0], cells=base[0].cells[:1]), *base[1:]), head)
    assert [len(cell.base_times) for cell in comparison.gating_cells] == [4, 3]
    assert comparison.exit_code == 1


def test_globs_choose_the_cells():
    comparison = compare(sweep(), sweep(first=9), Rule(only=("decode_native", "*/cuda_fused", "!*next_n=4*padding=1*")))
    assert {cell.variant for cell in comparison.cells} == {"cuda_fused"}
    assert "--only" in comparison_markdown(comparison)


# --- variant against variant ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 4])
def test_two_variants_of_one_run(processes):
    runs = sweep(processes, batch_sizes=(1, 8, 32))
    comparison = compare_variants(runs, head="triton_fused", base="cuda_fused")
    assert {cell.operator: cell.verdict for cell in comparison.gating_cells} == {
        "decode_flatten": "slower",
        "decode_native": "slower",
    }
    assert comparison.unit == ("round" if processes == 1 else "process")
    summaries = {(summary.operator, summary.metric): summary for summary in comparison.summaries}
    flatten = summaries["decode_flatten", "gpu_us"]
    assert flatten.ratio.median == pytest.approx(1.25, rel=0.02)
    assert flatten.ratio.low < 1.25 < flatten.ratio.high
    text = comparison_markdown(comparison)
    assert "triton_fused against cuda_fused" in text
    assert "--variants triton_fused cuda_fused" in text


def test_warnings_are_of_the_two_variants():
    (run,) = sweep(1)
    limited = [replace(cell, known_failures={"B = 0": f"{cell.variant} never sees it"}) for cell in run.cells]
    comparison = compare_variants((replace(run, cells=limited),), head="triton_fused", base="cuda_fused")
    text = " ".join(comparison.warnings)
    assert "triton_fused never" in text
    assert "cuda_fused never" in text
    assert "op_chain never" not in text


def test_pairing_by_round_cancels_what_both_variants_of_a_round_share():
    rng = np.random.default_rng(0)
    drift = 1 + 0.2 * rng.random(30)
    cells = []
    for name, us in (("a", 5.0), ("b", 5.3)):
        graphs = {k: [us * k * d for d in drift] for k in factory.COPIES}
        cell = factory.cell("decode_native", name, {"batch_size": 1}, gpu=us, rounds=30)
        cells.append(replace(cell, metrics=replace(cell.metrics, graph_us=graphs)))
    comparison = compare_variants((factory.run(GPU, cells),), head="b", base="a")
    (cell,) = comparison.gating_cells
    assert cell.ratio.median == pytest.approx(1.06)
    assert cell.verdict == "slower"


def test_a_variant_against_itself_is_refused_and_an_unknown_one_is_named():
    runs = sweep(1)
    with pytest.raises(CompareError, match="on both sides"):
        compare_variants(runs, "cuda_fused", "cuda_fused")
    with pytest.raises(CompareError, match="did you mean cuda_fused"):
        compare_variants(runs, "cuda_fuse", "op_chain")
    with pytest.raises(CompareError, match="no point"):
        compare_variants(runs, "flat_view", "op_chain")


# --- what is said -----------------------------------------------------------------------------------------------------


def changed_pair():
    base = sweep()
    head = of_environment(sweep(first=9, scale=1.5), driver="590.2", commit="fffaaa", dirty=True)
    head = everywhere(head, 0, status="mismatch", metrics=None, **factory.why_not("mismatch", "a | b\n`c` <d>"))
    new = factory.cell("decode_native", "new_one", {"batch_size": 8}, gpu=1.0)
    return base, tuple(replace(run, cells=[*run.cells[:-1], new]) for run in head)


def test_everything_that_differs_is_named():
    base, head = changed_pair()
    comparison = compare(base, head)
    assert [(one.name, one.ours, one.theirs) for one in comparison.differences] == [("driver", "580.1", "590.2")]
    assert [cell.key for cell in comparison.base_only] == [base[0].cells[-1].key]
    assert [cell.key for cell in comparison.head_only] == [head[0].cells[-1].key]


def broke_at(name: str, place: Place = Place.EDGE_CASE):
    elements = ("lens[0]: 5, expected 6", "lens[1]: 5, expected 7")
    finding = Finding(
        status=Status.MISMATCH,
        place=place,
        name=name,
        check="exact",
        message="lens differs",
        difference=Difference(tensor="lens", index=(0,), expected=6, got=5, wrong=12, elements=elements),
    )
    return {"status": "mismatch", "metrics": None, "finding": finding}


def test_a_broken_kernel_is_told_in_a_line_with_the_case_and_the_first_wrong_element():
    base = side_of(5.0, 6.0, 7.0, processes=1)
    head = everywhere(everywhere(base, 0, **broke_at("L = 1")), 1, **broke_at("L = 1"))
    head = everywhere(head, 2, **broke_at(base[0].cells[2].point, Place.POINT))
    text = comparison_markdown(compare(base, head))
    seen = r"exact: lens differs; 12 elements, first at lens\[0]: 5, expected 6"
    assert text.partition("<details>")[0].splitlines()[-3:-1] == [
        f"- **decode_native/flat_view** (2 cells): mismatch: edge case 'L = 1': {seen}",
        f"- **decode_native/flat_view** batch_size=3: mismatch: {seen}",
    ]


def test_json_holds_everything():
    comparison = compare(*changed_pair())
    document = json.loads(comparison_json(comparison), parse_constant=lambda name: pytest.fail(name))
    assert (document["schema"], document["exit_code"], document["outcome"]) == (JSON_SCHEMA, 1, "regression")
    assert len(document["cells"]) == len(comparison.cells)
    first = document["cells"][0]
    assert first["head_us"] / first["base_us"] == pytest.approx(first["ratio"]["median"])
    assert len(first["base_times"]) == 3
    (broken,) = document["broken"]
    assert broken["key"] == comparison.broken[0].key
    assert (broken["finding"]["place"], broken["finding"]["status"]) == ("point", "mismatch")
    assert len(document["sides"]["head"]) == 3


# --- the command line -------------------------------------------------------------------------------------------------


bench = partial(completed, "compare")


ENDINGS = {
    0: lambda: side_of(5.0, first=9),
    1: lambda: side_of(6.0, first=9),
    2: lambda: sweep(environment=CPU, batch_sizes=(1,)),
    3: lambda: side_of(5.0, processes=1, first=9),
}


@pytest.mark.parametrize("code", ENDINGS)
def test_the_command_line_ends_with_these_codes(tmp_path, code):
    base, head = write_side(side_of(5.0), tmp_path / "base"), write_side(ENDINGS[code](), tmp_path / "head")
    out = tmp_path / "out"
    done = bench(base, head, "--out", out, "--html", "--json")
    assert done.returncode == code, done.stderr
    names = {"comparison.md", "comparison.html", "comparison.json", "regression.png", "regression.svg"}
    assert {path.name for path in out.glob("*")} == (names if code != 2 else set())
    if code == 1:
        page = (out / "comparison.html").read_text(encoding="utf-8")
        assert "Regression" in page
        assert page.count("<svg") == 1
        assert "src=" not in page


def test_a_side_is_a_record_a_folder_of_a_run_or_of_several(tmp_path):
    base, head = side_of(5.0), side_of(5.0, first=9)
    write_side(base, tmp_path / "base")
    for i, run in enumerate(head):
        factory.write(run, tmp_path / "head" / f"process{i}" / "run.jsonl")
    done = bench(tmp_path / "base", tmp_path / "head")
    assert done.returncode == 0, done.stderr
    assert "4 + 4 processes" in done.stdout
    assert (tmp_path / "head" / "comparison.md").exists()
    done = bench(tmp_path / "base", tmp_path / "head")  # what was written is not read as a record
    assert done.returncode == 0, done.stderr
    assert "1 + 1 processes" in bench(tmp_path / "base" / "run1.jsonl", tmp_path / "head" / "process0").stdout
    (tmp_path / "empty").mkdir()
    done = bench(tmp_path / "base", tmp_path / "empty")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no record here" in done.stderr


def test_ratios_are_averaged_geometrically():
    comparison = compare(side_of(10.0, 10.0), side_of(20.0, 5.0, first=9))
    (summary,) = [each for each in comparison.summaries if each.metric == "gpu_us"]
    assert (summary.cells, summary.counts) == (2, Counter(slower=1, faster=1))
    assert summary.ratio.median == pytest.approx(1.0, rel=0.01)
    assert (summary.least, summary.greatest) == pytest.approx((0.5, 2.0), rel=0.01)
