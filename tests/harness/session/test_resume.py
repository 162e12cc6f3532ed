"""Interrupted runs: what a resumed one measures, keeps, cuts off and refuses. The command line around a fake worker."""

from pathlib import Path

import pytest

from spec_decode_bench.harness.command.reading import chosen_runs
from spec_decode_bench.harness.config.sweep import task_of
from spec_decode_bench.harness.config.work_items import Check, Result
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.records.file import Writer, read_run
from spec_decode_bench.harness.records.schema import Cell, Metrics, RecordError, Segment, Status
from spec_decode_bench.harness.session.measure import measure
from spec_decode_bench.harness.session.messages import Ready
from spec_decode_bench.harness.session.sources import source_hashes
from tests import factory
from tests.cli.test_cli import TINY, call
from tests.fake_worker import FakeWorkers, checked

POINTS = [f"batch_size={size},context_len=uniform(1000;100000)" for size in (3, 4)]
KEYS = [f"decode_native/{name}/{point}" for point in POINTS for name in ("chain_clamp", "flat_view")]


def says(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """bench(*arguments, dies_after=cells): bench.py on two points of two variants; the run stops dead after some
    cells.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)

    def command(*arguments, dies_after=99, environment=None, configs=("tiny.yaml",)):
        cells_left = iter(range(dies_after))

        def script(request):
            if isinstance(request, Check):
                yield checked(request)
                return
            for name in request.variants:
                metrics = Metrics(bytes_moved=1, cpu_us=[1.0, 1.1, 1.2, 1.1, 1.0], rounds=5)
                finding = request.where.finding(Status.PASSED)
                yield Result(operator=request.operator, variant=name, finding=finding, metrics=metrics)

        def interrupted(*of):
            for cell in measure(*of):
                if next(cells_left, None) is None:
                    raise KeyboardInterrupt
                yield cell

        monkeypatch.setattr("spec_decode_bench.harness.session.session.measure", interrupted)
        workers = FakeWorkers(script, [Ready(environment or factory.cpu_environment(), None, {})])
        for module in ("run", "several_gpus"):
            monkeypatch.setattr(f"spec_decode_bench.cli.{module}.Worker", workers)
        code, out, err = call(*configs, "--device", "cpu", "--no-plots", *arguments)
        return code, out, says(err), workers

    return command


def keys(path="out/run.jsonl"):
    return [cell.key for cell in read_run(path).cells]


def test_an_interrupted_run_is_completed_with_the_same_seed(bench):
    assert bench("--out", "out", dies_after=1)[0] == 130
    seed, before = read_run("out/run.jsonl").header.seed, Path("out/run.jsonl").read_bytes()
    assert bench("--resume", "out", "--plan")[1].split() == KEYS[1:]
    code, out, err, workers = bench("--resume", "out")
    assert (code, err) == (0, "")
    assert keys() == KEYS
    assert Path("out/run.jsonl").read_bytes().startswith(before)
    assert [job.seed for job in workers.started["evaluate"]] == [seed]
    resumed, whole = read_run("out/run.jsonl"), Path("out/run.jsonl").read_bytes()
    (segment,) = resumed.segments
    assert (segment.process, segment.why) == (1, "resumed")
    assert [cell.process for cell in resumed.cells] == [0, 1, 1, 1]
    assert "4 passed" in out
    code, out, _, workers = bench("--resume", "out")  # nothing is left, so no worker starts
    assert (code, workers.started["evaluate"], Path("out/run.jsonl").read_bytes()) == (0, [], whole)
    assert "4 passed" in out


def test_a_cpu_has_no_cache_state_and_the_record_says_what_was_timed(bench):
    command, note = ("--set", "measure.cache=serving", "--seed", "5"), "note: measure.cache=serving is a state of a GPU"
    assert bench(*command, "--out", "out", dies_after=1)[2].startswith(note)
    assert read_run("out/run.jsonl").cache == "hot"
    code, _, err, _ = bench(*command, "--resume", "out")
    assert (code, err[: len(note)]) == (0, note)
    assert bench("--resume", "out")[0] == 0  # the same run


def test_a_torn_last_line_is_measured_again_and_a_whole_one_without_its_newline_is_kept(bench, tmp_path):
    bench("--out", "out", dies_after=2)
    path, whole = tmp_path / "out" / "run.jsonl", (tmp_path / "out" / "run.jsonl").read_bytes()
    for content, kept in ((whole[:-9], 1), (whole[:-1], 2)):
        path.write_bytes(content)
        assert bench("--resume", "out")[0] == 0
        assert keys(path) == KEYS
        assert [cell.process for cell in read_run(path).cells] == [0] * kept + [1] * (4 - kept)


@pytest.mark.parametrize("content", [b"", b'{"line":"header","schema":3,"na'], ids=["empty", "torn header"])
def test_a_run_killed_before_its_first_line_begins_anew(content, bench, tmp_path):
    (tmp_path / "out").mkdir()
    for option in ("--resume", "--out"):
        (tmp_path / "out" / "run.jsonl").write_bytes(content)
        assert bench(option, "out")[0] == 0
        assert keys() == KEYS
        assert read_run("out/run.jsonl").segments == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "measure.timeout_s=7"], "another configuration, measure.timeout_s 120.0 (now 7.0)"),
        (["--set", "batch_size=[3, 5]"], "another configuration, sweep.0.batch_size [3, 4] (now [3, 5])"),
        (["--only", "*/flat_view"], "other cells; give the same --only, --shard and --variants"),
        (["--seed", "6"], "seed 5, not 6"),
        (["--set", "name=other"], "a record of tiny, not of other"),
    ],
)
def test_another_sweep_is_refused(arguments, words, bench):
    bench("--out", "out", "--seed", "5", dies_after=1)
    code, _, err, workers = bench("--resume", "out", *arguments)
    assert (code, workers.started["evaluate"]) == (2, [])
    assert err.startswith("error: --resume out/run.jsonl: it ")
    assert words in err


@pytest.mark.parametrize(
    ("changed", "before", "now"),
    [({"torch": "2.14.0"}, "torch 2.13.0+cpu", "2.14.0"), ({"commit": "fffaaa"}, "commit none", "fffaaa")],
    ids=["torch", "commit"],
)
def test_another_machine_or_code_is_refused(changed, before, now, bench):
    bench("--out", "out", dies_after=1)
    code, _, err, workers = bench("--resume", "out", environment=factory.cpu_environment(**changed))
    assert code == 2
    assert f"out/run.jsonl has {before}, this process has {now}; record the run again" in err
    assert workers.closed["evaluate"]
    assert keys() == KEYS[:1]


def test_a_full_disk_is_one_sentence(bench, monkeypatch):
    """What was written before is kept, and nothing is raised once more when the file is closed."""

    def full(self, line):
        real(self, line)
        if isinstance(line, Cell):
            self._file.close()
            self._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115

    real = Writer.write
    monkeypatch.setattr(Writer, "write", full)
    code, _, err, _ = bench("--out", "out")
    assert code == 2
    assert err.startswith(
        "error: cannot write out/run.jsonl: No space left on device; what was written before is kept;"
    )
    assert err.endswith("complete it with --resume")
    assert keys() == KEYS[:1]


def test_a_planned_cell_without_a_line_is_no_success(bench, monkeypatch):
    """Whatever loses it: here a writer that forgets one."""
    real = Writer.write
    forget = lambda self, line: None if isinstance(line, Cell) and line.key == KEYS[1] else real(self, line)  # noqa: E731
    monkeypatch.setattr(Writer, "write", forget)
    code, _, err, _ = bench("--out", "out")
    assert code == 1
    assert err == (
        f"stopped: 1 planned cell not measured, the first is {KEYS[1]}: 3 of 4 cells are kept in out/run.jsonl; "
        "complete them with --resume out/run.jsonl"
    )


def test_a_table_of_somebody_else_is_not_overwritten(bench, tmp_path):
    table = tmp_path / "out" / "table.md"
    table.parent.mkdir()
    table.write_text("# my notes\n")
    code, _, err, workers = bench("--out", "out")
    assert (code, workers.started["evaluate"], table.read_text()) == (2, [], "# my notes\n")
    assert err == (
        "error: out/table.md was not written by a run and would be overwritten; choose another folder with --out"
    )
    assert list(table.parent.iterdir()) == [table]
    table.unlink()
    for _ in range(2):  # the table of an earlier run, whose record was removed
        assert bench("--out", "out")[0] == 0
        (tmp_path / "out" / "run.jsonl").unlink()


def test_an_incomplete_record_is_not_drawn_silently(bench, capsys):
    bench("--out", "out", dies_after=3)
    capsys.readouterr()
    assert len(chosen_runs(["out"], [])) == 1
    assert says(capsys.readouterr().err) == (
        "warning: out/run.jsonl lacks 1 of 4 planned cells; complete it with --resume out/run.jsonl"
    )


# --- the file ---------------------------------------------------------------------------------------------------------


def segment(why: str, process: int = 1, **more) -> Segment:
    of = {"started": "2026-01-01T00:00:00+00:00", "environment": factory.cpu_environment()}
    return Segment(process=process, why=why, **of | more)


def test_two_processes_never_write_one_record(tmp_path):
    writer = Writer(tmp_path / "run.jsonl")
    for resume in (True, False):
        with pytest.raises(RecordError, match="another run is writing"):
            Writer(tmp_path / "run.jsonl", resume=resume)
    writer.write(segment("kept"))
    writer.close()
    Writer(tmp_path / "run.jsonl", resume=True).close()
    assert (tmp_path / "run.jsonl").read_bytes().count(b"\n") == 1


# --- what the cells depend on -----------------------------------------------------------------------------------------

GUEST = """
from spec_decode_bench.harness.contract import variant


@variant("decode_native")
def mine(point, x, out):
    return lambda: None
"""
TRACE = "ContextTokens,GeneratedTokens\n{},20\n"


@pytest.fixture
def depends(bench, tmp_path):
    """depends(*arguments, **more): the bench on a trace, with a variant of a file; and that file and the trace."""
    guest, trace = tmp_path / "mine.py", tmp_path / "lengths.csv"
    guest.write_text(GUEST)
    trace.write_text(TRACE.format(100))
    traced = TINY.replace("{uniform: [1000, 100000]}", "{trace: lengths.csv}").replace("flat_view", "mine")
    (tmp_path / "tiny.yaml").write_text(traced)
    return lambda *arguments, **more: bench(*arguments, "--variants", "mine.py", **more)


@pytest.mark.parametrize("name", ["mine.py", "lengths.csv"])
def test_a_changed_variant_or_trace_is_refused_by_name(name, depends, tmp_path):
    assert depends("--out", "out", dies_after=1)[0] == 130
    assert "mine.py" in read_run("out/run.jsonl").header.sources
    before = (tmp_path / name).read_text()
    (tmp_path / name).write_text(before + "\n# slower\n" if name == "mine.py" else TRACE.format(200))
    code, _, err, workers = depends("--resume", "out")
    assert (code, workers.started["evaluate"]) == (2, [])
    assert err == (
        f"error: out/run.jsonl: {name} has changed since, so new cells would use different code or inputs; "
        "put it back, or record the run again"
    )
    (tmp_path / name).write_text(before)
    assert depends("--resume", "out")[0] == 0


@pytest.mark.parametrize("path", ["kernels/decode_native/decode_native.cuh", "harness/"])
def test_a_changed_kernel_or_engine_is_refused(path, bench):
    """As it would be with an untracked kernel or outside of git: the commit is the same."""
    bench("--out", "out", dies_after=1)
    record = Path("out/run.jsonl")
    digest = read_run(record).header.sources[path]
    record.write_bytes(factory.resealed(record.read_bytes().replace(digest.encode(), b"0" * 16)))
    code, _, err, _ = bench("--resume", "out")
    assert code == 2
    assert err.startswith(f"error: out/run.jsonl: {path} has changed since")


def test_sources_are_those_of_the_operators_and_of_what_they_are_made_of():
    catalog = discover()

    def hashed(name):
        operator = catalog.operators[name]
        return source_hashes([task_of(operator, operator.complete({}), catalog.of(name))], catalog, ())

    native, step = hashed("decode_native"), hashed("decode_step")
    assert {"kernels/decode_native/decode_native.cu", "baselines/workloads/axes.py"} <= set(native)
    assert not any("decode_step/" in name or "decode_flatten/" in name for name in native)
    assert "kernels/load.cuh" in native
    parts = ("decode_flatten", "decode_native", "mla_tile_schedule", "paged_mqa_schedule", "workloads")
    assert all(any(f"/{part}/" in name for name in step) for part in parts)
