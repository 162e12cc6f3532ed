"""The variants of one point, timed in turns: what stands around every sample, and what is asked after the last one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from harness.checks import Mismatch
from harness.config.sweep import Group
from harness.nvtx_ranges import nvtx_range
from harness.records.schema import Cell
from harness.runner.protocol import Begin, Job
from harness.timing.cpu_stopwatch import CpuStopwatch
from harness.timing.rounds import rounds
from harness.verify.buffers import POISONS
from harness.verify.fixture import Fixture
from harness.verify.integrity import Integrity, ProcessState
from harness.verify.output_probe import OutputProbe
from harness.wording import first_line

if TYPE_CHECKING:
    from harness.timing.clocks import Clocks
    from harness.timing.cuda_timer import CudaTimer

#: Seconds of full load before each point, and before a sample is taken again.
RAMP_S = 0.02

#: (status, reason) of a cell.
Rejection = tuple[str, str]


class ContextLost(Exception):
    """A variant destroyed the CUDA context; only a new process can go on."""


def check_context(device: str) -> None:
    """Raises ContextLost."""
    if device == "cuda":
        try:
            torch.cuda.synchronize()
        except Exception as error:  # whatever CUDA answers, the context is gone
            raise ContextLost(first_line(error)) from error


def rejected(error: Exception) -> Rejection:
    return ("mismatch", str(error)) if isinstance(error, Mismatch) else ("failed", first_line(error))


@dataclass(frozen=True)
class Measuring:
    """What one process measures with: ruler and clocks are None on a CPU."""

    job: Job
    integrity: Integrity
    timer: CudaTimer | None
    clocks: Clocks | None

    def time(
        self, group: Group, bench: Fixture, verified: Mapping[str, Callable[[], Any]], budget_s: float
    ) -> Iterator[Begin | Cell]:
        """Time the variants of a group that passed, for ``budget_s`` seconds together.

        verified: variant -> its launch, set up on ``bench``. Raises ContextLost.
        """
        stopwatches = {}
        if self.timer:
            with nvtx_range("ramp", "ramp"):
                self.timer.ramp(RAMP_S)
        before = self.clocks.read() if self.clocks else None
        output_probe = OutputProbe(bench)
        for name, launch in verified.items():
            yield Begin(name, "measure")
            try:
                with self._watched(group.key(name), "warmup"):
                    stopwatches[name] = self._stopwatch(launch, output_probe, bench)
            except Exception as error:  # a variant may raise anything
                yield group.cell(name, *rejected(error))
                check_context(self.job.device)

        if not stopwatches:
            return

        def throttle_reason() -> str | None:
            found = self.clocks.throttle_reason(self.clocks.read(power=False)) if self.clocks else None
            if found:
                self.timer.ramp(RAMP_S)
            return found

        measure = self.job.measure
        for timings in rounds(
            stopwatches,
            min_rounds=measure.min_rounds,
            max_rounds=measure.max_rounds,
            budget_s=budget_s,
            now_s=time.perf_counter,
            around=lambda name: self._watched(group.key(name), "measure"),
            throttle_reason=throttle_reason,
        ):
            yield Begin(next(iter(timings)), "measure")
        if len(timings) > 1 and any(timing.error for timing in timings.values()):
            # Before any cell is told: where one took the context along, all are asked for again, one by one.
            check_context(self.job.device)
        seen = [reading for reading in (before, self.clocks.read() if self.clocks else None) if reading]
        state = {
            "sm_clock_mhz": [r.sm_clock_mhz for r in seen if r.sm_clock_mhz is not None],
            "power_w": [r.power_w for r in seen if r.power_w is not None],
        }
        for name, timing in timings.items():
            error, when = timing.error, "during timing"
            if error is None:
                error, when = (
                    self._spoiled(group.key(name), bench, verified[name], timing.stopwatch.replay),
                    "after timing",
                )
            if error is not None:
                status, text = rejected(error)
                yield group.cell(name, status, f"{when}: {text}")
                check_context(self.job.device)
            else:
                metrics = timing.metrics(bench.bytes_moved, **state)
                yield group.cell(name, "passed", timing.stopwatch.facts().get("no_graph"), metrics)

    def _stopwatch(self, launch: Callable[[], Any], output_probe: OutputProbe, bench: Fixture) -> Any:
        return (
            self.timer.stopwatch(launch, output_probe, bench.rewrite_inputs)
            if self.timer
            else CpuStopwatch(launch, output_probe)
        )

    @contextmanager
    def _watched(self, key: str, phase: str) -> Iterator[None]:
        """Around everything that is timed: the NVTX range, then whether the process and the ruler's tools are as
        before.
        """
        settings = ProcessState(self.job.device)
        try:
            with nvtx_range(key, phase):
                yield
            if (changed := settings.changed()) is not None:
                raise Mismatch("process_state", changed)
        finally:
            settings.restore()
            if (tampered := self.integrity.tampered()) is not None:
                raise Mismatch("no_tampering", tampered)

    def _spoiled(
        self, key: str, bench: Fixture, launch: Callable[[], Any], replay: Callable[[], None] | None
    ) -> Exception | None:
        """What is wrong with the closure that was timed, or with its graph, on contents that neither was timed on."""
        try:
            with self._watched(key, "verify"):
                bench.check(launch, batch=1, poison=POISONS[0])
                bench.check(launch, batch=1, poison=POISONS[1])
                if replay is not None:
                    bench.check(replay, batch=2, poison=POISONS[1], replayed=True)
                bench.fill(0)
        except Exception as error:  # a variant may raise anything
            return error
        return None
