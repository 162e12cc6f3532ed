"""The worker's side of a run: it owns the device, checks variants, and times those that pass.

Results leave as events, each as soon as it is known: ``Heartbeat`` before a variant gets control, ``Cell`` when its
outcome at the point is settled. The path of a group of variants through this file: ``group`` checks one variant after
the other (``_check``: does it apply, its hard points once per process, then this point), and has those that passed
timed together (harness/runner/measure.py).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from harness import interpreter
from harness.config.sweep import Group
from harness.contract import COMPILER, GPU, HardPoint, Operator, Point, Variant
from harness.cuda import compile_all
from harness.discover import discover, unavailable
from harness.nvtx_ranges import nvtx_range
from harness.packages import versions
from harness.records.schema import Cell, Metrics, Status, cell_key
from harness.runner.measure import Measuring, check_context, is_context_lost, rejection_of
from harness.runner.protocol import (
    INTERPRETER_SPENT,
    Heartbeat,
    Job,
    LoopTask,
    Outputs,
    RandomRequest,
    Ready,
    Rejection,
    Task,
)
from harness.timing.environment import describe
from harness.timing.host_lock import lock_of
from harness.verify.fixture import Batch, Fixture, verify_cell
from harness.verify.hard_points import (
    BEYOND,
    Finding,
    LeftOut,
    check_variant,
    is_beyond,
    is_unverified,
    reason_to_skip,
)
from harness.verify.process_state import ProcessState
from harness.wording import first_line

if TYPE_CHECKING:
    from harness.records.decode_loop import Loop
    from harness.timing.cuda_timer import CudaTimer

#: Seconds of full load when the device is brought up, and again before the first sample of a run and after IDLE_S.
RAMP_S, RAMP_AGAIN_S, IDLE_S = 1.0, 0.2, 1.0
INTERPRETED = "verified through Triton's interpreter, which says nothing about time"
#: On a CPU each variant has a time budget for each of these.
SWEEP, CAPACITY, RANDOM = "sweep", "capacity", "random"
#: One point at capacity, or one random batch, may take 1/SHARES of the budget.
SHARES = 8


@dataclass
class _VariantState:
    """What this process knows of one variant.

    bad_import:       what the import of its file changed in the process; then it is never run.
    findings:         at all hard points and sequences; None until every one of them has run.
    hard_points_done: whether enough of them have run for the points of a sweep.
    rejection:        from the first hard point or sequence that it does not pass.
    interpreted:      whether Triton's interpreter ran it at a point.
    slow_s:           seconds that interpreting and compiling took, by SWEEP, CAPACITY and RANDOM.
    """

    bad_import: Finding | None = None
    findings: list[Finding] | None = None
    hard_points_done: bool = False
    rejection: Rejection | None = None
    interpreted: bool = False
    slow_s: Counter[str] = field(default_factory=Counter)


@dataclass
class _PointState:
    """One group while its variants are checked.

    redundant: why the operator leaves this point out.
    fixture:   inputs and outputs, made when the first variant needs them.
    verified:  variant -> its launch, of those that passed and are to be timed.
    """

    group: Group
    redundant: str | None
    at_capacity: bool
    fixture: Fixture | None = None
    verified: dict[str, Callable[[], Any]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return CAPACITY if self.at_capacity else SWEEP


class Evaluator:
    """Owns the device in the first process.

    thorough: whether to check every property at every hard point; None: where nothing is timed, as there is time then.
    timer:    None on a CPU.
    """

    # --- set up -------------------------------------------------------------------------------------------------------

    def __init__(self, job: Job, thorough: bool | None = None) -> None:
        self._job = job
        self._thorough = not job.timed if thorough is None else thorough
        bad_imports: dict[str, Finding] = {}
        # "cpu" on a GPU, too: looking at streams would bring the device up, which no import may do.
        settings = ProcessState("cpu")

        def check_import(module: str) -> None:
            if (changed := settings.changed()) is not None:
                bad_imports[module] = Finding("import", "rejected", "process_state", changed)
            settings.restore()

        self.catalog = discover(job.variant_files, check_import)
        self._states = {v.id: _VariantState(bad_import=bad_imports.get(v.origin)) for v in self.catalog.variants}
        interpreter.quicken()
        self._interpreter = interpreter.launch_counter()
        self.timer: CudaTimer | None = None
        self._clocks = self._loops = None
        self._idle_since = math.inf
        #: Operator -> batches of its hard points, only of the one whose variants are being verified.
        self._known: dict[str, dict[Any, Batch]] = {}
        self._compiled: dict[str, dict[str, str]] = {}

    def bring_up(self) -> None:
        """Bring the device up and ramp the clocks, or compile CUDA sources where there is no GPU."""
        if self._job.device == "cuda":
            from harness.timing.clocks import Clocks
            from harness.timing.cuda_timer import CudaTimer

            self.timer = CudaTimer(
                self._job.measure.graph_copies, self._job.measure.cache, lock_of(self._job.host_lock)
            )
            self._clocks = Clocks()
            if self._job.timed:
                with nvtx_range("ramp", "ramp"):
                    self.timer.ramp(RAMP_S)
        elif self._job.compiled:
            self._compiled = compile_all(self._job.compiled)

    def ready(self) -> Ready:
        """Describe the device, and on a GPU calibrate."""
        calibration = None
        if self._job.device == "cuda":
            from harness.timing.calibrate import VERIFIED_ROUNDS, calibrate

            if self._job.timed:
                self.timer.ramp(RAMP_AGAIN_S)
                self._clocks.set_run_clock()
                calibration = calibrate(self.timer, self._clocks, VERIFIED_ROUNDS if self._job.verified else None)
            torch.cuda.profiler.start()
        needs = [need for variant in self.catalog.variants for need in variant.requires if need not in (GPU, COMPILER)]
        notes = self._clocks.notes if self._clocks else ()
        return Ready(describe(self._job.device, notes, versions(needs)), calibration, self._compiled)

    def close(self) -> None:
        if self._job.device == "cuda":
            torch.cuda.profiler.stop()

    # --- a group of variants at one point -----------------------------------------------------------------------------

    def group(self, task: Task) -> Iterator[Heartbeat | Outputs | Cell]:
        """All variants of a task: check each, then time those that passed. Raises ContextLost; the parent asks another
        process for the variants whose cells it did not get.
        """
        if time.perf_counter() - self._idle_since > IDLE_S:
            self.ramp(RAMP_AGAIN_S)
        operator, point = self.catalog.operators[task.operator], Point(task.axes)
        variants = tuple(self.catalog.find(task.operator, name) for name in task.variants)
        group = Group(operator, point, variants, task.baseline)
        try:
            at = _PointState(group, reason_to_skip(operator, point), task.at_capacity)
        except Exception as error:  # the operator's own code
            reason = f"the operator's redundant= raised {first_line(error)}"
            yield from (group.cell(variant.name, Status.FAILED, reason) for variant in group.variants)
            return
        for variant in group.variants:
            yield Heartbeat(variant.name, "verify")
            yield from self._check(at, variant)
        if at.verified:
            measuring = Measuring(self._job, self.timer, self._clocks)
            yield from measuring.time(group, at.fixture, at.verified, task.budget_s, task.check_seed)
        self._idle_since = time.perf_counter()

    def _check(self, at: _PointState, variant: Variant) -> Iterator[Heartbeat | Cell]:
        """Yields the variant's cell, or puts its launch into ``at.verified``."""
        group, state = at.group, self._states[variant.id]

        if reason := unavailable(variant, self._job.device):
            yield group.cell(variant.name, Status.UNAVAILABLE, reason)
            return
        try:
            reason = at.redundant or reason_to_skip(variant, group.point)
        except Exception as error:  # a variant may raise anything
            yield group.cell(variant.name, Status.FAILED, f"its skip= raised {first_line(error)}")
            return
        if reason:
            yield group.cell(variant.name, Status.SKIPPED, reason)
            return

        if not (state.hard_points_done or self._job.verified):
            yield from self._check_hard_points(variant)
        if state.rejection is None and (reason := self._out_of_time(variant, at.kind)):
            yield group.cell(variant.name, Status.SKIPPED, reason)
            return

        result = state.rejection or self._check_point(at, variant)
        if isinstance(result, Rejection):
            yield group.cell(variant.name, result.status, result.reason)
            check_context(self._job.device)
        elif self._job.timed and not state.interpreted:
            at.verified[variant.name] = result
        else:
            note = INTERPRETED if state.interpreted else None
            yield group.cell(variant.name, Status.PASSED, note, Metrics(bytes_moved=at.fixture.bytes_moved))

    def _check_hard_points(self, variant: Variant) -> Iterator[Heartbeat]:
        """Up to the first hard point or sequence that the variant does not pass."""
        state = self._states[variant.id]
        state.hard_points_done = True
        findings: list[Finding] = []
        for finding in self.check_variant(variant.operator, variant.name):
            yield Heartbeat(variant.name, "verify")
            findings.append(finding)
            if finding.outcome == "rejected":
                reason = f"hard point {finding.name!r}: {finding.check}: {finding.message}"
                state.rejection = Rejection(Status.MISMATCH, reason)
                return
            if finding.outcome == "failed":
                state.rejection = Rejection(Status.FAILED, f"hard point {finding.name!r}: {finding.message}")
                return
        if is_unverified(findings):
            left_out_by = "skip= and limits= leave" if variant.limits else "skip= leaves"
            state.rejection = Rejection(Status.FAILED, f"unverified: its {left_out_by} out every hard point")

    def _check_point(self, at: _PointState, variant: Variant) -> Callable[[], Any] | Rejection:
        """The variant's launch, set up on the fixture of the point and verified there, or why there is none."""
        group, state = at.group, self._states[variant.id]
        with nvtx_range(group.key(variant.name), "verify", group.labels):
            try:
                at.fixture = at.fixture or Fixture(
                    group.operator,
                    group.point,
                    self._job.device,
                    self._job.seed,
                    batches=2 if at.at_capacity else 3,
                    placement=0 if self.timer and at.kind == SWEEP else None,
                )
                _ = at.fixture.bytes_moved  # computed here, so that an error in it is reported as the operator's
            except Exception as error:  # the operator's own code, or memory
                return Rejection(Status.FAILED, f"no inputs at this point: {first_line(error)}")
            try:
                if at.at_capacity and is_beyond(variant, at.fixture):
                    return Rejection(Status.SKIPPED, BEYOND)
                with self._counting(variant, at.kind):
                    once = state.interpreted or at.at_capacity or self._job.verified
                    return verify_cell(at.fixture, variant, once=once)
            except LeftOut as reason:
                return Rejection(Status.SKIPPED, str(reason))
            except Exception as error:  # a variant may raise anything
                return rejection_of(error)

    @contextmanager
    def _counting(self, variant: Variant, kind: str) -> Iterator[None]:
        """Count the seconds against the variant's budget if Triton's interpreter runs meanwhile; so does torch.compile,
        which compiles again for other sizes, beside the points of a sweep. A point at capacity and a random batch may
        take a share of it.
        """
        state, budget_s = self._states[variant.id], self._job.measure.interpreter_budget_s
        began, launches_before = time.perf_counter(), self._interpreter.launches
        try:
            with self._interpreter.limited(math.inf if kind == SWEEP else budget_s / SHARES):
                yield
        except Exception:
            if self._interpreter.ran_out:
                raise LeftOut(INTERPRETER_SPENT.format(budget_s)) from None
            raise
        finally:
            interpreted = self._interpreter.launches > launches_before
            state.interpreted = state.interpreted or interpreted
            compiled = COMPILER in variant.requires and kind != SWEEP
            if interpreted or compiled:
                state.slow_s[kind] += time.perf_counter() - began

    def _out_of_time(self, variant: Variant, kind: str) -> str | None:
        """Why a variant is not run at another point, or on another batch."""
        budget_s = self._job.measure.interpreter_budget_s
        spent = self._states[variant.id].slow_s[kind] > budget_s
        return INTERPRETER_SPENT.format(budget_s) if spent else None

    # --- decode loops -------------------------------------------------------------------------------------------------

    def loop(self, task: LoopTask) -> Iterator[Heartbeat | Loop]:
        """All stacks of a decode loop. Raises ContextLost."""
        from harness.runner.loop_evaluator import LoopEvaluator

        self._loops = self._loops or LoopEvaluator(self, self._job.seed, self._job.device)
        return self._loops.loop(task)

    def check_at(self, group: Group, variant: Variant) -> Iterator[Heartbeat | Cell]:
        """Check a variant at its hard points and at the point of the group. Yields its cell only if it must not be
        timed.
        """
        return self._check(_PointState(group, redundant=None, at_capacity=False), variant)

    def ramp(self, seconds: float) -> None:
        """Bring the clock of a GPU up."""
        if self.timer is not None:
            self.timer.ramp(seconds)

    # --- hard points and sequences ------------------------------------------------------------------------------------

    def check_variant(
        self,
        operator_name: str,
        variant_name: str,
        at: str | Mapping[str, Any] | None = None,
        only: bool = False,
    ) -> Iterator[Finding]:
        """Findings at all hard points and sequences of one variant, healthy or defective, without those at which it
        declares a limit. Raises ContextLost.

        at:   the name of the only hard point or sequence to run, or the axes of another point to run as one.
        only: exactly the one named in ``at``, even where the variant declares a limit.
        """
        operator, variant = self.catalog.operators[operator_name], self.catalog.find(operator_name, variant_name)
        state = self._states[variant.id]
        if state.bad_import is not None:
            yield state.bad_import
            return
        if at is not None and not only:
            operator = _restricted(operator, at)
        elif at is None and state.findings is not None:
            yield from state.findings
            return
        findings: list[Finding] = []
        with nvtx_range(cell_key(operator.name, variant.name, "hard points"), "verify"):
            if operator_name not in self._known:
                self._known = {operator_name: {}}
            of = operator, variant, self._job.device, self._job.seed, self._thorough
            for finding in check_variant(*of, only=at if only else None, known=self._known[operator_name]):
                findings.append(finding)
                yield finding
                if finding.outcome in ("failed", "rejected"):
                    check_context(self._job.device)
        if at is None:
            state.findings = findings

    # --- random batches -----------------------------------------------------------------------------------------------

    def check_random(self, request: RandomRequest) -> Iterator[Finding]:
        """Findings of one variant on random batches. Raises ContextLost."""
        from harness.verify.random_batches import check_random

        operator = self.catalog.operators[request.operator]
        variant = self.catalog.find(request.operator, request.variant)
        state = self._states[variant.id]
        if state.bad_import is not None:
            yield state.bad_import
            return
        with nvtx_range(cell_key(operator.name, variant.name, "random batches"), "verify"):
            yield from check_random(
                operator,
                variant,
                self._job.device,
                self._job.seed,
                request.count,
                counting=lambda: self._counting(variant, RANDOM),
                out_of_time=lambda: self._out_of_time(variant, RANDOM),
                lost=lambda: is_context_lost(self._job.device),
            )
        check_context(self._job.device)


def _restricted(operator: Operator, at: str | Mapping[str, Any]) -> Operator:
    """The operator with one of its hard points or sequences, or with a point of these axes as its only hard point."""
    if isinstance(at, str):
        hard_points = [hard for hard in operator.hard_points if hard.name == at]
        sequences = {name: steps for name, steps in operator.sequences.items() if name == at}
    else:
        hard_points, sequences = [HardPoint(operator.label(at), at)], {}
    return replace(operator, hard_points=hard_points, sequences=sequences)
