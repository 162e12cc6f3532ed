"""What limits the use of a run is shown on screen, in the record, and in every table, plot and comparison."""

import io
import re
from functools import partial

import numpy as np
import pytest
from matplotlib.text import Text
from msgspec.structs import replace
from rich.console import Console

from spec_decode_bench.cli import doctor
from spec_decode_bench.cli.run_report import report
from spec_decode_bench.harness.analysis import estimators
from spec_decode_bench.harness.analysis.warnings import doubted_cells, measurement_warnings, throttling_warnings
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.harness.report.tables import result_tables
from spec_decode_bench.harness.session.messages import Ready
from spec_decode_bench.harness.session.session import Session
from spec_decode_bench.plots import calibration, itl_tpot, latency, speedup
from spec_decode_bench.regression.comparison import compare
from spec_decode_bench.regression.comparison_report import comparison_console, comparison_markdown
from spec_decode_bench.regression.plots import regression
from tests import factory
from tests.cli.test_cli import call
from tests.fake_worker import FakeWorkers, evaluator
from tests.harness.session.test_resume import says, segment
from tests.tier import few


def off_by(ns: float, seed: int = 0):
    """A calibration in which the graph slope misses the longest spin."""
    timer = factory.calibration(np.random.default_rng(seed))
    longest = max(timer.spins)
    probe = timer.spins[longest]
    shifted = {k: [t + k * ns / 1000 for t in times] for k, times in probe.graph_us.items()}
    return replace(timer, spins=timer.spins | {longest: replace(probe, graph_us=shifted)})


def uncalibrated_run(**header) -> Run:
    run, timer = factory.sweep_run(batch_sizes=(1, 8)), off_by(400)
    errors = estimators.calibration_errors(timer)
    assert errors[0].startswith("graph slope: a spin of 20.00 us is measured +")
    header = {"calibration": timer, "uncalibrated": errors} | header
    return factory.with_header(run, **header)


def with_metrics(run: Run, index: int, **changes) -> Run:
    cells = list(run.cells)
    cells[index] = factory.with_metrics(cells[index], **changes)
    return replace(run, cells=cells)


def doubted_run() -> Run:
    """Its first cell: 46 us by the slope, 60 by the others."""
    run = factory.sweep_run(batch_sizes=(1,))
    return with_metrics(run, 0, cupti_us=[60.0] * 5, stream_us={1: [60.0] * 5, 8: [480.0] * 5})


def throttled_run() -> Run:
    run = factory.sweep_run(batch_sizes=(1,))
    return with_metrics(run, 0, discarded={"software power cap": 4, "clock below 90% of the run's": 1}, disturbed=2)


def test_repeated_samples_are_noted_by_their_reasons():
    (table, *_) = result_tables(with_metrics(throttled_run(), 1, discarded={"software power cap": 3}))
    repeated, kept = table.notes[-2:]
    assert repeated.startswith("8 samples repeated")
    assert "software power cap 7, clock below 90% of the run's 1" in repeated
    assert "op_chain/batch_size=1,next_n=4,max_decode_len=1,padding=0.0 (2)" in kept


def shown(draw) -> str:
    console = Console(file=io.StringIO(), width=100)
    draw(console)
    return says(console.file.getvalue())


# --- uncalibrated -----------------------------------------------------------------------------------------------------


def two_cells(run: Run) -> Run:
    """Two cells of it, as a comparison is slow."""
    return replace(run, cells=run.cells[:2])


def texts(module, runs) -> list[str]:
    """Of the figure of a module; that of a comparison is intercepted when it is saved."""
    caught = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "save", lambda figure, stem: caught.append(figure) or [])
        if module is regression:
            regression.draw(compare(*([two_cells(run)] for run in runs)), None)
    figure = caught[0] if caught else module.figure(runs)
    return [text.get_text() for text in figure.findobj(Text)]


@pytest.mark.parametrize(
    "figure", few([latency, speedup, itl_tpot, calibration, regression], 2), ids=lambda module: module.__name__
)
@pytest.mark.parametrize("where", ["header", "segment"])
def test_an_uncalibrated_run_says_so_on_screen_in_its_table_and_in_every_plot(figure, where, tmp_path):
    run = read_run(factory.write(uncalibrated_run(), tmp_path / "run.jsonl"))
    if where == "segment":
        late = segment("resumed", calibration=run.header.calibration, uncalibrated=run.header.uncalibrated)
        cells = [replace(cell, process=1) for cell in run.cells]
        run = replace(uncalibrated_run(uncalibrated=()), segments=[late], cells=cells)
    sound = factory.sweep_run(batch_sizes=(1, 8))
    for runs, stamped in (([sound, run], True), ([sound, sound], False)):
        words = texts(figure, runs)
        assert any(text.startswith("UNCALIBRATED — mtp3: graph slope: a spin of") for text in words) == stamped
        text = shown(lambda console: report(console, runs[1], tmp_path, no_plots=True))  # noqa: B023 - called at once
        assert ("UNCALIBRATED: the timer of this run missed its tolerances" in text) == stamped
        marks = (tmp_path / "table.md").read_text().count("UNCALIBRATED: graph slope: a spin of 20.00 us")
        assert marks == (2 if stamped else 0)  # one for each operator


# --- doubted cells, throttled samples, cells without an audit ---------------------------------------------------------


@pytest.mark.parametrize(
    ("flawed", "words", "mark"),
    [
        (uncalibrated_run(), "UNCALIBRATED: graph slope: a spin of 20.00 us", None),
        (doubted_run(), "no second estimator confirms 1 cell: decode_flatten/op_chain/batch_size=1", "?"),
        (throttled_run(), "! 2 samples kept although the GPU was still throttled", "!"),
    ],
    ids=["uncalibrated", "doubted", "throttled"],
)
def test_a_table_and_a_comparison_warn_of_either_side(flawed, words, mark):
    (table, *_) = result_tables(flawed)
    if mark:
        assert len([entry for row in table.rows for entry in row if entry.text.endswith(mark)]) == 1
        assert any(note.startswith(f"{mark} ") and "op_chain/batch_size=1" in note for note in table.notes)
    sound, flawed = two_cells(factory.sweep_run(batch_sizes=(1,))), two_cells(flawed)
    for runs, side in (((sound, flawed), "head"), ((flawed, sound), "base")):
        comparison = compare(*([run] for run in runs))
        screen = shown(lambda console: comparison_console(comparison, console))  # noqa: B023 - called at once
        assert f"warning: {side}: {words}" in screen
        assert f"- ⚠️ {side}: {words}" in comparison_markdown(comparison)
    assert "⚠️" not in comparison_markdown(compare([sound], [sound]))
    assert measurement_warnings([sound]) == []
    assert doubted_cells(sound, sound.cells) == {}
    assert throttling_warnings(sound.cells) == []


# --- doctor -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def examine(monkeypatch):
    def one(ready, out=None):
        workers = FakeWorkers(evaluator(), [ready])
        monkeypatch.setattr(doctor, "Session", partial(Session, start=workers))
        console = Console(file=io.StringIO(), width=100)
        healthy = doctor.examine(console, "cpu", out)
        assert workers.closed["evaluate"]
        return healthy, says(console.file.getvalue())

    return one


@pytest.mark.parametrize("off_ns", [0, 400])
def test_doctor_says_whether_the_timer_is_calibrated(off_ns, examine, tmp_path):
    healthy, text = examine(Ready(factory.gpu_environment(notes=("NVML refused",)), off_by(off_ns), {}), tmp_path)
    assert healthy == (not off_ns)
    assert ("UNCALIBRATED" in text) == bool(off_ns)
    assert ("calibrated: every estimator measures every known time within its tolerance" in text) == healthy
    assert "SM clock under load 1980 MHz" in text
    assert "note: NVML refused" in text
    record = read_run(tmp_path / "run.jsonl")
    assert (record.header.name, bool(record.uncalibrated), record.cache) == ("doctor", not healthy, "serving")
    assert (tmp_path / "calibration.png").stat().st_size > 10_000


def test_doctor_without_a_gpu_has_nothing_to_calibrate_and_is_fine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call("doctor", "--device", "cpu", "--out", "out")
    assert (code, err) == (0, "")
    assert "which needs no calibration" in says(out)
    assert re.search(r"to profile .*Nsight Systems .*torch\.profiler .*NVTX", says(out))  # the profiler's lines
    assert not (tmp_path / "out").exists()
