"""What a worker does with a device: prove variants, verify them at a point, time those that pass.

Everything here runs in the process that owns the device. Results leave as events, each as soon as it is known:
``Begin`` before a variant gets control, ``Cell`` when its fate at the point is settled.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness import interpreter
from harness.buffers import POISONS
from harness.contract import Operator, Point, Variant
from harness.cpu_ruler import CpuStopwatch
from harness.cuda import compile_all
from harness.discover import discover, unavailable
from harness.environment import describe, sm_clock_mhz
from harness.marks import mark
from harness.proof import Finding, prove, proved_nothing
from harness.protocol import Begin, Job, Ready, Task
from harness.records import Cell, Metrics, cell_key
from harness.timing import measure
from harness.verify import Bench, Mismatch, verify_cell
from harness.wording import first_line

#: Seconds of full load before the first sample of a run, and before each point.
RAMP_S, POINT_RAMP_S = 1.0, 0.02
INTERPRETER_SPENT = (
    "Triton's interpreter has had its {:g} s for this variant (measure.interpreter_budget_s); it passed all hard points and earlier batches"
)


class ContextLost(Exception):
    """A variant destroyed the CUDA context; only a new process can go on."""


class Session:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._catalog = discover(job.variant_files)
        self._interpreter = interpreter.Watch()
        self._interpreted: set[str] = set()
        self._interpreted_s: Counter[str] = Counter()
        self._rejections: dict[str, tuple[str, str] | None] = {}
        self._ruler = None

    def ready(self) -> Ready:
        """Bring the device up: clock ramp and calibration, or the compilation of every CUDA source without a GPU."""
        calibration, compiled = None, {}
        if self._job.device == "cuda":
            from harness.calibrate import calibrate
            from harness.cuda_ruler import CudaRuler

            self._ruler = CudaRuler(self._job.measure.graph_copies)
            with mark("ramp", "ramp"):
                self._ruler.ramp(RAMP_S)
            if self._job.timed:
                calibration = calibrate(self._ruler)
            torch.cuda.profiler.start()
        else:
            # A second thread gains nothing at these sizes, and a busy core makes it wait for milliseconds.
            torch.set_num_threads(1)
            compiled = compile_all(s for variant in self._catalog.variants for s in variant.sources)
        return Ready(describe(self._job.device), calibration, compiled)

    def close(self) -> None:
        if self._job.device == "cuda":
            torch.cuda.profiler.stop()

    def prove(self, operator_name: str, variant_name: str) -> Iterator[Finding]:
        """Hard points and sequences of one variant, healthy or defective."""
        operator, variant = self._catalog.operators[operator_name], self._catalog.find(operator_name, variant_name)
        with mark(cell_key(operator.name, variant.name, "hard points"), "verify"):
            for finding in prove(operator, variant, self._job.device, self._job.seed):
                yield finding
                if finding.outcome == "failed":
                    self._check_context()

    def group(self, task: Task) -> Iterator[Begin | Cell]:
        """All variants of a task: prove, verify, time. Raises ContextLost; what was not yielded by then is asked for again."""
        operator, point = self._catalog.operators[task.operator], Point(task.axes)
        here = _Here(operator, point)
        verified: dict[str, Callable[[], Any]] = {}
        bench: Bench | None = None
        for variant in (self._catalog.find(task.operator, name) for name in task.variants):
            reason = unavailable(variant, self._job.device)
            if reason:
                yield here.cell(variant, "unavailable", reason)
                continue
            reason = operator.redundant(point) or variant.skip(point)
            if reason:
                yield here.cell(variant, "skipped", reason)
                continue
            yield Begin(variant.name, "verify")
            rejection = self._rejection(operator, variant)
            if rejection is None and self._interpreted_s[variant.id] > self._job.measure.interpreter_budget_s:
                yield here.cell(variant, "skipped", INTERPRETER_SPENT.format(self._job.measure.interpreter_budget_s))
                continue
            if rejection is None:
                with mark(here.key(variant), "verify"):
                    try:
                        bench = bench or Bench(operator, point, self._job.device, self._job.seed)
                    except Exception as error:  # the operator's own code, or memory
                        yield here.cell(variant, "failed", f"no inputs at this point: {first_line(error)}")
                        continue
                    rejection, launch = self._verify(bench, variant)
            if rejection is not None:
                yield here.cell(variant, *rejection)
                self._check_context()
            elif self._job.timed and variant.id not in self._interpreted:
                verified[variant.name] = launch
            else:
                note = "verified through Triton's interpreter, which says nothing about time" if variant.id in self._interpreted else None
                yield here.cell(variant, "passed", note, Metrics(bytes_moved=here.bytes_moved(bench)))
        if verified:
            yield from self._time(here, bench, verified, task.budget_s)

    def _rejection(self, operator: Operator, variant: Variant) -> tuple[str, str] | None:
        """(status, reason) of the first hard point or sequence the variant does not survive; None where it is sound."""
        if variant.id not in self._rejections:
            self._rejections[variant.id] = None
            findings: list[Finding] = []
            for finding in self.prove(operator.name, variant.name):
                findings.append(finding)
                if finding.outcome in ("rejected", "failed"):
                    status = "mismatch" if finding.outcome == "rejected" else "failed"
                    self._rejections[variant.id] = (status, f"hard point {finding.name!r}: {finding.message}")
                    break
            if self._rejections[variant.id] is None and proved_nothing(findings):
                self._rejections[variant.id] = ("failed", "unverified: its skip= leaves out every hard point")
        return self._rejections[variant.id]

    def _verify(self, bench: Bench, variant: Variant) -> tuple[tuple[str, str] | None, Callable[[], Any] | None]:
        """((status, reason), None) or (None, launch)."""
        start, interpreted = time.perf_counter(), self._interpreter.launches
        try:
            return None, verify_cell(bench, variant, once=variant.id in self._interpreted)
        except Mismatch as mismatch:
            return ("mismatch", str(mismatch)), None
        except Exception as error:  # a variant may raise anything
            return ("failed", first_line(error)), None
        finally:
            if self._interpreter.launches > interpreted:
                self._interpreted.add(variant.id)
                self._interpreted_s[variant.id] += time.perf_counter() - start

    def _time(self, here: _Here, bench: Bench, verified: Mapping[str, Callable[[], Any]], budget_s: float) -> Iterator[Begin | Cell]:
        stopwatches, variants = {}, {name: self._catalog.find(here.operator.name, name) for name in verified}
        if self._ruler:
            with mark("ramp", "ramp"):
                self._ruler.ramp(POINT_RAMP_S)
        clocks = [sm_clock_mhz()] if self._ruler else []
        for name, launch in verified.items():
            yield Begin(name, "measure")
            try:
                with mark(here.key(variants[name]), "warmup"):
                    stopwatches[name] = self._ruler.stopwatch(launch) if self._ruler else CpuStopwatch(launch)
            except Exception as error:  # a variant may raise anything
                yield here.cell(variants[name], "failed", first_line(error))
                self._check_context()
        timings = measure(
            stopwatches,
            min_rounds=self._job.measure.min_rounds,
            max_rounds=self._job.measure.max_rounds,
            budget_s=budget_s,
            now_s=time.perf_counter,
            before=lambda name: mark(here.key(variants[name]), "measure"),
        )
        if len(timings) > 1 and any(timing.error for timing in timings.values()):
            self._check_context()  # before any cell is told: where one took the context along, all are asked for again, one by one
        clocks += [sm_clock_mhz()] if self._ruler else []
        for name, timing in timings.items():
            error = timing.error or self._spoiled(here, bench, variants[name], verified[name], timing.stopwatch.replay)
            if error is not None:
                status = "mismatch" if isinstance(error, Mismatch) else "failed"
                text = f"after timing: {error}" if isinstance(error, Mismatch) else first_line(error)
                yield here.cell(variants[name], status, text)
                self._check_context()
            else:
                metrics = timing.metrics(here.bytes_moved(bench), sm_clock_mhz=[clock for clock in clocks if clock])
                yield here.cell(variants[name], "passed", timing.stopwatch.facts().get("no_graph"), metrics)

    def _spoiled(
        self, here: _Here, bench: Bench, variant: Variant, launch: Callable[[], Any], replay: Callable[[], None] | None
    ) -> Exception | None:
        """What is wrong with the closure that was timed, or with its graph, on contents that neither was timed on."""
        try:
            with mark(here.key(variant), "verify"):
                bench.check(launch, case=1, poison=POISONS[0])
                if replay is not None:
                    bench.check(replay, case=2, poison=POISONS[1])
                bench.inputs.fill(bench.cases[0].inputs)
        except Exception as error:  # a variant may raise anything
            return error
        return None

    def _check_context(self) -> None:
        if self._job.device == "cuda":
            try:
                torch.cuda.synchronize()
            except Exception as error:  # whatever CUDA answers, the context is gone
                raise ContextLost(first_line(error)) from error


@dataclass(frozen=True)
class _Here:
    """An operator at a point: makes its cells and their keys."""

    operator: Operator
    point: Point

    def key(self, variant: Variant) -> str:
        return cell_key(self.operator.name, variant.name, self.operator.label(self.point))

    def bytes_moved(self, bench: Bench) -> int:
        return self.operator.bytes_moved(self.point, bench.cases[0].inputs)

    def cell(self, variant: Variant, status: str, reason: str | None = None, metrics: Metrics | None = None) -> Cell:
        return Cell(
            operator=self.operator.name, variant=variant.name, baseline=self.operator.baseline,
            point=self.operator.label(self.point), axes=dict(self.point), status=status, reason=reason, metrics=metrics,
        )  # fmt: skip
