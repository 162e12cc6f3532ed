"""The worker's side of a run: it owns the device, checks variants, and times those that pass.

``check`` verifies variants somewhere (``_steps``), at a point in the steps of ``_at_point``. ``time`` has those that
passed there timed together (harness/session/sampling.py). Each answers a request with one value; a heartbeat before a
variant gets control, and each finding, go through ``tell``.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs

from spec_decode_bench.harness import interpreter
from spec_decode_bench.harness.compile_time import compile_time
from spec_decode_bench.harness.config.work_items import (
    AsEdgeCase,
    AtPoint,
    Check,
    Death,
    EdgeCases,
    Named,
    Result,
    Task,
)
from spec_decode_bench.harness.contract import CAPTURE, COMPILER, EdgeCase, Operator, Point, Variant
from spec_decode_bench.harness.cuda import compile_all
from spec_decode_bench.harness.discover import discover, unavailable
from spec_decode_bench.harness.errors import CaptureError, UsageError, first_line
from spec_decode_bench.harness.host_lock import lock_of
from spec_decode_bench.harness.nvtx_ranges import nvtx_range
from spec_decode_bench.harness.packages import checkouts, versions
from spec_decode_bench.harness.records.schema import (
    Code,
    Environment,
    Finding,
    Metrics,
    Place,
    Reason,
    Status,
    Where,
    cell_key,
    rounded,
)
from spec_decode_bench.harness.session.loading import files_behind, loaded
from spec_decode_bench.harness.session.messages import Heartbeat, Job, Loaded, Ready
from spec_decode_bench.harness.session.sampling import RAMP_S, Sampling, is_context_lost
from spec_decode_bench.harness.session.sources import package_needs
from spec_decode_bench.harness.timing.environment import describe
from spec_decode_bench.harness.verify.edge_cases import (
    EdgeCaseChecks,
    EdgeCaseName,
    LeftOut,
    is_beyond,
    is_unverified,
    judged_known_failure,
    reason_to_skip,
    wrong,
)
from spec_decode_bench.harness.verify.fixture import Batch, Fixture, verify_cell
from spec_decode_bench.harness.verify.memory import too_large
from spec_decode_bench.harness.verify.process_state import ProcessState

if TYPE_CHECKING:
    from spec_decode_bench.harness.timing.cuda_timer import CudaTimer

#: Before the calibration the GPU is under full load until it has had the same clock at the end of STEADY_STEPS steps in
#: turn, at most RAMP_STEPS of RAMP_STEP_S seconds.
RAMP_STEP_S, RAMP_STEPS, STEADY_STEPS = 0.05, 20, 3
#: Launches of a verified variant at its first edge case, where nothing is timed.
CALLS = 1000
#: Seconds for which nothing was timed -> seconds of full load before the next point; the first that is exceeded.
RAMPS = {1.0: 0.2, 0.1: RAMP_S}
#: One point of the array may take 1/SHARES of the budget.
SHARES = 8


@dataclass
class _VariantState:
    """What this process knows about one variant.

    bad_import:  what the import of its file changed in the process; then it is never run.
    interpreted: whether Triton's interpreter ran it at a point.
    slow_s:      whether at points of the array -> seconds that interpreting and compiling took; each has a budget.
    """

    bad_import: Finding | None = None
    interpreted: bool = False
    slow_s: Counter[bool] = field(default_factory=Counter)


@dataclass
class _At:
    """One point while variants are checked there.

    request:  what all of them are asked; at a point of the array every variant is launched once and none is timed.
    fixture:  inputs and outputs, made when the first variant needs them.
    launches: of the variants that passed and are to be timed, by name.
    """

    operator: Operator
    request: AtPoint
    fixture: Fixture | None = None
    launches: dict[str, Callable[[], Any]] = field(default_factory=dict)

    @cached_property
    def point(self) -> Point:
        return Point(self.request.axes)

    @cached_property
    def redundant(self) -> Reason | None:
        """Why the operator leaves this point out. Raises what its own code raises."""
        is_planned = self.request.planned and CAPTURE not in self.point
        return reason_to_skip(self.operator, self.point) if is_planned else None

    @cached_property
    def values(self) -> dict[str, int | float | str]:
        """Of the axes, for NVTX."""
        return self.operator.values(self.point)

    @property
    def where(self) -> Where:
        return Where(self.request.place, self.request.label)


class _NoInputs(Exception):
    """The operator could not make inputs at a point; the cause is its exception."""


class Evaluator:
    """Owns the device in the first process.

    thorough: whether to check every property at every edge case; None: where nothing is timed, as there is time then.
    timer:    None on a CPU.
    tell:     tells the supervisor at once: a heartbeat before something gets control, and each finding, which may be
              lost with the process.
    lost:     whether the variant of the last outcome took the CUDA context with it.
    """

    tell: Callable[[Heartbeat | Result], None] = staticmethod(lambda event: None)
    lost = False

    # --- set up -------------------------------------------------------------------------------------------------------

    def __init__(self, job: Job, thorough: bool | None = None) -> None:
        self.job = job
        self._thorough = not job.timed if thorough is None else thorough
        self._discover(job.variant_files)
        self._compile_time = compile_time()
        interpreter.quicken()
        self._interpreter = interpreter.launch_counter()
        self.timer: CudaTimer | None = None
        self._clocks = None
        #: What kinds of work item that rooms add keep in this process.
        self.kept: dict[type, Any] = {}
        self._idle_since = -math.inf
        #: Operator -> batches of its edge cases, only of the one whose variants are being verified.
        self._known: dict[str, dict[Any, Batch]] = {}
        #: Where a Check was last, whose inputs its variants share.
        self._at: _At | None = None
        self._compiled: dict[str, dict[str, str]] = {}

    def _discover(self, files: Sequence[str]) -> None:
        """Raises DiscoveryError."""
        bad_imports: dict[str, Finding] = {}
        # "cpu" even on a GPU: looking at streams would initialize the device, which no import may do.
        settings = ProcessState("cpu")

        def check_import(module: str) -> None:
            if (changed := settings.changed()) is not None:
                imported = Where(Place.IMPORT, "import")
                bad_imports[module] = imported.finding(Status.MISMATCH, check="process_state", message=changed)
            settings.restore()

        began = time.perf_counter()
        self.catalog = discover(files, check_import, self.job.operators)
        self._import_s = time.perf_counter() - began
        self._states = {v.id: _VariantState(bad_import=bad_imports.get(v.origin)) for v in self.catalog.variants}

    def bring_up(self) -> Environment:
        """Bring the device up, or compile CUDA sources where there is no GPU."""
        if self.job.device == "cuda":
            from spec_decode_bench.harness.timing.clocks import Clocks
            from spec_decode_bench.harness.timing.cuda_timer import CudaTimer

            self.timer = CudaTimer(self.job.measure.graph_copies, self.job.measure.cache, lock_of(self.job.host_lock))
            self._clocks = Clocks()
        elif self.job.compiled:
            self._compiled = compile_all(self.job.compiled)
        self._environment = self._described()
        return self._environment

    def _described(self) -> Environment:
        needs = package_needs(self.catalog.variants)
        return describe(self.job.device, self._clocks, versions(needs), checkouts(needs))

    def load(self, files: tuple[str, ...]) -> Loaded:
        """Import further files of --variants, once, and plan the job's sweep."""
        sys.dont_write_bytecode = True  # Python may take that of an edit for that of the next one
        before = set(sys.modules)
        try:
            self._discover(files)
            found = loaded(self.job.sweep, self.catalog, files)
        except UsageError as error:
            found = Loaded(error=str(error))
        compiles = self.job.device == "cpu" and found.items
        sources = [source for v in self.catalog.variants_of(found.items) for source in v.sources] if compiles else []
        return structs.replace(
            found,
            files=files_behind(files, set(sys.modules) - before),
            environment=self._described(),
            compiled=compile_all(tuple(dict.fromkeys(sources))),
        )

    def ready(self, timed: bool = True) -> Ready:
        """On a GPU, ramp the clocks and calibrate, if anything is to be timed."""
        calibration, seconds = None, {"import": self._import_s}
        if self.job.device == "cuda":
            from spec_decode_bench.harness.timing.calibrate import calibrate

            if self.job.timed and timed:
                with nvtx_range("ramp", "ramp"):
                    self._ramp_up()
                self._clocks.set_run_clock()
                began = time.perf_counter()
                calibration = calibrate(self.timer, self._clocks)
                self._idle_since = time.perf_counter()
                seconds["calibration"] = self._idle_since - began
            torch.cuda.profiler.start()
        return Ready(self._environment, calibration, self._compiled, seconds)

    def _ramp_up(self) -> None:
        clocks_mhz: list[int | None] = []
        for _ in range(RAMP_STEPS):
            self.timer.ramp(RAMP_STEP_S)
            reading = self._clocks.read(power=False)
            clocks_mhz.append(reading.sm_clock_mhz if reading else None)
            if clocks_mhz[-1] is not None and clocks_mhz[-STEADY_STEPS:] == [clocks_mhz[-1]] * STEADY_STEPS:
                return

    def close(self) -> None:
        if self.job.device == "cuda":
            torch.cuda.profiler.stop()

    # --- timing -------------------------------------------------------------------------------------------------------

    def time(self, task: Task) -> list[Result]:
        """The samples of variants that passed at a point. Raises ContextLost; the session asks another process, one
        variant after the other.
        """
        at = self._point(task.operator, AtPoint(label=task.point, axes=task.axes))
        timed: list[Result] = []
        for name in task.variants:
            if name not in at.launches:  # verified by a process that died
                self.tell(Heartbeat((name,)))
                finding = self._verified(at, self.catalog.find(task.operator, name), once=name in task.proven)
                if finding.status is not Status.PASSED:
                    timed.append(Result(operator=task.operator, variant=name, finding=finding))
                    if self._has_lost_context(finding):
                        self.lost = True
                        return timed
        launches = [
            (self.catalog.find(task.operator, name), at.launches[name]) for name in task.variants if name in at.launches
        ]
        if launches:
            idle_s = time.perf_counter() - self._idle_since
            if ramp_s := next((ramp_s for least_s, ramp_s in RAMPS.items() if idle_s > least_s), 0.0):
                with nvtx_range("ramp", "ramp"):
                    self.ramp(ramp_s)
            sampling = Sampling(self.job, self.timer, self._clocks, self.tell, task, at.fixture)
            timed += sampling.timed(launches)
            self._idle_since = time.perf_counter()
        self.lost = self._has_lost_context(timed[-1].finding)
        return timed

    def _has_lost_context(self, finding: Finding) -> bool:
        return finding.status.is_bad and is_context_lost(self.job.device)

    def spent(self, began: float, compiled_s: float) -> dict[str, float]:
        """Seconds of verification by activity. began, compiled_s: perf_counter and seconds of compilation before it."""
        compiling_s = self._compile_time.seconds - compiled_s
        return rounded({"compile": compiling_s, "verify": time.perf_counter() - began - compiling_s})

    def ramp(self, seconds: float) -> None:
        """Bring the clock of a GPU up."""
        if self.timer is not None:
            self.timer.ramp(seconds)

    # --- verification at a point --------------------------------------------------------------------------------------

    def _at_point(self, at: _At, variant: Variant, where: AtPoint) -> Iterator[Finding]:
        """What a variant is checked for at a point, top to bottom; the first finding that is not a pass ends it."""
        if finding := self._not_run(at, variant):
            yield finding
            return
        if not where.passed and where.rejected is None:
            for finding in self._until_rejected(variant, self._thorough):
                yield finding
                if finding.status.is_bad:
                    return
        if where.rejected is not None:
            yield where.rejected
        elif reason := self._out_of_time(variant, at.request.in_array):
            yield at.where.finding(Status.SKIPPED, reason=reason)
        else:
            yield self._verified(at, variant, where.proven)

    def _point(self, operator: str, where: AtPoint) -> _At:
        """The last one, if it is the same."""
        request = AtPoint(label=where.label, axes=where.axes, in_array=where.in_array, planned=where.planned)
        if self._at is None or (self._at.operator.name, self._at.request) != (operator, request):
            self._at = _At(self.catalog.operators[operator], request)
        return self._at

    def _not_run(self, at: _At, variant: Variant) -> Finding | None:
        """Why a variant does not run at a point at all."""
        whose = "the operator's redundant="
        try:
            redundant = at.redundant
            if reason := unavailable(variant, self.job.device):
                return at.where.finding(Status.UNAVAILABLE, reason=reason)
            whose = "its skip="
            if reason := redundant or reason_to_skip(variant, at.point):
                return at.where.finding(Status.SKIPPED, reason=reason)
        except Exception as error:  # the operator's own code; a variant may raise anything
            return wrong(at.where, error, f"{whose} raised {first_line(error)}")
        return None

    def _until_rejected(self, variant: Variant, thorough: bool) -> Iterator[Finding]:
        """At edge cases and sequences up to the first that the variant does not pass, and that it passed any."""
        findings = []
        for finding in self._edge_cases(variant, thorough=thorough):
            findings.append(finding)
            yield finding
            if finding.status.is_bad:
                return
        if is_unverified(findings):
            left_out_by = "skip= and known_failures= leave" if variant.known_failures else "skip= leaves"
            message = f"unverified: its {left_out_by} out every edge case"
            yield Where(Place.EDGE_CASE).finding(Status.FAILED, message=message)

    def _verified(self, at: _At, variant: Variant, once: bool) -> Finding:
        """Of the launches at a point. That of a variant which is to be timed is kept."""
        try:
            launch = self._launched(at, variant, once)
        except LeftOut as left_out:
            return at.where.finding(Status.SKIPPED, reason=left_out.reason)
        except _NoInputs as error:
            return wrong(at.where, error.__cause__, str(error))
        except Exception as error:  # a variant may raise anything
            return wrong(at.where, error)
        interpreted = self._states[variant.id].interpreted and not at.request.in_array
        if self.job.timed and not interpreted:
            at.launches[variant.name] = launch
        return at.where.finding(Status.PASSED, reason=Reason(code=Code.INTERPRETED) if interpreted else None)

    def _launched(self, at: _At, variant: Variant, once: bool) -> Callable[[], Any]:
        """The variant's launch, set up on the fixture of the point and verified there. Raises LeftOut, _NoInputs, and
        whatever the variant does.
        """
        in_array = at.request.in_array
        if at.fixture is None and (reason := too_large(at.operator, at.point, self.job.device)):
            raise LeftOut(reason)
        with nvtx_range(cell_key(at.operator.name, variant.name, at.request.label), "verify", at.values):
            try:
                of = at.operator, at.point, self.job.device, self.job.seed
                if in_array:
                    from spec_decode_bench.harness.verify.covering_array import fixture_of

                    fixture = at.fixture = at.fixture or fixture_of(*of)
                    if variant.known_failure_at("", "unaligned"):
                        fixture = Fixture(*of, batches=at.fixture.batches)
                else:
                    fixture = at.fixture = at.fixture or Fixture(*of, placement=0 if self.timer else None)
                    _ = fixture.bytes_moved  # computed here, so that an error in it is reported as the operator's
            except CaptureError as error:
                raise LeftOut(Reason(code=Code.CAPTURED, detail=str(error))) from None
            except Exception as error:  # the operator's own code, or memory
                raise _NoInputs(f"could not make inputs at this point: {first_line(error)}") from error
            if in_array and is_beyond(variant, fixture):
                raise LeftOut(Reason(code=Code.KNOWN_FAILURE))
            with self._counting(variant, in_array):
                once = once or in_array or self._states[variant.id].interpreted
                return verify_cell(fixture, variant, once=once)

    @contextmanager
    def _counting(self, variant: Variant, in_array: bool) -> Iterator[None]:
        """Count the seconds against the variant's budget if Triton's interpreter runs meanwhile; so does torch.compile,
        which compiles again for other sizes, beside the points of a sweep. A point of the array may take a share of it.
        """
        state, budget_s = self._states[variant.id], self.job.measure.interpreter_budget_s
        began, launches_before = time.perf_counter(), self._interpreter.launches
        try:
            with self._interpreter.limited(budget_s / SHARES if in_array else math.inf):
                yield
        except Exception:
            if self._interpreter.ran_out:
                raise LeftOut(self._budget_spent) from None
            raise
        finally:
            interpreted = self._interpreter.launches > launches_before
            state.interpreted = state.interpreted or interpreted
            compiled = COMPILER in variant.requires and in_array
            if interpreted or compiled:
                state.slow_s[in_array] += time.perf_counter() - began

    @property
    def _budget_spent(self) -> Reason:
        return Reason(code=Code.INTERPRETER_BUDGET, seconds=self.job.measure.interpreter_budget_s)

    def _out_of_time(self, variant: Variant, in_array: bool) -> Reason | None:
        """Why a variant runs at no further point or batch; None while it has time left."""
        spent = self._states[variant.id].slow_s[in_array] > self.job.measure.interpreter_budget_s
        return self._budget_spent if spent else None

    # --- verification -------------------------------------------------------------------------------------------------

    def check(self, request: Check) -> list[Result]:
        """Findings of variants, healthy or defective. What loses the CUDA context has crashed, too."""
        checked: list[Result] = []
        for variant in (self.catalog.find(request.operator, name) for name in request.variants):
            began, compiled_s = time.perf_counter(), self._compile_time.seconds
            for finding in self._steps(request, variant):
                at_point = finding.place is Place.POINT and finding.status is Status.PASSED
                checked.append(
                    Result(
                        operator=request.operator,
                        variant=variant.name,
                        finding=finding,
                        metrics=Metrics(bytes_moved=self._at.fixture.bytes_moved) if at_point else None,
                        seconds=self.spent(began, compiled_s),
                    )
                )
                self.tell(checked[-1])
                if self._has_lost_context(finding):
                    self.lost = True
                    death = Death("the CUDA context was lost", variant.id, finding.where)
                    return [*checked, request.died(variant.name, death)]
                began, compiled_s = time.perf_counter(), self._compile_time.seconds
        return checked

    def _steps(self, request: Check, variant: Variant) -> Iterator[Finding]:
        """What a variant is checked for somewhere."""
        operator, where = self.catalog.operators[request.operator], request.where
        self.tell(Heartbeat((variant.name,)))
        match where:
            case EdgeCases(until_rejected=True):
                if unavailable(variant, self.job.device) is None:
                    yield from self._until_rejected(variant, thorough=False)
            case EdgeCases():
                yield from self._edge_cases(variant)
            case Named(known_failure=True):
                yield self._at_known_failure(variant, where)
            case Named():
                cases = [case for case in operator.edge_cases if case.name == where.name]
                sequences = {name: steps for name, steps in operator.sequences.items() if name == where.name}
                yield from self._edge_cases(variant, replace(operator, edge_cases=cases, sequences=sequences))
            case AsEdgeCase():
                label = operator.label(where.axes)
                only = [EdgeCase(label, where.axes)]
                yield from self._edge_cases(variant, replace(operator, edge_cases=only, sequences={}))
                if self._states[variant.id].bad_import is None:
                    at = _At(operator, AtPoint(label=label, axes=where.axes, in_array=True, planned=False))
                    finding = self._not_run(at, variant) or self._verified(at, variant, once=True)
                    if finding.status.is_bad:
                        yield finding
            case AtPoint():
                yield from self._at_point(self._point(request.operator, where), variant, where)

    def _at_known_failure(self, variant: Variant, where: Named) -> Finding:
        """The finding at a known failure. Far rows have one for each input, or none if memory is short; the first
        failure counts.
        """
        findings = list(self._edge_cases(variant, only=(where.name, where.buffers)))
        if not findings:
            short = Reason(code=Code.MEMORY)
            return Where(Place.EDGE_CASE, where.name, where.buffers).finding(Status.SKIPPED, reason=short)
        return judged_known_failure(next((finding for finding in findings if finding.status.is_bad), findings[0]))

    def _edge_cases(
        self,
        variant: Variant,
        restricted: Operator | None = None,
        only: EdgeCaseName | None = None,
        thorough: bool | None = None,
    ) -> Iterator[Finding]:
        """At all edge cases and sequences of the operator, but those at which the variant has a known failure.

        restricted: the operator with some of them. only: exactly this one, even where it is a known failure. thorough:
        None for this process's.
        """
        thorough = self._thorough if thorough is None else thorough
        operator, state = restricted or self.catalog.operators[variant.operator], self._states[variant.id]
        if state.bad_import is not None:
            yield state.bad_import
            return
        with nvtx_range(cell_key(operator.name, variant.name, "edge cases"), "verify"):
            if operator.name not in self._known:
                self._known = {operator.name: {}}
            yield from EdgeCaseChecks(
                operator,
                variant,
                self.job.device,
                self.job.seed,
                thorough,
                only=only,
                known=self._known[operator.name],
                announce=lambda where: self.tell(Heartbeat((variant.name,), where)),
                calls=CALLS if thorough else 0,
            )
