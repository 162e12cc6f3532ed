"""What a worker does with a device: prove variants, verify them at a point, time those that pass.

Everything here runs in the process that owns the device. Results leave as events, each as soon as it is known:
``Begin`` before a variant gets control, ``Cell`` when its fate at the point is settled.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

from harness import interpreter
from harness.checks import Mismatch
from harness.config.sweep import Group
from harness.contract import Operator, Point, Variant
from harness.cuda import compile_all
from harness.discover import discover, unavailable
from harness.nvtx_ranges import nvtx_range
from harness.records.schema import Cell, Metrics, cell_key
from harness.runner.measure import Measuring, Rejection, check_context, rejected
from harness.runner.protocol import Begin, Job, Ready, Task
from harness.timing.environment import describe
from harness.verify.fixture import Fixture, verify_cell
from harness.verify.hard_points import Finding, check_variant, is_unverified, reason_to_skip
from harness.verify.integrity import Integrity, ProcessState
from harness.wording import first_line

#: Seconds of full load before the first sample of a run.
RAMP_S = 1.0
INTERPRETER_SPENT = "Triton's interpreter has had its {:g} s for this variant (measure.interpreter_budget_s); it passed all hard points and earlier batches"


class Evaluator:
    """Owns the device in the first process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        if job.device == "cuda":
            import harness.timing.calibrate  # noqa: F401 - with it all that times on a GPU, so that the note below covers it
        self._integrity = Integrity(
            [sys.modules[name] for name in list(sys.modules) if name.split(".")[0] == "harness"]
        )
        # "cpu" on a GPU, too: streams are asked for when the device is up, and no import may bring it up.
        self._settings = ProcessState("cpu")
        #: Module that replaced a tool of the ruler, or changed a setting of the process, when it was imported ->
        #: (check, message).
        self._tampering: dict[str, tuple[str, str]] = {}
        self._catalog = discover(job.variant_files, self._imported)
        self._interpreter = interpreter.LaunchCounter()
        self._interpreted: set[str] = set()
        self._interpreted_s: Counter[str] = Counter()
        self._rejections: dict[str, Rejection | None] = {}
        self._proved: dict[str, list[Finding]] = {}
        self._timer = self._clocks = None

    def _imported(self, module: str) -> None:
        if (tampered := self._integrity.tampered()) is not None:
            self._tampering[module] = "no_tampering", tampered
        elif (changed := self._settings.changed()) is not None:
            self._tampering[module] = "process_state", changed
        self._settings.restore()

    def ready(self) -> Ready:
        """Bring the device up: clock ramp and calibration, or the compilation of every CUDA source without a GPU."""
        calibration, compiled = None, {}
        if self._job.device == "cuda":
            from harness.timing.calibrate import calibrate
            from harness.timing.clocks import Clocks
            from harness.timing.cuda_timer import CudaTimer

            self._timer, self._clocks = CudaTimer(self._job.measure.graph_copies, self._job.measure.cache), Clocks()
            with nvtx_range("ramp", "ramp"):
                self._timer.ramp(RAMP_S)
            self._clocks.hold()
            if self._job.timed:
                calibration = calibrate(self._timer, self._clocks)
            torch.cuda.profiler.start()
        else:
            # A second thread gains nothing at these sizes, and a busy core makes it wait for milliseconds.
            torch.set_num_threads(1)
            if self._job.compiled:
                compiled = compile_all(s for variant in self._catalog.variants for s in variant.sources)
        return Ready(describe(self._job.device, self._clocks.notes if self._clocks else ()), calibration, compiled)

    def close(self) -> None:
        if self._job.device == "cuda":
            torch.cuda.profiler.stop()

    def check_variant(self, operator_name: str, variant_name: str) -> Iterator[Finding]:
        """Hard points and sequences of one variant, healthy or defective."""
        operator, variant = self._catalog.operators[operator_name], self._catalog.find(operator_name, variant_name)
        if variant.origin in self._tampering:
            yield Finding("import", "rejected", *self._tampering[variant.origin])
            return
        if variant.id in self._proved:
            yield from self._proved[variant.id]
            return
        findings: list[Finding] = []
        with nvtx_range(cell_key(operator.name, variant.name, "hard points"), "verify"):
            # Without timing there is time to put every contract to the test at every hard point.
            for finding in check_variant(
                operator,
                variant,
                self._job.device,
                self._job.seed,
                thorough=not self._job.timed,
                integrity=self._integrity,
            ):
                findings.append(finding)
                yield finding
                if finding.outcome in ("failed", "rejected"):
                    check_context(self._job.device)
        self._proved[variant.id] = findings

    def group(self, task: Task) -> Iterator[Begin | Cell]:
        """All variants of a task: prove, verify, time. Raises ContextLost; what was not yielded by then is asked for
        again.
        """
        operator, point = self._catalog.operators[task.operator], Point(task.axes)
        group = Group(operator, point, tuple(self._catalog.find(task.operator, name) for name in task.variants))
        verified: dict[str, Callable[[], Any]] = {}
        bench: Fixture | None = None
        try:
            redundant = reason_to_skip(operator, point)
        except Exception as error:  # the operator's own code
            yield from (
                group.cell(v.name, "failed", f"the operator's redundant= raised {first_line(error)}")
                for v in group.variants
            )
            return
        for variant in group.variants:
            yield Begin(variant.name, "verify")
            reason = unavailable(variant, self._job.device)
            if reason:
                yield group.cell(variant.name, "unavailable", reason)
                continue
            try:
                reason = redundant or reason_to_skip(variant, point)
            except Exception as error:  # a variant may raise anything
                yield group.cell(variant.name, "failed", f"its skip= raised {first_line(error)}")
                continue
            if reason:
                yield group.cell(variant.name, "skipped", reason)
                continue
            rejection = yield from self._rejection(operator, variant)
            if rejection is None and self._interpreted_s[variant.id] > self._job.measure.interpreter_budget_s:
                yield group.cell(
                    variant.name, "skipped", INTERPRETER_SPENT.format(self._job.measure.interpreter_budget_s)
                )
                continue
            if rejection is None:
                with nvtx_range(group.key(variant.name), "verify"):
                    try:
                        bench = bench or Fixture(operator, point, self._job.device, self._job.seed)
                        metrics = Metrics(bytes_moved=bench.bytes_moved)
                    except Exception as error:  # the operator's own code, or memory
                        yield group.cell(variant.name, "failed", f"no inputs at this point: {first_line(error)}")
                        continue
                    rejection, launch = self._verify(bench, variant)
            if rejection is not None:
                yield group.cell(variant.name, *rejection)
                check_context(self._job.device)
            elif self._job.timed and variant.id not in self._interpreted:
                verified[variant.name] = launch
            else:
                note = (
                    "verified through Triton's interpreter, which says nothing about time"
                    if variant.id in self._interpreted
                    else None
                )
                yield group.cell(variant.name, "passed", note, metrics)
        if verified:
            measuring = Measuring(self._job, self._integrity, self._timer, self._clocks)
            yield from measuring.time(group, bench, verified, task.budget_s)

    def _rejection(self, operator: Operator, variant: Variant) -> Generator[Begin, None, Rejection | None]:
        """The first hard point or sequence the variant does not survive; None where it is sound."""
        if variant.id not in self._rejections:
            self._rejections[variant.id] = None
            findings: list[Finding] = []
            for finding in self.check_variant(operator.name, variant.name):
                yield Begin(variant.name, "verify")
                findings.append(finding)
                if finding.outcome in ("rejected", "failed"):
                    status, why = (
                        ("mismatch", f"{finding.check}: ") if finding.outcome == "rejected" else ("failed", "")
                    )
                    self._rejections[variant.id] = (status, f"hard point {finding.name!r}: {why}{finding.message}")
                    break
            if self._rejections[variant.id] is None and is_unverified(findings):
                self._rejections[variant.id] = ("failed", "unverified: its skip= leaves out every hard point")
        return self._rejections[variant.id]

    def _verify(self, bench: Fixture, variant: Variant) -> tuple[Rejection | None, Callable[[], Any] | None]:
        """((status, reason), None) or (None, launch)."""
        start, interpreted = time.perf_counter(), self._interpreter.launches
        try:
            launch = verify_cell(bench, variant, once=variant.id in self._interpreted)
            if (tampered := self._integrity.tampered()) is not None:
                raise Mismatch("no_tampering", tampered)
            return None, launch
        except Exception as error:  # a variant may raise anything
            return rejected(error), None
        finally:
            if self._interpreter.launches > interpreted:
                self._interpreted.add(variant.id)
                self._interpreted_s[variant.id] += time.perf_counter() - start
