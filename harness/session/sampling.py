"""Times the variants of one point in interleaved rounds, checks the process around every sample, and the outputs for
new inputs after the last one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from msgspec import structs

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.config.work_items import Result, Task
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.errors import first_line
from spec_decode_bench.harness.host_lock import lock_of
from spec_decode_bench.harness.nvtx_ranges import nvtx_range
from spec_decode_bench.harness.records.schema import Finding, Metrics, Status, rounded
from spec_decode_bench.harness.session.messages import Heartbeat, Job
from spec_decode_bench.harness.timing.cpu_stopwatch import CpuStopwatch
from spec_decode_bench.harness.timing.rounds import (
    PLACEMENTS,
    STREAM_ROUNDS,
    CellTimings,
    PlacedLaunch,
    Stopwatch,
    interleave,
)
from spec_decode_bench.harness.verify.buffers import POISONS
from spec_decode_bench.harness.verify.edge_cases import wrong
from spec_decode_bench.harness.verify.fixture import Fixture
from spec_decode_bench.harness.verify.output_probe import OutputProbe
from spec_decode_bench.harness.verify.process_state import unchanged_process

if TYPE_CHECKING:
    from spec_decode_bench.harness.timing.clocks import Clocks, Reading
    from spec_decode_bench.harness.timing.cuda_timer import CudaTimer

#: Seconds of full load before a sample is taken again.
RAMP_S = 0.02


class ContextLost(Exception):
    """A variant destroyed the CUDA context; only a new process can go on."""


def check_context(device: str) -> None:
    """Raises ContextLost."""
    if device == "cuda":
        try:
            torch.cuda.synchronize()
        except Exception as error:  # whatever CUDA raises, the context is gone
            raise ContextLost(first_line(error)) from error


def is_context_lost(device: str) -> bool:
    try:
        check_context(device)
    except ContextLost:
        return True
    return False


def _set_up(fixture: Fixture, variant: Variant) -> Callable[[], Any]:
    """The launch of a verified variant on other buffers. Raises Mismatch if it is wrong there."""
    launch = fixture.setup(variant)
    try:
        fixture.check(launch, batch=0, poison=POISONS[0])
    except Mismatch as mismatch:
        raise mismatch.within("after another set-up, on other buffers") from None
    return launch


class Sampling:
    """Times variants of one point that were verified on ``fixture``. timer, clocks: None on a CPU. tell: as of
    Evaluator.
    """

    def __init__(
        self,
        job: Job,
        timer: CudaTimer | None,
        clocks: Clocks | None,
        tell: Callable[[Heartbeat], None],
        task: Task,
        fixture: Fixture,
    ) -> None:
        self._job, self._timer, self._clocks, self._tell = job, timer, clocks, tell
        self._task, self._fixture = task, fixture
        #: Of the axes, for NVTX.
        self._values = fixture.operator.values(fixture.point)

    def timed(self, launches: Sequence[tuple[Variant, Callable[[], Any]]]) -> list[Result]:
        """For the task's ``budget_s`` seconds together: warm up, take interleaved samples, check each once more on
        inputs that nothing has seen before.

        launches: of the variants, set up on the fixture.

        Raises ContextLost where one of several lost the context. After one that lost it for itself none is looked at.
        """
        began = time.perf_counter()
        self._fixture.fill(0)  # one that was rejected here may have left another batch
        self._buffers = self._fixture.buffer_sets(PLACEMENTS if self._timer else 1)
        readings = self._read_clocks()
        stopwatches, timed = self._warmed_up(launches)
        if not stopwatches or self._is_lost(timed):
            return timed
        timings = self._sampled(stopwatches)
        if len(timings) > 1 and any(timing.error for timing in timings.values()):
            check_context(self._job.device)
        readings += self._read_clocks()
        time_s = (time.perf_counter() - began) / len(launches)
        new_inputs = self._fixture.add_batch(secrets.randbelow(2**31))
        # A graph of any other holds what the host knew of the first batch.
        replayable = {variant.name for variant, _ in launches if "graph_safe" not in variant.waives}
        for name, timing in timings.items():
            began = time.perf_counter()
            outcome = self._checked(name, timing, new_inputs, name in replayable) or self._result(
                name, self._task.where.finding(Status.PASSED), self._metrics(timing, readings)
            )
            seconds = rounded({"time": time_s, "verify": time.perf_counter() - began})
            timed.append(structs.replace(outcome, seconds=seconds))
            if self._is_lost(timed):
                break
        return timed

    def _failed(self, variant: str, error: Exception, when: Literal["timing", "after_timing"] | None = None) -> Result:
        return self._result(variant, structs.replace(wrong(self._task.where, error), when=when))

    def _result(self, variant: str, finding: Finding, metrics: Metrics | None = None) -> Result:
        return Result(operator=self._task.operator, variant=variant, finding=finding, metrics=metrics)

    def _is_lost(self, timed: Sequence[Result]) -> bool:
        return bool(timed) and timed[-1].finding.status.is_bad and is_context_lost(self._job.device)

    def _read_clocks(self) -> list[Reading]:
        reading = self._clocks.read() if self._clocks else None
        return [reading] if reading else []

    def _warmed_up(
        self, launches: Sequence[tuple[Variant, Callable[[], Any]]]
    ) -> tuple[dict[str, Stopwatch], list[Result]]:
        """A stopwatch for each variant, and what became of those that could not be prepared."""
        output_probes = [OutputProbe(buffers) for buffers in self._buffers]
        # The estimators were cross-checked by the process that verified.
        stream_rounds = 0 if self._job.brief else STREAM_ROUNDS
        stopwatches: dict[str, Stopwatch] = {}
        failed: list[Result] = []
        for variant, launch in launches:
            name = variant.name
            self._tell(Heartbeat((name,)))
            try:
                with self._watched(name, "warmup"):
                    there = [launch, *(_set_up(buffers, variant) for buffers in self._buffers[1:])]
                    placed = [
                        PlacedLaunch(launch_there, output_probe, buffers.rewrite_inputs)
                        for launch_there, output_probe, buffers in zip(there, output_probes, self._buffers, strict=True)
                    ]
                    stopwatches[name] = (
                        self._timer.stopwatch(*placed, stream_rounds=stream_rounds)
                        if self._timer
                        else CpuStopwatch(launch, output_probes[0], lock_of(self._job.host_lock))
                    )
            except Exception as error:  # a variant may raise anything
                failed.append(self._failed(name, error))
                if self._is_lost(failed):
                    break
        return stopwatches, failed

    def _sampled(self, stopwatches: Mapping[str, Stopwatch]) -> dict[str, CellTimings]:
        """Samples of all variants, in interleaved rounds with a heartbeat each."""

        def throttle_reason() -> str | None:
            reason = self._clocks.throttle_reason(self._clocks.read(power=False)) if self._clocks else None
            if reason:
                self._timer.ramp(RAMP_S)
            return reason

        timings: dict[str, CellTimings] = {}
        self._tell(Heartbeat(tuple(stopwatches)))
        for timings in interleave(
            stopwatches,
            min_rounds=self._job.measure.min_rounds,
            max_rounds=self._job.measure.max_rounds,
            budget_s=self._task.budget_s or 0.0,
            now_s=time.perf_counter,
            around=lambda name: self._watched(name, "measure"),
            throttle_reason=throttle_reason,
        ):
            self._tell(Heartbeat(tuple(timings)))
        return timings

    def _checked(self, name: str, timing: CellTimings, batch: int, replayable: bool) -> Result | None:
        """What is wrong with a variant after its last sample: an error of a sample, or the timed closure or its largest
        graph, if it is replayable, on a batch of inputs that nothing has seen before.
        """
        self._tell(Heartbeat((name,)))
        if timing.error is not None:
            return self._failed(name, timing.error, "timing")
        stopwatch = timing.stopwatch
        buffers, replay = self._buffers[stopwatch.buffer_set], stopwatch.replay if replayable else None
        try:
            with self._watched(name, "verify"):
                for what, run, poison in (
                    ("a call", stopwatch.launch, POISONS[0]),
                    ("a replay of its graph", replay, POISONS[1]),
                ):
                    if run is not None:
                        try:
                            buffers.check(run, batch, poison, replayed=run is replay)
                        except Mismatch as mismatch:
                            raise mismatch.within(what) from None
        except Exception as error:  # a variant may raise anything
            return self._failed(name, error, "after_timing")
        return None

    def _metrics(self, timing: CellTimings, readings: Sequence[Reading]) -> Metrics:
        """The samples of one variant."""
        return timing.metrics(
            self._buffers[0].bytes_moved,
            placements=len(self._buffers),
            sm_clock_mhz=[reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz is not None],
            power_w=[reading.power_w for reading in readings if reading.power_w is not None],
        )

    @contextmanager
    def _watched(self, variant: str, phase: str) -> Iterator[None]:
        """Around everything a variant does here: its NVTX range, and the check that it left the process as it was."""
        with unchanged_process(self._job.device), nvtx_range(self._task.key(variant), phase, self._values):
            yield
