"""Times the variants of one point in interleaved rounds, checks the process around every sample, and the outputs for
new inputs after the last one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.host_lock import lock_of
from spec_decode_bench.harness.nvtx_ranges import nvtx_range
from spec_decode_bench.harness.records.schema import Cell, Status
from spec_decode_bench.harness.session.messages import Heartbeat, Job
from spec_decode_bench.harness.timing.cpu_stopwatch import CpuStopwatch
from spec_decode_bench.harness.timing.rounds import PLACEMENTS, CellTimings, PlacedLaunch, Stopwatch, interleave
from spec_decode_bench.harness.verify.buffers import POISONS
from spec_decode_bench.harness.verify.edge_cases import wrong
from spec_decode_bench.harness.verify.fixture import Fixture
from spec_decode_bench.harness.verify.output_probe import OutputProbe
from spec_decode_bench.harness.verify.process_state import unchanged_process
from spec_decode_bench.harness.wording import first_line

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


def _set_up(place: Fixture, variant: Variant) -> Callable[[], Any]:
    """The launch of a verified variant on other buffers. Raises Mismatch if it is wrong there."""
    launch = place.setup(variant)
    try:
        place.check(launch, batch=0, poison=POISONS[0])
    except Mismatch as mismatch:
        raise mismatch.within("after another set-up, on other buffers") from None
    return launch


@dataclass(frozen=True)
class _Timed:
    """An item while it is timed. values: of its axes, for NVTX. places: sets of buffers that its launches work on."""

    item: Task
    values: Mapping[str, int | float | str]
    places: Sequence[Fixture]


@dataclass(frozen=True)
class Measuring:
    """What one process times with; timer and clocks are None on a CPU."""

    job: Job
    timer: CudaTimer | None
    clocks: Clocks | None

    def time(
        self, item: Task, fixture: Fixture, launches: Sequence[tuple[Variant, Callable[[], Any]]]
    ) -> Iterator[Heartbeat | Cell]:
        """Time the variants that were verified, for the item's ``budget_s`` seconds together: warm up, take
        interleaved samples, check each once more on inputs that nothing has seen before, yield its cell.

        launches: of the variants, set up on ``fixture``. Raises ContextLost.
        """
        at = _Timed(item, fixture.operator.values(fixture.point), fixture.places(PLACEMENTS if self.timer else 1))
        readings = self._read_clocks()
        stopwatches = yield from self._warm_up(at, launches)
        if not stopwatches:
            return
        timings = yield from self._take_samples(at, stopwatches)
        if len(timings) > 1 and any(timing.error for timing in timings.values()):
            # Before any cell is yielded: if one lost the context, all are asked for again, one by one.
            check_context(self.job.device)
        readings += self._read_clocks()
        new_inputs = fixture.add_batch(secrets.randbelow(2**31))
        for name, timing in timings.items():
            error, when = timing.error, "timing"
            if error is None:
                try:
                    with self._watched(at, name, "verify"):
                        self._check_on_new_inputs(at, new_inputs, timing.stopwatch)
                except Exception as raised:  # a variant may raise anything
                    error, when = raised, "after_timing"
            if error is None:
                yield self._cell(at, name, timing, readings)
            else:
                yield item.failed(name, when=when, **wrong(error))
                check_context(self.job.device)

    def _read_clocks(self) -> list[Reading]:
        reading = self.clocks.read() if self.clocks else None
        return [reading] if reading else []

    def _warm_up(
        self, at: _Timed, launches: Sequence[tuple[Variant, Callable[[], Any]]]
    ) -> Generator[Heartbeat | Cell, None, dict[str, Stopwatch]]:
        """A stopwatch for each variant; one that cannot be prepared gets its cell here."""
        output_probes = [OutputProbe(place) for place in at.places]
        # The estimators were cross-checked by the process that verified.
        rounds = {"stream_rounds": 0} if self.job.brief else {}
        stopwatches: dict[str, Stopwatch] = {}
        for variant, launch in launches:
            yield Heartbeat(variant.name, "measure")
            try:
                with self._watched(at, variant.name, "warmup"):
                    there = [launch, *(_set_up(place, variant) for place in at.places[1:])]
                    placed = [
                        PlacedLaunch(launch_there, output_probe, place.rewrite_inputs)
                        for launch_there, output_probe, place in zip(there, output_probes, at.places, strict=True)
                    ]
                    stopwatches[variant.name] = (
                        self.timer.stopwatch(*placed, **rounds)
                        if self.timer
                        else CpuStopwatch(launch, output_probes[0], lock_of(self.job.host_lock))
                    )
            except Exception as error:  # a variant may raise anything
                yield at.item.failed(variant.name, **wrong(error))
                check_context(self.job.device)
        return stopwatches

    def _take_samples(
        self, at: _Timed, stopwatches: Mapping[str, Stopwatch]
    ) -> Generator[Heartbeat, None, dict[str, CellTimings]]:
        """Samples of all variants, in interleaved rounds with a heartbeat each."""

        def throttle_reason() -> str | None:
            reason = self.clocks.throttle_reason(self.clocks.read(power=False)) if self.clocks else None
            if reason:
                self.timer.ramp(RAMP_S)
            return reason

        timings: dict[str, CellTimings] = {}
        for timings in interleave(
            stopwatches,
            min_rounds=self.job.measure.min_rounds,
            max_rounds=self.job.measure.max_rounds,
            budget_s=at.item.budget_s or 0.0,
            now_s=time.perf_counter,
            around=lambda name: self._watched(at, name, "measure"),
            throttle_reason=throttle_reason,
        ):
            yield Heartbeat(next(iter(timings)), "measure")
        return timings

    def _check_on_new_inputs(self, at: _Timed, batch: int, stopwatch: Stopwatch) -> None:
        """The timed closure, and its largest graph, on inputs that nothing has seen before. Raises Mismatch."""
        place, replay = at.places[stopwatch.place], stopwatch.replay
        for what, run, poison in (
            ("a call", stopwatch.launch, POISONS[0]),
            ("a replay of its graph", replay, POISONS[1]),
        ):
            if run is not None:
                try:
                    place.check(run, batch, poison, replayed=run is replay)
                except Mismatch as mismatch:
                    raise mismatch.within(what) from None
        place.fill(0)

    def _cell(self, at: _Timed, name: str, timing: CellTimings, readings: Sequence[Reading]) -> Cell:
        """The samples of one variant."""
        metrics = timing.metrics(
            at.places[0].bytes_moved,
            placements=len(at.places),
            sm_clock_mhz=[reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz is not None],
            power_w=[reading.power_w for reading in readings if reading.power_w is not None],
        )
        return at.item.cell(name, Status.PASSED, metrics=metrics)

    @contextmanager
    def _watched(self, at: _Timed, variant: str, phase: str) -> Iterator[None]:
        """Around everything a variant does here: its NVTX range, and the check that it left the process as it was."""
        with unchanged_process(self.job.device), nvtx_range(at.item.key(variant), phase, at.values):
            yield
