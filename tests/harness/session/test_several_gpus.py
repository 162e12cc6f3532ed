"""A run on several GPUs, with workers that answer from a script: who gets which point, what the record says of it, and
what happens when a GPU is no good.
"""

import os
import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import keys_of
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.records.file import Writer, read_run
from spec_decode_bench.harness.records.schema import Cell, Metrics, Segment
from spec_decode_bench.harness.session import worker
from spec_decode_bench.harness.session.cluster import _stage
from spec_decode_bench.harness.session.gpus import LocalGpu, Points, SeveralGpus
from spec_decode_bench.harness.session.messages import Fatal, Heartbeat, Job, Ready
from spec_decode_bench.harness.session.session import Progress, header
from spec_decode_bench.harness.session.supervised_worker import MAX_STARTS
from spec_decode_bench.harness.session.worker import RunError, WorkerDied, start_worker
from tests import factory, faulty_session
from tests.fake_worker import KILLED, FakeWorkers, cell, evaluator, items
from tests.processes import has_ended, listening, run_python
from tests.tier import full

#: GPU -> its clock; the other GPU's kernels take twice as long.
CLOCKS_MHZ = {"GPU 0": 1980, "GPU 1": 990}


def calibrated(name, **changes):
    environment = factory.gpu_environment(gpu_id=name, sm_clock_mhz=CLOCKS_MHZ[name], **changes)
    return Ready(environment, factory.calibration(np.random.default_rng(CLOCKS_MHZ[name])), {})


def uncalibrated(name):
    ready = calibrated(name)
    wrong = replace(ready.calibration, chase_cycles={"l2": [300.0], "memory": [310.0], "hot": [300.0]})
    return Ready(ready.environment, wrong, {})


def timed_on(gpu, seconds=0.0):
    """Events of an evaluator on a GPU of CLOCKS_MHZ: a kernel of 1980 cycles."""

    def script(item):
        for name in item.variants:
            yield Heartbeat(name, "measure")
            time.sleep(seconds)
            one = cell(item, name)
            taken = Metrics(bytes_moved=1, rounds=3, eager_us=[1980 / CLOCKS_MHZ[gpu]] * 3)
            yield replace(one, metrics=taken)

    return script


def throttled_from(point, gpu):
    """From this point on, every sample is kept although the GPU is throttled."""

    def script(item):
        for event in timed_on(gpu)(item):
            if isinstance(event, Cell) and item.axes["n"] >= point:
                disturbed = replace(event.metrics, disturbed=3, discarded={"software power cap": 9})
                event = replace(event, metrics=disturbed)
            yield event

    return script


class Host:
    """GPUs by name -> script and answer to the job; runs points on them and keeps what they say."""

    def __init__(self, gpus, **measure) -> None:
        self.workers = {name: FakeWorkers(script, [answer]) for name, (script, answer) in gpus.items()}
        self.lines, self.progress, self.warnings = [], [], []
        # Without an auditor, as all fake workers here answer as evaluators.
        job = Job("cuda", (), 0, Measure(audit=False, **measure), timed=True, host_lock=True)
        local = [LocalGpu(name, job, workers) for name, workers in self.workers.items()]
        self.session = SeveralGpus(local, job.measure, self.warnings.append)

    def run(self, plan):
        with self.session:
            self.ready = self.session.ready
            for one in self.session.run(plan):
                (self.progress if isinstance(one, Progress) else self.lines).append(one)
        return self

    def asked(self, gpu):
        return self.workers[gpu].asked["evaluate"]

    def gpu_of(self, cell):
        """The number of the GPU whose process measured a cell: in these tests each has one process, in order."""
        return {0: 0, **{one.process: int(one.environment.gpu_id[-1]) for one in self.segments}}[cell.process]

    @property
    def cells(self):
        return [line for line in self.lines if isinstance(line, Cell)]

    @property
    def segments(self):
        return [line for line in self.lines if isinstance(line, Segment)]

    def points_by_gpu(self):
        return Counter(gpu for gpu, _ in {(self.gpu_of(one), one.point) for one in self.cells})


def each_once(host, plan):
    assert sorted(one.key for one in host.cells) == sorted(keys_of(plan))
    done = [one.done for one in host.progress]
    assert done == sorted(done)
    assert (host.progress[-1].done, host.progress[-1].total) == (len(host.cells), len(host.cells))


@pytest.fixture
def two():
    """Two GPUs of one model with different clocks."""
    return {gpu: (timed_on(gpu), calibrated(gpu)) for gpu in CLOCKS_MHZ}


def test_points_go_to_whichever_gpu_is_free(two):
    """The second GPU is slower in verifying: it must not get half of the points, and no point may wait for it."""
    two["GPU 1"] = (timed_on("GPU 1", seconds=0.05), calibrated("GPU 1"))
    plan = items(12)
    host = Host(two).run(plan)
    each_once(host, plan)
    assert host.points_by_gpu()[0] > 2 * host.points_by_gpu()[1] > 0


def test_a_record_of_two_gpus_tells_which_of_them_timed_a_cell(two, tmp_path):
    """Of cells that stand between each other, and through the file."""
    both_busy = threading.Barrier(2, timeout=60)

    def waits(script):
        def together(task):
            both_busy.wait()
            yield from script(task)

        return together

    host = Host({gpu: (waits(script), ready) for gpu, (script, ready) in two.items()})
    writer = Writer(tmp_path / "run.jsonl")
    config = {"name": "test", "measure": {"cache": "hot"}}
    host.run(items(6))
    writer.write(header(host.ready, config, command="", seed=0))
    for line in host.lines:
        writer.write(line)
    writer.close()
    run = read_run(tmp_path / "run.jsonl")
    assert host.points_by_gpu() == {0: 3, 1: 3}
    assert [one.process for one in run.cells] != sorted(one.process for one in run.cells)
    for one in run.cells:
        environment = run.process_of(one).environment
        assert one.metrics.eager_us == [1980 / environment.sm_clock_mhz] * 3
        assert environment.gpu_id == f"GPU {one.process}"
        assert run.calibration_of(one) == run.process_of(one).calibration
    assert [(segment.process, segment.why) for segment in run.segments] == [(1, "GPU 1")]
    (note,) = run.header.environment.notes
    assert note.startswith("measured by 2 workers (0: GPU 0, 1: GPU 1); host times are measured under a lock")


def test_all_cells_of_a_point_come_from_one_gpu(two):
    host = Host(two).run(items(8))
    assert len({(one.point, one.process) for one in host.cells}) == 8


def test_a_gpu_whose_timer_is_not_calibrated_measures_nothing(two):
    two["GPU 0"] = (timed_on("GPU 0"), uncalibrated("GPU 0"))
    plan = items(4)
    host = Host(two).run(plan)
    each_once(host, plan)
    assert host.asked("GPU 0") == []
    assert host.ready.environment.gpu_id == "GPU 1"
    (warning,) = host.warnings
    assert warning.startswith("GPU 0 was not used: UNCALIBRATED: cache state not confirmed: ")
    assert warning in host.ready.environment.notes


def test_where_no_gpu_is_calibrated_all_go_on_and_the_record_says_so():
    host = Host({gpu: (timed_on(gpu), uncalibrated(gpu)) for gpu in CLOCKS_MHZ}).run(items(4))
    assert (len(host.cells), host.warnings) == (12, [])
    assert host.segments[0].uncalibrated


def test_a_throttled_gpu_gives_its_point_back_and_gets_no_more(two):
    two["GPU 1"] = (throttled_from(0, "GPU 1"), calibrated("GPU 1"))
    plan = items(6)
    host = Host(two).run(plan)
    each_once(host, plan)
    assert host.points_by_gpu() == {0: 6}
    assert [one.metrics.disturbed for one in host.cells] == [0] * 18
    assert host.asked("GPU 1") == [("a", "b", "c")]
    why = "throttled or below its clock (software power cap) in 9 of 9 samples of a point"
    text = f"GPU 1 hands its points to the other GPUs: {why}"
    assert host.warnings == [text]
    assert host.segments[-1].why == text


def test_the_last_gpu_keeps_its_points_although_it_is_throttled():
    """They are marked, as in a run on one GPU."""
    host = Host({gpu: (throttled_from(0, gpu), calibrated(gpu)) for gpu in CLOCKS_MHZ}).run(items(4))
    assert len(host.warnings) == 1
    assert [one.metrics.disturbed for one in host.cells] == [3] * 12


def test_a_gpu_whose_worker_cannot_be_replaced_gives_its_point_back(two):
    """It dies at its first point, and then its GPU is gone."""
    two["GPU 0"] = (timed_on("GPU 0", seconds=0.01), calibrated("GPU 0"))
    two["GPU 1"] = (lambda item: iter([WorkerDied(KILLED)]), calibrated("GPU 1"))
    plan, host = items(4), Host(two)
    host.workers["GPU 1"].starts["evaluate"].append(Fatal("no device"))
    host.run(plan)
    each_once(host, plan)
    assert {(host.gpu_of(one), one.status) for one in host.cells} == {(0, "passed")}
    assert host.warnings == ["GPU 1 hands its points to the other GPUs: cannot use the device: no device"]


def test_the_run_ends_where_the_last_gpu_is_gone():
    """Its cells so far are kept."""
    gone = {gpu: (lambda item: iter([WorkerDied(KILLED)]), calibrated(gpu)) for gpu in CLOCKS_MHZ}
    host = Host(gone)
    for workers in host.workers.values():
        workers.starts["evaluate"].append(Fatal("no device"))
    with pytest.raises(RunError, match="cannot use the device: no device"):
        host.run(items(4))


def test_a_variant_that_kills_its_worker_fails_on_the_gpu_it_ran_on_and_nowhere_else(two):
    plan = items(6)
    host = Host(two | {"GPU 1": (evaluator(dies_verifying="b"), calibrated("GPU 1"))}).run(plan)
    each_once(host, plan)
    fates = {(host.gpu_of(one), one.variant): one.status for one in host.cells}
    assert fates[1, "b"] == "failed"
    assert {fate for key, fate in fates.items() if key != (1, "b")} == {"passed"}
    assert KILLED in [segment.why for segment in host.segments if segment.environment.gpu_id == "GPU 1"]


def test_gpus_of_two_models_are_refused(two):
    two["GPU 1"] = (timed_on("GPU 1"), calibrated("GPU 1", gpu="NVIDIA A100"))
    with pytest.raises(RunError, match="GPU 1 has gpu NVIDIA A100, GPU 0 has NVIDIA H200"):
        Host(two).run([])


def test_one_device_under_two_names_is_refused(two):
    """As where CUDA_VISIBLE_DEVICES came too late for a process."""
    two["GPU 1"] = (timed_on("GPU 1"), calibrated("GPU 0"))
    with pytest.raises(RunError, match="GPU 0 and GPU 1 are the same device"):
        Host(two).run([])


def test_where_no_gpu_comes_up_the_reasons_are_named():
    broken = {gpu: (evaluator(), WorkerDied(KILLED)) for gpu in CLOCKS_MHZ}
    with pytest.raises(RunError, match=f"GPU 0: the worker could not start: {KILLED}; GPU 1: the worker could not"):
        Host(broken).run([])
    assert MAX_STARTS == 3


def test_an_error_of_the_record_ends_the_run_and_the_threads(two):

    def keep(line):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"), Host(two).session as session:
        any(map(keep, session.run(items(4))))
    assert not [one for one in threading.enumerate() if one.name.startswith("GPU ")]


def test_the_time_budget_is_shared_as_on_one_gpu():
    """Four points with one, two, ... variants; nothing is timed in between, so each cell gets as much."""
    plan = [items(n, "abcd"[:n])[-1] for n in (1, 2, 3, 4)]
    points = Points(plan, 10.0)
    shares = [points.take(member) for member in (0, 1, 0, 1)]
    assert [item.budget_s / len(item.variants) for item in shares] == pytest.approx([1.0] * 4)
    points = Points(plan, 10.0)
    points.return_time(points.take(0).budget_s - 0.4)  # it took 0.4 s
    assert points.take(0).budget_s == pytest.approx(9.6 * 2 / 9)


def test_a_worker_stays_with_an_operator_that_it_has_verified():
    """The other one begins with another operator, and helps where its own has no points left."""
    points = Points([*items(4), *items(3, operator="p")], 1.0)
    taken = [points.take(member).operator for member in (0, 1, 0, 1, 1, 1, 0)]
    assert taken == ["o", "p", "o", "p", "p", "o", "o"]
    assert not points


def test_ctrl_c_ends_the_processes_of_all_gpus(monkeypatch):
    """Real processes, started by threads, whose variants hang."""
    monkeypatch.setattr(worker, "_serve", faulty_session.serve)
    started = []

    def start(job):
        started.append(start_worker(job))
        return started[-1]

    job = Job("cpu", (), 0, Measure(), timed=False)
    gpus = [LocalGpu(name, job, start) for name in CLOCKS_MHZ]
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
