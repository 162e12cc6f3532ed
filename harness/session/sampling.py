"""Times the variants of one point in interleaved rounds, checks the process around every sample, and the outputs for
new inputs after the last one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from msgspec import structs

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.config.work_items import Task, Timed
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.errors import first_line
from spec_decode_bench.harness.host_lock import lock_of
from spec_decode_bench.harness.nvtx_ranges import nvtx_range
from spec_decode_bench.harness.records.schema import Metrics, Place, Where, rounded
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


@dataclass(frozen=True)
class _Point:
    """A task while it is timed. values: of its axes, for NVTX. buffers: sets that its launches work on."""

    task: Task
    values: Mapping[str, int | float | str]
    buffers: Sequence[Fixture]

    def failed(self, variant: str, error: Exception, when: Literal["timing", "after_timing"] | None = None) -> Timed:
        finding = wrong(Where(Place.POINT, self.task.point), error)
        return Timed(variant=variant, finding=structs.replace(finding, when=when))


@dataclass(frozen=True)
class Sampling:
    """What one process times with; timer and clocks are None on a CPU. tell: as of Evaluator."""

    job: Job
    timer: CudaTimer | None
    clocks: Clocks | None
    tell: Callable[[Heartbeat], None]

    def timed(self, task: Task, fixture: Fixture, launches: Sequence[tuple[Variant, Callable[[], Any]]]) -> list[Timed]:
        """Time variants that were verified, for the task's ``budget_s`` seconds together: warm up, take interleaved
        samples, check each once more on inputs that nothing has seen before.

        launches: of the variants, set up on ``fixture``.

        Raises ContextLost where one of several lost the context. After one that lost it for itself none is looked at.
        """
        began = time.perf_counter()
        at = _Point(task, fixture.operator.values(fixture.point), fixture.buffer_sets(PLACEMENTS if self.timer else 1))
        readings = self._read_clocks()
        stopwatches, timed = self._warmed_up(at, launches)
        if not stopwatches or self._is_lost(timed):
            return timed
        timings = self._sampled(at, stopwatches)
        if len(timings) > 1 and any(timing.error for timing in timings.values()):
            check_context(self.job.device)
        readings += self._read_clocks()
        time_s = (time.perf_counter() - began) / len(launches)
        new_inputs = fixture.add_batch(secrets.randbelow(2**31))
        for name, timing in timings.items():
            began = time.perf_counter()
            outcome = self._checked(at, name, timing, new_inputs) or Timed(
                variant=name, metrics=self._metrics(at, timing, readings)
            )
            seconds = rounded({"time": time_s, "verify": time.perf_counter() - began})
            timed.append(structs.replace(outcome, seconds=seconds))
            if self._is_lost(timed):
                break
        return timed

    def _is_lost(self, timed: Sequence[Timed]) -> bool:
        return bool(timed) and timed[-1].finding is not None and is_context_lost(self.job.device)

    def _read_clocks(self) -> list[Reading]:
        reading = self.clocks.read() if self.clocks else None
        return [reading] if reading else []

    def _warmed_up(
        self, at: _Point, launches: Sequence[tuple[Variant, Callable[[], Any]]]
    ) -> tuple[dict[str, Stopwatch], list[Timed]]:
        """A stopwatch for each variant, and what became of those that could not be prepared."""
        output_probes = [OutputProbe(buffers) for buffers in at.buffers]
        # The estimators were cross-checked by the process that verified.
        stream_rounds = 0 if self.job.brief else STREAM_ROUNDS
        stopwatches: dict[str, Stopwatch] = {}
        failed: list[Timed] = []
        for variant, launch in launches:
            name = variant.name
            self.tell(Heartbeat((name,)))
            try:
                with self._watched(at, name, "warmup"):
                    there = [launch, *(_set_up(buffers, variant) for buffers in at.buffers[1:])]
                    placed = [
                        PlacedLaunch(launch_there, output_probe, buffers.rewrite_inputs)
                        for launch_there, output_probe, buffers in zip(there, output_probes, at.buffers, strict=True)
                    ]
                    stopwatches[name] = (
                        self.timer.stopwatch(*placed, stream_rounds=stream_rounds)
                        if self.timer
                        else CpuStopwatch(launch, output_probes[0], lock_of(self.job.host_lock))
                    )
            except Exception as error:  # a variant may raise anything
                failed.append(at.failed(name, error))
                if self._is_lost(failed):
                    break
        return stopwatches, failed

    def _sampled(self, at: _Point, stopwatches: Mapping[str, Stopwatch]) -> dict[str, CellTimings]:
        """Samples of all variants, in interleaved rounds with a heartbeat each."""

        def throttle_reason() -> str | None:
            reason = self.clocks.throttle_reason(self.clocks.read(power=False)) if self.clocks else None
            if reason:
                self.timer.ramp(RAMP_S)
            return reason

        timings: dict[str, CellTimings] = {}
        self.tell(Heartbeat(tuple(stopwatches)))
        for timings in interleave(
            stopwatches,
            min_rounds=self.job.measure.min_rounds,
            max_rounds=self.job.measure.max_rounds,
            budget_s=at.task.budget_s or 0.0,
            now_s=time.perf_counter,
            around=lambda name: self._watched(at, name, "measure"),
            throttle_reason=throttle_reason,
        ):
            self.tell(Heartbeat(tuple(timings)))
        return timings

    def _checked(self, at: _Point, name: str, timing: CellTimings, batch: int) -> Timed | None:
        """What is wrong with a variant after its last sample: an error of a sample, or the timed closure or its largest
        graph on a batch of inputs that nothing has seen before.
        """
        self.tell(Heartbeat((name,)))
        if timing.error is not None:
            return at.failed(name, timing.error, "timing")
        stopwatch = timing.stopwatch
        buffers, replay = at.buffers[stopwatch.buffer_set], stopwatch.replay
        try:
            with self._watched(at, name, "verify"):
                for what, run, poison in (
                    ("a call", stopwatch.launch, POISONS[0]),
                    ("a replay of its graph", replay, POISONS[1]),
                ):
                    if run is not None:
                        try:
                            buffers.check(run, batch, poison, replayed=run is replay)
                        except Mismatch as mismatch:
                            raise mismatch.within(what) from None
                buffers.fill(0)
        except Exception as error:  # a variant may raise anything
            return at.failed(name, error, "after_timing")
        return None

    def _metrics(self, at: _Point, timing: CellTimings, readings: Sequence[Reading]) -> Metrics:
        """The samples of one variant."""
        return timing.metrics(
            at.buffers[0].bytes_moved,
            placements=len(at.buffers),
            sm_clock_mhz=[reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz is not None],
            power_w=[reading.power_w for reading in readings if reading.power_w is not None],
        )

    @contextmanager
    def _watched(self, at: _Point, variant: str, phase: str) -> Iterator[None]:
        """Around everything a variant does here: its NVTX range, and the check that it left the process as it was."""
        with unchanged_process(self.job.device), nvtx_range(at.task.key(variant), phase, at.values):
            yield
