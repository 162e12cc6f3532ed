"""Points among several GPUs: each planned cell once and from one GPU, whatever becomes of the GPUs, and what the record
says of them.
"""

import os
import re
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from spec_decode_bench.harness.config.load import ConfigError, Measure
from spec_decode_bench.harness.config.work_items import keys_of
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.records.file import Writer, read_run
from spec_decode_bench.harness.records.schema import Metrics
from spec_decode_bench.harness.session import worker
from spec_decode_bench.harness.session.cluster import _stage, chosen
from spec_decode_bench.harness.session.messages import Fatal, Job, Ready
from spec_decode_bench.harness.session.session import header
from spec_decode_bench.harness.session.several_gpus import LocalGpu, Measured, SeveralGpus
from spec_decode_bench.harness.session.worker import RunError, Worker
from tests import factory, faulty_session
from tests.fake_worker import KILLED, FakeWorkers, cell, evaluator, items
from tests.processes import has_ended, listening, run_python
from tests.tier import examples, full


@cache
def calibrated(name, **changes):
    environment = factory.gpu_environment(gpu_id=name, **changes)
    return Ready(environment, factory.calibration(np.random.default_rng(int(name[-1]))), {})


def uncalibrated(name):
    calibration = replace(calibrated(name).calibration, chase_cycles={"l2": [300.0], "memory": [310.0], "hot": [300.0]})
    return replace(calibrated(name), calibration=calibration)


class Scripted:
    """A GPU without processes, which times for as long as it may, and has its number for a time.

    fate:  "fails" or "throttled", and after how many points; None for neither.
    ready: what it answers, or raises.
    """

    def __init__(self, number, fate=None, ready=None, pause_s=0.0) -> None:
        self.name, self.doing, self.number = f"GPU {number}", "", number
        self.fate, self.good = fate or (None, 0)
        self.ready, self.pause_s = ready or calibrated(self.name), pause_s
        self.points, self.timed_s, self.ends = 0, 0.0, []

    def start(self):
        if isinstance(self.ready, Exception):
            raise self.ready
        return self.ready

    def run(self, item):
        time.sleep(self.pause_s)
        fate = self.fate if self.points >= self.good else None
        self.points += 1
        if fate == "fails":
            raise RunError("its node died")
        self.timed_s += item.budget_s
        taken = Metrics(bytes_moved=1, rounds=3, eager_us=[float(self.number)] * 3)
        if fate == "throttled":
            taken = replace(taken, disturbed=3, discarded={"software power cap": 9})
        cells = [replace(cell(item, name), metrics=taken) for name in item.variants]
        return Measured(cells, [], item.budget_s)

    def abort(self):
        self.ends.append("abort")

    def close(self):
        self.ends.append("close")


def shared(gpus, plan):
    """What becomes of a plan on some GPUs, checked for what is always true: each cell once, points whole from one GPU.

    names: process -> GPU.
    """
    warnings, cells, segments, done, session_ready, error = [], [], [], [], None, None
    try:
        with SeveralGpus(gpus, Measure(time_budget_s=10.0, audit=False), warnings.append) as session:
            session_ready, session.on_process = session.ready, segments.append
            session.on_progress = lambda count, total, doing: done.append(count)
            cells.extend(session.run(plan))
    except RunError as stopped:
        error = str(stopped)
    planned, measured = keys_of(plan), Counter(one.key for one in cells)
    assert measured <= Counter(planned)
    if error is None:
        assert measured.total() == done[-1] == len(planned)
    assert done == sorted(done)
    names = {0: session_ready and session_ready.environment.gpu_id}
    names |= {one.process: one.environment.gpu_id for one in segments}
    assert len(names) == 1 + len(segments)
    assert len({(one.operator, one.point, names[one.process]) for one in cells}) * 3 == len(cells)
    return SimpleNamespace(
        cells=cells, segments=segments, names=names, warnings=warnings, ready=session_ready, error=error
    )


FATES = st.none() | st.tuples(st.sampled_from(["fails", "throttled"]), st.integers(0, 3))


@given(st.lists(FATES, min_size=1, max_size=4), st.integers(0, 8))
@settings(max_examples=examples(300), deadline=None)
def test_whatever_becomes_of_gpus_no_variant_is_blamed_and_no_time_is_lost(fates, points):
    gpus = [Scripted(number, fate) for number, fate in enumerate(fates)]
    run = shared(gpus, items(points))
    unfit = [gpu for gpu in gpus if "abort" in gpu.ends]
    if run.error:
        assert (run.error, unfit) == ("its node died", gpus)
        assert None not in fates
    else:
        assert len(run.warnings) == len(unfit) < len(gpus)
        assert sum(gpu.timed_s for gpu in gpus) == pytest.approx(10.0 if points else 0.0)
    assert {one.status for one in run.cells} <= {"passed"}
    assert all(one.metrics.eager_us[0] == int(run.names[one.process][-1]) for one in run.cells)
    if None in fates:  # the last one keeps its points although it is throttled, as in a run on one GPU
        assert not any(one.metrics.disturbed for one in run.cells)
    assert all(gpu.ends.count("close") == 1 for gpu in gpus)


def test_points_go_to_whichever_gpu_is_free():
    """A slow GPU must not get half of the points, and no point may wait for it."""
    fast, slow = Scripted(0), Scripted(1, pause_s=0.1)
    shared([fast, slow], items(12))
    assert fast.points > 2 * slow.points > 0


def test_a_record_of_two_gpus_tells_which_of_them_timed_a_cell(tmp_path):
    run = shared([Scripted(0, pause_s=0.01), Scripted(1, pause_s=0.01)], items(6))
    writer = Writer(tmp_path / "run.jsonl")
    writer.write(header(run.ready, {"name": "test", "measure": {"cache": "hot"}}, command="", seed=0))
    for line in (*run.segments, *run.cells):
        writer.write(line)
    writer.close()
    read = read_run(tmp_path / "run.jsonl")
    assert {one.process for one in read.cells} == {0, 1}
    for one in read.cells:
        gpu = f"GPU {one.metrics.eager_us[0]:.0f}"
        assert read.process_of(one).environment.gpu_id == gpu
        assert read.calibration_of(one) == read.process_of(one).calibration
    assert [(segment.process, segment.why) for segment in read.segments] == [(1, "GPU 1")]
    (note,) = read.header.environment.notes
    assert note.startswith("measured by 2 workers (0: GPU 0, 1: GPU 1); host times are measured under a lock")


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        (uncalibrated("GPU 0"), "UNCALIBRATED: cache state not confirmed: "),
        (RunError("cannot use the device: no device"), "cannot use the device: no device"),
    ],
)
def test_a_gpu_that_cannot_be_used_measures_nothing_where_another_can(unfit, why):
    gpus = [Scripted(0, ready=unfit), Scripted(1)]
    run = shared(gpus, items(4))
    assert gpus[0].points == 0
    assert run.ready.environment.gpu_id == "GPU 1"
    (warning,) = run.warnings
    assert warning.startswith(f"GPU 0 was not used: {why}")
    assert warning in run.ready.environment.notes
    run = shared([Scripted(number, ready=uncalibrated(f"GPU {number}")) for number in range(2)], items(4))
    assert (run.warnings, bool(run.segments[0].uncalibrated)) == ([], True)


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (
            calibrated("GPU 0"),
            calibrated("GPU 1", gpu="A100"),
            "GPU 1 has gpu A100, GPU 0 has NVIDIA H200; a record holds one",
        ),
        # As where CUDA_VISIBLE_DEVICES came too late for a process.
        (calibrated("GPU 0"), calibrated("GPU 0"), "GPU 0 and GPU 1 are the same device"),
        (RunError("a"), RunError("b"), "GPU 0: a; GPU 1: b"),
    ],
)
def test_why_gpus_cannot_share_a_run_is_one_sentence(first, second, sentence):
    gpus = [Scripted(0, ready=first), Scripted(1, ready=second)]
    assert shared(gpus, items(2)).error.startswith(sentence)
    assert [gpu.ends for gpu in gpus] == [["abort", "close"]] * 2


def test_an_error_of_the_record_ends_all_gpus():
    gpus = [Scripted(0), Scripted(1)]
    with suppress(ZeroDivisionError), SeveralGpus(gpus, Measure(), print) as session:
        assert next(1 // 0 for _ in session.run(items(4)))
    assert [gpu.ends for gpu in gpus] == [["abort", "close"]] * 2


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_variant_that_kills_its_worker_fails_on_the_gpu_it_ran_on_and_nowhere_else(is_gone):
    """Unless the worker cannot be replaced: then its point is measured elsewhere."""
    job = Job("cuda", (), 0, Measure(audit=False), timed=True)
    workers = FakeWorkers(
        evaluator(dies_verifying="b"), [calibrated("GPU 1"), *([Fatal("no device")] if is_gone else [])]
    )
    run = shared([Scripted(0), LocalGpu("GPU 1", job, workers)], items(6))
    failed = {(run.names[one.process], one.variant) for one in run.cells if one.status != "passed"}
    if is_gone:
        assert failed == set()
        assert run.warnings == ["GPU 1 hands its points to the other GPUs: cannot use the device: no device"]
    else:
        assert failed == {("GPU 1", "b")}
        assert KILLED in [one.why for one in run.segments if one.environment.gpu_id == "GPU 1"]


def test_ctrl_c_ends_the_processes_of_all_gpus(monkeypatch):
    """Real processes, started by threads, whose variants hang."""
    monkeypatch.setattr(worker, "_serve", faulty_session.serve)
    started = []

    def start(job):
        started.append(Worker(job))
        return started[-1]

    job = Job("cpu", (), 0, Measure(), timed=False)
    gpus = [LocalGpu(name, job, start) for name in ("GPU 0", "GPU 1")]
    with listening(signal.SIGINT):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt), SeveralGpus(gpus, Measure(), print) as session:
            list(session.run(items(4, ["hangs"])))
    assert len(started) == 2
    assert all(has_ended(one.process_id) for one in started)
    assert not [one for one in threading.enumerate() if one.name.startswith("GPU ")]


@full
def test_the_checkout_that_is_shipped_to_a_cluster_has_every_variant(tmp_path):
    """Those of engines' kernels are in a folder of their own."""
    _stage(tmp_path, ())
    program = (
        f"import sys; sys.path[0] = {str(tmp_path)!r}; "
        "from spec_decode_bench.harness.discover import ROOT, discover; "
        "print(ROOT, *(one.id for one in discover().variants))"
    )
    done = run_python(program)
    assert done.stdout.split() == [str(tmp_path / "spec_decode_bench"), *(one.id for one in discover().variants)], (
        done.stderr
    )


@pytest.mark.parametrize(
    ("accelerators", "gpus", "wanted"),
    [
        ("H100", None, {"H100": 2}),
        ("H200,H100", "all", {"H200": 1, "H100": 2}),
        ("H100,H200", "1", {"H100": 1, "H200": 1}),
        (None, None, "--cluster: the cluster has H100, H200; choose with --accelerators"),
        ("B200", None, "--accelerators B200: the cluster has H100, H200, not B200; did you mean H200?"),
        ("H100,H200", "2", "--gpus 2: the cluster has 1 H200 GPU"),
        ("H100", "device=0", "--gpus device=0: with --cluster, give a number of GPUs, or all"),
    ],
)
def test_gpus_of_a_cluster_are_chosen_by_model_and_number(accelerators, gpus, wanted):
    present = {"H100": 2, "H200": 1}
    if isinstance(wanted, dict):
        assert chosen(present, accelerators, gpus) == wanted
    else:
        with pytest.raises(ConfigError, match=re.escape(wanted)):
            chosen(present, accelerators, gpus)
