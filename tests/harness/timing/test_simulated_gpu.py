"""The code that needs a GPU, on a simulated one: timer, calibration, cache states, graph checks, evaluator and auditor.

Simulated times are known to the nanosecond, so measured ones are compared with ``approx`` only for rounding.
"""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch

from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.baselines.decode_native.operator import operator as native
from spec_decode_bench.harness.analysis.estimators import (
    CUPTI,
    ESTIMATORS,
    QUEUED_EVENTS,
    calibration_errors,
    estimates,
)
from spec_decode_bench.harness.analysis.stats import copy_bound_curve, copy_bound_us, samples, slopes
from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import Result
from spec_decode_bench.harness.cuda import launcher
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Metrics, Status
from spec_decode_bench.harness.records.sentences import ending
from spec_decode_bench.harness.session.auditor import BLOCKED, Auditor
from spec_decode_bench.harness.session.evaluator import Evaluator
from spec_decode_bench.harness.session.measure import measure
from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.harness.session.sampling import ContextLost
from spec_decode_bench.harness.session.session import _with_cupti
from spec_decode_bench.harness.session.worker import WorkerDied
from spec_decode_bench.harness.timing import calibrate as calibration
from spec_decode_bench.harness.timing.cache import CALIBRATION_KERNELS
from spec_decode_bench.harness.timing.clocks import Clocks
from spec_decode_bench.harness.timing.cuda_timer import HOST_CALLS, CudaTimer
from spec_decode_bench.harness.timing.environment import ROOT
from spec_decode_bench.harness.timing.queued_events import SPIN_MARGIN_US, SPIN_TRIES, QueuedEvents
from spec_decode_bench.harness.timing.rounds import PlacedLaunch
from spec_decode_bench.harness.verify import edge_cases
from spec_decode_bench.harness.verify.edge_cases import EdgeCaseChecks
from tests import factory
from tests.adversaries import on_a_gpu
from tests.adversaries.test_adversaries import GPU_REJECTIONS
from tests.in_process import evaluators, measured
from tests.runnable import variant_of
from tests.simulated_gpu import MISSED_BYTES_PER_NS, simulated_gpu
from tests.tier import full

COPIES = (1, 2, 4, 8, 16)
ADVERSARIES = ROOT / "tests" / "adversaries"
POINT = native.complete({"batch_size": 2, "context_len": 600})
HONEST = ("chain", "chain_clamp", "flat_view")


@pytest.fixture
def gpu():
    with simulated_gpu() as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def short_calibration():
    """As many rounds and bytes as a simulation needs, in which every one is like the other."""
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"COPY_BYTES": 2**23, "CURVE_BYTES": (2**9, 2**15, 2**23), "CURVE_ROUNDS": 3}
        for name, value in {"ROUNDS": 3, "EMPTY_PAIRS": 5, **sizes}.items():
            patch.setattr(calibration, name, value)
        yield


def spin(nanoseconds):
    return launcher(CALIBRATION_KERNELS, "spin", 1, 1, nanoseconds)


def sampled(timer, launch, rounds=3):
    watch = timer.stopwatch(PlacedLaunch(launch))
    taken = [watch.sample() for _ in range(rounds)]
    return watch, taken, {k: [one["graph_us"][k] for one in taken] for k in taken[0]["graph_us"]}


# --- the timer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nanoseconds", "launches", "largest"), [(2500, 1, 16), (20_000, 1, 16), (1000, 9, 8), (100, 100, 2)]
)
def test_the_slope_is_the_time_of_the_launches_and_their_nodes(nanoseconds, launches, largest, gpu):
    """The two smallest graphs and the largest of at most 128 nodes are timed."""
    waits = [spin(nanoseconds)] * launches
    watch, taken, graph_us = sampled(CudaTimer(COPIES), lambda: [wait() for wait in waits])
    assert list(graph_us) == sorted({1, 2, largest})
    assert slopes(graph_us) == pytest.approx([launches * (nanoseconds / 1e3 + 0.9)] * 3)
    assert watch.facts() == {"launches": launches, "graph_nodes": {"kernel": launches}}
    if launches == 1:
        queued = [(one["stream_us"][8] - one["stream_us"][1]) / 7 for one in taken]
        assert queued == pytest.approx([nanoseconds / 1e3 + 1.75] * 3)
        # Submission and a wait for the device: neither is in the slope.
        assert [one["eager_us"] for one in taken] == pytest.approx([nanoseconds / 1e3 + 7.77] * 3, abs=0.1)
        assert [one["host_us"] for one in taken] == pytest.approx([2.0] * 3, abs=0.1)


def test_the_slope_of_a_chain_is_the_sum_of_its_nodes_also_after_a_capture_that_failed(gpu):
    gpu.durations = {"mul_": 3000, "clamp_": 700}
    a, b = torch.ones(64, dtype=torch.int32, device="cuda"), torch.zeros(64, dtype=torch.int32, device="cuda")
    wait, timer = spin(1500), CudaTimer(COPIES)

    def launch():
        wait()
        a.mul_(3)
        a.clamp_(max=9)
        b.copy_(a)

    waits = timer.stopwatch(PlacedLaunch(lambda: a.sum().item()))
    assert (waits.leading, waits.replay, "graph_us" in waits.sample()) == ("eager_us", None, False)
    assert "not permitted when stream is capturing" in waits.facts()["no_graph"]
    watch, _, graph_us = sampled(timer, launch)
    assert slopes(graph_us) == pytest.approx([1.5 + 3.0 + 0.7 + 0.4 + 4 * 0.9] * 3)
    assert watch.facts() == {"launches": 4, "graph_nodes": {"kernel": 3, "memcpy": 1}}
    assert b.tolist() == [9] * 64


def test_host_times_are_taken_under_the_lock_and_device_times_without_it(gpu):
    held, calls = [False], []

    @contextmanager
    def lock():
        held[0] = True
        yield
        held[0] = False

    work = spin(1000)

    def launch():
        calls.append((held[0], torch.cuda.is_current_stream_capturing()))
        work()

    timer = CudaTimer(COPIES, host_lock=lock)
    watch = timer.stopwatch(PlacedLaunch(launch), stream_rounds=1)
    calls.clear()
    watch.sample()
    assert calls.count((True, False)) == HOST_CALLS + 1  # host_us, then the call of eager_us
    assert (False, False) in calls  # those of stream_us
    assert calls.count((False, True)) == sum((*COPIES[:2], COPIES[-1]))
    assert calls.count((True, True)) == 0


# --- queued events ----------------------------------------------------------------------------------------------------


class Spins:
    """The timer's spin, and the durations asked for."""

    def __init__(self, timer):
        self.timer, self.asked = timer, []

    def __call__(self, microseconds):
        self.asked.append(microseconds)
        self.timer.spin(microseconds)


def test_a_host_that_stumbles_is_tried_again_behind_longer_spins(gpu):
    """A first try never counts: else a device that is late by chance would hide that the host was. Nor does a known
    name need a second.
    """
    spins, work = Spins(CudaTimer(COPIES)), spin(5000)
    events, stumbles = QueuedEvents(spins), [0, 500, 200, 0, 0]

    def stumbling():
        gpu.spend(stumbles.pop(0) * 1e3)
        work()

    assert events.microseconds("work", stumbling) == pytest.approx(5 + 1.75)
    assert stumbles == [0]
    first, *rest = spins.asked
    assert first == SPIN_MARGIN_US
    assert np.diff(np.log2(rest)) == pytest.approx([1.0] * 2)
    assert rest[0] > 2 * SPIN_MARGIN_US
    assert events.microseconds("work", stumbling) == pytest.approx(5 + 1.75)


def test_a_host_that_is_never_in_time_is_an_error(gpu):
    def waits():
        torch.cuda.synchronize()

    spins = Spins(CudaTimer(COPIES))
    with pytest.raises(RuntimeError, match=rf"{SPIN_TRIES} times in a row; does the launch wait for the device\?"):
        QueuedEvents(spins).microseconds("a", waits)
    assert len(spins.asked) == SPIN_TRIES


# --- calibration and cache states -------------------------------------------------------------------------------------


def calibrated(cache="hot", flushes=True):
    timer, clocks = CudaTimer(COPIES, cache), Clocks()
    clocks.set_run_clock()
    if not flushes:
        timer.cache._flush_buffer = torch.empty(16, dtype=torch.uint8, device="cuda")
    return calibration.calibrate(timer, clocks)


@pytest.mark.parametrize("cache", ["hot", "cold", "serving"])
def test_a_calibration_without_errors(cache, gpu):
    found = calibrated(cache)
    assert calibration_errors(found, cache) == ()
    assert found.spins[5000].true_us == [5.0] * 3
    assert [float(np.median(slopes(probe.graph_us))) for probe in found.spins.values()] == pytest.approx(
        [1.9, 2.9, 5.9, 10.9, 20.9]
    )
    assert (found.own["chain"].launches, found.own["null"].launches, found.sm_clock_mhz) == (5, 1, 1980)
    assert found.empty_pair_us == [0.0] * 5
    assert bool(found.own["null"].state_us) == (cache != "hot")


@pytest.mark.parametrize("cache", ["hot", "cold", "serving"])
def test_the_curve_of_copies_is_taken_in_the_state_of_the_run(cache, gpu):
    gpu.reported_l2_bytes = 2**23
    found = calibrated(cache)
    usual = "a vector a thread"
    shapes = [[usual, "an integer a thread"], [usual], [usual, "two blocks an SM"]]
    assert [list(taken) for taken in found.copies.values()] == shapes
    assert all(bool(times.state_us) == (cache != "hot") for of in found.copies.values() for times in of.values())
    sizes, bounds = copy_bound_curve(found)
    assert sizes.tolist() == [2**9, 2**15, 2**23]
    assert list(bounds) == sorted(bounds)
    fastest = min(np.median(slopes(times.graph_us)) for times in found.copies[2**15].values())
    added = {"hot": 0, "serving": 2**14, "cold": 2**15}[cache] / MISSED_BYTES_PER_NS / 1000
    assert copy_bound_us(found, 2**15) == pytest.approx(fastest + added, rel=0.02)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (lambda gpu: setattr(gpu, "timer_rate", 1.05), {"graph slope", "queued events"}),
        (lambda gpu: setattr(gpu, "in_graph_ns", lambda ns: 1.03 * ns + 900), {"graph slope"}),
        (lambda gpu: setattr(gpu, "queued_ns", lambda ns: 1.03 * ns + 900), {"queued events"}),
    ],
    ids=["a global timer that runs fast", "in a graph", "in a queue"],
)
def test_an_estimator_without_a_constant_offset_is_named(fault, named, gpu):
    fault(gpu)
    assert {one.partition(":")[0] for one in calibration_errors(calibrated())} == named


@pytest.mark.parametrize("cache", ["cold", "serving"])
def test_a_state_that_does_not_flush_is_a_calibration_error(cache, gpu):
    (found,) = calibration_errors(calibrated(cache, flushes=False), cache)
    assert "270 cycles, 660 are expected" in found


def test_a_copy_that_comes_out_wrong_ends_the_calibration(gpu, monkeypatch):
    monkeypatch.setattr("tests.simulated_gpu.ctypes.memmove", lambda *_: None)
    with pytest.raises(RuntimeError, match="calibration copy gave a wrong result"):
        calibrated()


# --- checks and replays -----------------------------------------------------------------------------------------------


def stale(point, x, out):
    """Captures the lengths that its set-up saw."""
    work, kept = chain_clamp(point, x, out), x.seq_lens.clone()
    return on_a_gpu.by_capture(work, chain_clamp(point, SimpleNamespace(seq_lens=kept), out))


def waits_unseen_by_torch(point, x, out):
    waits = on_a_gpu.by_capture(lambda: torch.cuda.current_stream().synchronize(), lambda: None)
    return on_a_gpu.followed(chain_clamp(point, x, out), waits)


def made_variant(setup):
    return variant_of(setup, skip=on_a_gpu.SKIP, waives=("no_alloc",))


@pytest.mark.parametrize(
    ("setup", "check", "words"),
    [
        (chain_clamp, None, ""),
        (stale, "graph_safe", "buffer differs from what an eager launch writes for the same inputs"),
        (waits_unseen_by_torch, "no_sync", "returns only after all earlier work is done"),
    ],
)
def test_an_unsound_launch_is_rejected_and_a_graph_of_a_sound_one_replays_200_steps(setup, check, words, gpu):
    found = list(EdgeCaseChecks(native, made_variant(setup), "cuda", seed=5, thorough=False))
    if check is None:
        assert {one.status for one in found} == {"passed", "skipped"}
        assert frozenset().union(*(one.passed_checks for one in found)) >= {"graph_safe", "no_sync", "exact"}
    else:
        first = next(one for one in found if one.status == "mismatch")
        assert first.check == check
        assert words in first.message


# --- the evaluator ----------------------------------------------------------------------------------------------------


STOPS = """
import itertools
import torch
from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from tests.adversaries.on_a_gpu import by_capture, cheat, followed

def from_the_sixth_capture(work, other):
    "1 and 4 copies are captured before the graphs of the samples."
    captures = itertools.count()
    return by_capture(work, lambda: (work if next(captures) < 5 else other)())

@cheat
def idles_in_timed_graphs(point, x, out):
    "As many nodes of the same kernels as before, on other memory."
    elsewhere = torch.zeros_like(out.buffer)
    return from_the_sixth_capture(chain_clamp(point, x, out), chain_clamp(point, x, type(out)(elsewhere)))

@cheat
def shrinks_in_timed_graphs(point, x, out):
    "Fewer nodes."
    return from_the_sixth_capture(chain_clamp(point, x, out), lambda: out.buffer.add_(0))

@cheat
def fewer_of_a_kind_in_a_graph(point, x, out):
    "The same kernels on both sides, one of them twice outside of a graph."
    work, more = chain_clamp(point, x, out), lambda: out.buffer.add_(0)
    return followed(followed(work, more), by_capture(more, lambda: None))

@cheat
def one_operation_more_in_some_calls(point, x, out):
    "Every third call outside of a graph does more."
    calls = itertools.count()
    more = by_capture(lambda: next(calls) % 3 == 2 and out.buffer.add_(0), lambda: None)
    return followed(chain_clamp(point, x, out), more)
"""
BESIDE = """
from types import SimpleNamespace
from spec_decode_bench.harness.engine_launch import EngineLaunch, own

def changing_in_place(point, x, target):
    "Launches that put the state back, and that change it."
    offsets = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32, device=target.device)
    lens = x.seq_lens.unsqueeze(1).expand_as(target)
    work = lambda: target.add_(offsets).clamp_(min=0).floor_divide_(point.compress_ratio)
    return own(lambda: target.copy_(lens)), work

@cheat
def in_place(point, x, out):
    return EngineLaunch(*changing_in_place(point, x, out.views(point)["context_lens"]))

@cheat
def in_fresh_memory(point, x, out):
    made, fresh = SimpleNamespace(), type(out)(torch.empty_like(out.buffer))
    fill, source, target = chain_clamp(point, x, fresh), *(one.views(point)["context_lens"] for one in (fresh, out))

    def launch():
        fill()
        made.lens = source.clone()

    return EngineLaunch(launch, own(lambda: target.copy_(made.lens)))

@cheat
def in_place_elsewhere_when_timed(point, x, out):
    target = out.views(point)["context_lens"]
    put_back, work = changing_in_place(point, x, target)
    _, elsewhere = changing_in_place(point, x, torch.zeros_like(target))
    return EngineLaunch(put_back, from_the_sixth_capture(work, elsewhere))
"""
#: Those of the cheats whose trick exists in the simulation, and the word of their rejection by the timing process.
REJECTED = {
    **GPU_REJECTIONS,
    "stops_when_timed": "every_call|is empty|does not hold",
    "knows_its_caller": "before the host calls",
    "idles_in_timed_graphs": "every_call: ",
    "shrinks_in_timed_graphs": "same_work: captured again",
    "in_place_elsewhere_when_timed": "every_call: |after timing: exact",
    "captured_beside_the_graph": "graph_safe",
}
#: In this order: patches a class that the simulation replaces; hangs; is rejected by the auditor, not by this process;
#: loses the context.
for _name in ("patches_the_event", "never_ends", "other_work_in_a_graph", "writes_to_nowhere"):
    del REJECTED[_name]
#: In the simulation a graph that was captured in set-up works; on an H200 it does not.
REJECTED["graph_of_its_own"] = "graph_safe"


#: Variants that the auditor rejects, and its words.
AUDITED = {
    "fewer_of_a_kind_in_a_graph": "same_work: 6 operations in a graph, 7 outside of it",
    "one_operation_more_in_some_calls": "so the calls do different work",
    "other_work_in_a_graph": "same_work: 3 operations in a graph, 5 outside of it",
    "waits_for_the_device": "no_sync: a launch waits for the device 1 time",
    "allocates_in_the_launch": "no_alloc: 3 allocations in a launch",
    "keeps_memory": "no_alloc: every launch leaks 4096 bytes",
}


def job(*files, **measure):
    return Job("cuda", tuple(map(str, files)), 3, Measure(**{"min_rounds": 3, "max_rounds": 6} | measure), True)


def started(process):
    """An Evaluator or Auditor that has calibrated."""
    process.bring_up()
    process.ready()
    return process


def answers(owner, *names, point=POINT):
    """Cells of an Evaluator; of an Auditor what it found."""
    task = factory.item(native, dict(point), names, budget_s=100.0)
    if isinstance(owner, Evaluator):
        return list(measured(owner, task).values())
    finding, metrics = task.where.finding(Status.PASSED), Metrics(bytes_moved=0)
    timed = (Result(operator=native.name, variant=name, finding=finding, metrics=metrics) for name in names)
    return [found for one in timed for found in owner.audit(task, one)]


@pytest.fixture(scope="module")
def short_replays():
    """Fewer than the two hundred steps that are tested above."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_cases, "STEPS", 12)
        yield


@pytest.fixture(scope="module")
def timed(tmp_path_factory, short_replays):
    """An evaluator's answer and cells, and the auditor's answers for the same variants."""
    mine = tmp_path_factory.mktemp("cheats") / "mine.py"
    mine.write_text(STOPS + BESIDE)
    asked = job(mine, ADVERSARIES / "on_a_gpu.py", ADVERSARIES / "anywhere.py")
    with simulated_gpu():
        evaluator = Evaluator(asked)
        evaluator.bring_up()
        ready = evaluator.ready()
        cells = {cell.variant: cell for cell in answers(evaluator, *HONEST, *REJECTED)}
        evaluator.close()
        assert torch.cuda.current_stream().cuda_stream == 0, "a current stream that was moved is put back"
    with simulated_gpu():
        auditor = Auditor(asked)
        auditor.bring_up()
        audit_ready = auditor.ready()
        audited = {one.variant: one for one in answers(auditor, *HONEST, *AUDITED)}
    return SimpleNamespace(ready=ready, cells=cells, audit_ready=audit_ready, audited=audited)


@pytest.fixture(scope="module")
def on_an_h200():
    """Variant -> metrics of the record of an H200."""
    run = read_run(ROOT / "results" / "reference" / "nvidia-h200" / "decode_tables.jsonl")
    cells = reversed([cell for cell in run.cells if cell.operator == native.name and cell.metrics])
    return {cell.variant: cell.metrics for cell in cells}


@pytest.mark.parametrize(("name", "nodes"), [*zip(HONEST, (4, 5, 2), strict=True)])
def test_an_honest_variant_is_timed_and_counted_as_on_an_h200(name, nodes, timed, on_an_h200):
    cell, counts, real = timed.cells[name], timed.audited[name].metrics, on_an_h200[name]
    assert (cell.status, ending(cell), cell.metrics.stopped) == ("passed", None, "settled")
    assert samples(cell.metrics, "gpu_us") == pytest.approx([nodes * (0.4 + 0.9)] * cell.metrics.rounds)
    assert cell.metrics.host_us == pytest.approx([2.0 * nodes] * cell.metrics.rounds, abs=0.1)
    assert min(cell.metrics.eager_us) > nodes * 0.4
    of_calls = {calls: len(taken) for calls, taken in cell.metrics.stream_us.items()}
    assert of_calls == dict.fromkeys((1, 8), cell.metrics.rounds)
    assert (cell.metrics.sm_clock_mhz, cell.metrics.power_w) == ([1980] * 2, [300.0] * 2)
    assert (cell.metrics.launches, cell.metrics.graph_nodes) == (nodes, real.graph_nodes)
    assert real.launches == nodes
    for counted in ("cupti_launches", "eager_launches", "allocations", "synchronizations", "memcpys"):
        assert getattr(counts, counted) == getattr(real, counted)
    metrics = msgspec.structs.replace(cell.metrics, cupti_us=counts.cupti_us)
    assert all(getattr(metrics, estimator.field) for estimator in ESTIMATORS)
    found = estimates(metrics, _with_cupti(timed.ready.calibration, timed.audit_ready))
    assert dict(found.others) == pytest.approx(dict.fromkeys((QUEUED_EVENTS, CUPTI), found.gpu_us), abs=0.002)


@pytest.mark.parametrize("name", REJECTED)
def test_a_cheat_is_rejected_as_on_a_gpu(name, timed):
    cell = timed.cells[name]
    assert cell.status == "mismatch"
    assert any(words in ending(cell) for words in REJECTED[name].split("|")), ending(cell)
    assert cell.metrics is None


@pytest.mark.parametrize("cache", ["hot", "cold"])
@pytest.mark.parametrize("name", ["in_place", "in_fresh_memory"])
def test_calls_are_checked_after_all_of_their_launches(name, cache, gpu, short_replays, tmp_path):
    """The suite's own launches alone leave state that was put back, or results of an earlier call."""
    mine = tmp_path / "mine.py"
    mine.write_text(STOPS + BESIDE)
    (cell,) = answers(started(Evaluator(job(mine, cache=cache))), name)
    assert cell.status == "passed", ending(cell)
    engine = {"in_place": 3, "in_fresh_memory": 6}[name]
    assert cell.metrics.launches == engine
    assert samples(cell.metrics, "gpu_us") == pytest.approx([engine * (0.4 + 0.9)] * cell.metrics.rounds, abs=0.01)


FAULTS = """
import itertools
import sys
from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.harness.cuda import launcher
from tests.adversaries.on_a_gpu import NOWHERE, cheat

@cheat
def faults_when_timed(point, x, out):
    work, fault = chain_clamp(point, x, out), launcher(NOWHERE, "nowhere", 1, 1, 1)
    return lambda: fault() if "harness/timing" in sys._getframe(1).f_code.co_filename else work()

calls = itertools.count()

@cheat
def faults_in_turns(point, x, out):
    work, fault = chain_clamp(point, x, out), launcher(NOWHERE, "nowhere", 1, 1, 1)
    timed = lambda: "harness/timing" in sys._getframe(2).f_code.co_filename
    return lambda: fault() if timed() and next(calls) > 60 else work()
"""


@pytest.mark.parametrize(("name", "beside"), [("writes_to_nowhere", True), ("faults_when_timed", False)])
def test_a_variant_that_loses_the_context_is_told_apart(name, beside, gpu, short_replays, tmp_path):
    """By its own error, and the process ends. Not replaced here, the others do not run."""
    mine = tmp_path / "mine.py"
    mine.write_text(FAULTS)
    worker = evaluators(started(Evaluator(job(mine, ADVERSARIES / "on_a_gpu.py"))))
    task = factory.item(native, dict(POINT), (name, "flat_view"), budget_s=1.0)
    with pytest.raises(WorkerDied, match="the CUDA context was lost"):
        list(measure(task if beside else task.of([name]), worker, None))
    found = [one for one in worker._worker.told if isinstance(one, Result) and one.finding.status.is_bad]
    assert [one.variant for one in found] == ([name] if beside else [])
    assert all("illegal memory access" in one.finding.message for one in found)


def test_who_of_several_lost_the_context_in_turns_is_not_said(gpu, short_replays, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(FAULTS)
    task = factory.item(native, dict(POINT), ("faults_in_turns", "flat_view"), budget_s=1.0)
    with pytest.raises(ContextLost, match="illegal memory access"):
        measured(started(Evaluator(job(mine))), task)


def test_samples_of_a_throttled_gpu_are_repeated_and_counted(gpu, short_replays):
    """Throttled for 3 ms of every 30. A sample takes about 1 ms, the ramp before it is repeated 20 ms. One sample each
    time, since the GPU is no longer throttled after the ramp.
    """
    evaluator = started(Evaluator(job(max_rounds=40, min_rounds=40)))
    answers(evaluator, "flat_view")  # its edge cases are checked only this once
    start = gpu.now_ns
    gpu.throttled = lambda ns: (ns - start) % 30e6 > 27e6
    (cell,) = answers(evaluator, "flat_view")
    assert (cell.status, cell.metrics.rounds, cell.metrics.disturbed) == ("passed", 40, 0)
    assert set(cell.metrics.discarded) == {"software power cap"}
    assert 0 < cell.metrics.discarded["software power cap"] <= (gpu.now_ns - start) / 30e6
    assert samples(cell.metrics, "gpu_us") == pytest.approx([2 * (0.4 + 0.9)] * 40)


def test_a_cell_in_the_serving_state_takes_longer_by_its_cache_misses(gpu, short_replays):
    evaluator = started(Evaluator(job(cache="serving")))
    large = native.complete({"batch_size": 1024, "context_len": 600})
    (cell,) = answers(evaluator, "flat_view", point=large)
    hot = 2 * (0.4 + 0.9)
    assert min(samples(cell.metrics, "gpu_us")) > hot + 0.1
    assert slopes(cell.metrics.graph_us) == pytest.approx([hot] * cell.metrics.rounds)


PLACES = """
from spec_decode_bench.baselines.decode_native.chains import flat_view
from spec_decode_bench.harness.contract import variant

places, first = [], []
end_aligned = lambda p: "plain rows only" if p.row_alignment == "front" or p.cp_size > 1 else None

@variant("decode_native", skip=end_aligned)
def mine(point, x, out):
    places.append(out.buffer.data_ptr() % 2**21)
    return flat_view(point, x, out)

@variant("decode_native", skip=end_aligned)
def once(point, x, out):
    "Right on the first buffers of the timed point only."
    if str(point.context_len) == "600":
        first.append(out)
    return flat_view(point, x, out) if len(first) < 2 else lambda: None
"""


@full
def test_a_cell_is_timed_on_ten_sets_of_buffers_which_lie_alike_in_every_process(short_replays, tmp_path):
    (tmp_path / "mine.py").write_text(PLACES)
    taken = []
    for bytes_before in (0, 300_000):
        with simulated_gpu():
            unrelated = torch.empty(bytes_before, dtype=torch.uint8, device="cuda")
            evaluator = started(Evaluator(job(tmp_path / "mine.py", min_rounds=10, max_rounds=10)))
            cells = {one.variant: one for one in answers(evaluator, "mine", "once")}
            places = evaluator.catalog.find("decode_native", "mine").setup.__globals__["places"][-10:]
            taken.append(places)
            del unrelated
    assert ending(cells["mine"]) is None
    assert (cells["mine"].metrics.placements, cells["mine"].metrics.rounds) == (10, 10)
    assert taken[0] == taken[1]
    assert len(set(taken[0])) == 10
    assert cells["once"].status == "mismatch"
    assert ending(cells["once"]).startswith("exact: after another set-up, on other buffers: ")


def test_one_of_many_processes_is_timed_without_the_cross_check(gpu):
    evaluator = started(Evaluator(replace(job(), brief=True)))
    (cell,) = answers(evaluator, "flat_view")
    assert samples(cell.metrics, "gpu_us") == pytest.approx([2 * (0.4 + 0.9)] * cell.metrics.rounds)
    assert cell.metrics.stream_us == {}


# --- the auditor ------------------------------------------------------------------------------------------------------


def test_the_auditor_times_the_calibration_kernels(timed):
    own, spins = timed.audit_ready.own, timed.audit_ready.spins
    assert timed.audit_ready.blocked is None
    assert (set(own["null"]), set(spins[2000])) == ({0.85}, {2.85})
    assert set(own["chain"]) == {5 * (0.4 + 0.85)}


def test_where_cupti_delivers_nothing_the_auditor_says_so(gpu):
    gpu.cupti_blocked = True
    auditor = Auditor(job())
    auditor.bring_up()
    answer = auditor.ready()
    assert (answer.own, answer.blocked) == ({}, BLOCKED)


def test_the_auditor_imports_files_that_come_later(gpu):
    auditor = Auditor(job())
    auditor.load((str(ROOT / "examples" / "my_decode_native.py"),))
    assert auditor._catalog.find("decode_native", "mine")


@pytest.mark.parametrize("name", AUDITED)
def test_the_auditor_rejects_a_failed_check(name, timed):
    finding = timed.audited[name].finding
    assert finding.status == "mismatch"
    assert AUDITED[name] in f"{finding.check}: {finding.message}"


def test_a_wait_that_torch_does_not_warn_of_is_seen_by_cupti(gpu, monkeypatch):
    auditor = started(Auditor(job()))
    monkeypatch.setattr(auditor._catalog, "find", lambda operator, name: made_variant(waits_unseen_by_torch))
    (one,) = answers(auditor, "x")
    assert (one.finding.status, one.finding.check) == ("mismatch", "no_sync")
    assert "waits for the device 1 time" in one.finding.message


def beside_own_launches(point, x, out):
    """Two memcpys and a kernel more in each call than the chain."""
    kept, count = torch.empty_like(x.seq_lens), torch.zeros_like(x.seq_lens)

    def put_back():
        kept.copy_(x.seq_lens)
        count.add_(1)

    return EngineLaunch(own(put_back), chain_clamp(point, x, out), own(lambda: count.copy_(kept)))


def test_the_auditor_leaves_out_what_is_the_suites_own(gpu, monkeypatch):
    auditor = started(Auditor(job()))
    variants = {setup.__name__: made_variant(setup) for setup in (chain_clamp, beside_own_launches)}
    monkeypatch.setattr(auditor._catalog, "find", lambda operator, name: variants[name])
    alone, beside = (msgspec.structs.asdict(one.metrics) for one in answers(auditor, *variants))
    assert beside.pop(CUPTI.field) == pytest.approx(alone.pop(CUPTI.field), abs=0.002)
    assert beside == alone
    assert alone["memcpys"] == {"DtoD": 1}


def test_a_graph_that_differs_from_replay_to_replay_is_no_graph_of_one_launch(gpu):
    with pytest.raises(Mismatch, match="replays of one graph ran different kernels"):
        Auditor(job())._check_same_work([], [[SimpleNamespace(name="a")], [SimpleNamespace(name="b")]])
