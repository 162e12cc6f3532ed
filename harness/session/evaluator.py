"""The worker's side of a run: it owns the device, checks variants, and times those that pass.

Results leave as events, each as soon as it is known: ``Heartbeat`` before a variant gets control, ``Cell`` when its
outcome at the point is settled. ``cells`` checks the variants of a point one after the other (``_check``: does it
apply, its edge cases once per process, then this point), and has those that passed timed together
(harness/session/measure.py).
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs

from spec_decode_bench.harness import interpreter
from spec_decode_bench.harness.compile_time import compile_time
from spec_decode_bench.harness.config.work_items import Cells, Checked, RandomBatches, Verify
from spec_decode_bench.harness.contract import COMPILER, EdgeCase, Operator, Point, Variant
from spec_decode_bench.harness.cuda import compile_all
from spec_decode_bench.harness.discover import discover, unavailable
from spec_decode_bench.harness.host_lock import lock_of
from spec_decode_bench.harness.nvtx_ranges import nvtx_range
from spec_decode_bench.harness.packages import checkouts, versions
from spec_decode_bench.harness.records.schema import (
    Cell,
    Code,
    Environment,
    Finding,
    Metrics,
    Place,
    Proof,
    Reason,
    Status,
    cell_key,
    rounded,
)
from spec_decode_bench.harness.session.measure import RAMP_S, Measuring, check_context, is_context_lost
from spec_decode_bench.harness.session.messages import Heartbeat, Job, Outputs, Ready
from spec_decode_bench.harness.session.proofs import machine_hash
from spec_decode_bench.harness.session.sources import package_needs
from spec_decode_bench.harness.timing.environment import describe
from spec_decode_bench.harness.verify.edge_cases import (
    EdgeCaseName,
    LeftOut,
    check_variant,
    is_beyond,
    is_unverified,
    judged_known_failure,
    reason_to_skip,
    wrong,
)
from spec_decode_bench.harness.verify.fixture import Batch, Fixture, verify_cell
from spec_decode_bench.harness.verify.memory import too_large
from spec_decode_bench.harness.verify.process_state import ProcessState
from spec_decode_bench.harness.wording import first_line

if TYPE_CHECKING:
    from spec_decode_bench.harness.timing.cuda_timer import CudaTimer

#: Before the calibration the GPU is under full load until it has had the same clock at the end of STEADY_STEPS steps in
#: turn, at most RAMP_STEPS of RAMP_STEP_S seconds.
RAMP_STEP_S, RAMP_STEPS, STEADY_STEPS = 0.05, 20, 3
#: Seconds for which nothing was timed -> seconds of full load before the next point; the first that is exceeded.
RAMPS = {1.0: 0.2, 0.1: RAMP_S}
#: On a CPU each variant has a time budget for each of these.
SWEEP, ARRAY, RANDOM = "sweep", "array", "random"
#: One point of the array, or one random batch, may take 1/SHARES of the budget.
SHARES = 8


@dataclass
class _VariantState:
    """What this process knows about one variant.

    bad_import:       what the import of its file changed in the process; then it is never run.
    findings:         at all edge cases and sequences; None until every one of them has run.
    edge_cases_done: whether enough of them have run for the points of a sweep.
    rejection:        from the first edge case or sequence that it does not pass.
    interpreted:      whether Triton's interpreter ran it at a point.
    slow_s:           seconds that interpreting and compiling took, by SWEEP, ARRAY and RANDOM.
    """

    bad_import: Finding | None = None
    findings: list[Finding] | None = None
    edge_cases_done: bool = False
    rejection: Finding | None = None
    interpreted: bool = False
    slow_s: Counter[str] = field(default_factory=Counter)


@dataclass
class _At:
    """One point while its variants are checked.

    redundant: why the operator leaves this point out.
    fixture:   inputs and outputs, made when the first variant needs them.
    verified:  the variants that passed and are to be timed, each with its launch here.
    seconds:   variant -> what it took to check it, by activity.
    """

    item: Cells
    operator: Operator
    point: Point
    redundant: Reason | None
    fixture: Fixture | None = None
    verified: list[tuple[Variant, Callable[[], Any]]] = field(default_factory=list)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return ARRAY if self.item.in_array else SWEEP

    @cached_property
    def values(self) -> dict[str, int | float | str]:
        """Of the axes, for NVTX."""
        return self.operator.values(self.point)


class _NoInputs(Exception):
    """The operator could not make inputs at a point; the cause is its exception."""


class Evaluator:
    """Owns the device in the first process.

    thorough: whether to check every property at every edge case; None: where nothing is timed, as there is time then.
    timer:    None on a CPU.
    send:     sends an event at once: a heartbeat before each edge case and sequence, what may be lost with the process.
    """

    send: Callable[[Heartbeat | Checked], None] = staticmethod(lambda event: None)

    # --- set up -------------------------------------------------------------------------------------------------------

    def __init__(self, job: Job, thorough: bool | None = None) -> None:
        self.job = job
        self._thorough = not job.timed if thorough is None else thorough
        bad_imports: dict[str, Finding] = {}
        # "cpu" even on a GPU: looking at streams would initialize the device, which no import may do.
        settings = ProcessState("cpu")

        def check_import(module: str) -> None:
            if (changed := settings.changed()) is not None:
                bad_imports[module] = Finding(
                    status=Status.MISMATCH, place=Place.IMPORT, name="import", check="process_state", message=changed
                )
            settings.restore()

        began = time.perf_counter()
        self.catalog = discover(job.variant_files, check_import)
        self._compile_time = compile_time()
        self._import_s = time.perf_counter() - began
        self._states = {v.id: _VariantState(bad_import=bad_imports.get(v.origin)) for v in self.catalog.variants}
        interpreter.quicken()
        self._interpreter = interpreter.launch_counter()
        self.timer: CudaTimer | None = None
        self._clocks = None
        #: What kinds of work item that rooms add keep in this process.
        self.kept: dict[type, Any] = {}
        self._idle_since = -math.inf
        #: Known once the device is up.
        self._machine: str | None = None
        #: Operator -> batches of its edge cases, only of the one whose variants are being verified.
        self._known: dict[str, dict[Any, Batch]] = {}
        self._compiled: dict[str, dict[str, str]] = {}
        #: Seconds of verification before the calibration.
        self._verified_s: Counter[str] = Counter()

    def bring_up(self) -> Environment:
        """Bring the device up, or compile CUDA sources where there is no GPU."""
        if self.job.device == "cuda":
            from spec_decode_bench.harness.timing.clocks import Clocks
            from spec_decode_bench.harness.timing.cuda_timer import CudaTimer

            self.timer = CudaTimer(self.job.measure.graph_copies, self.job.measure.cache, lock_of(self.job.host_lock))
            self._clocks = Clocks()
        elif self.job.compiled:
            self._compiled = compile_all(self.job.compiled)
        needs = package_needs(self.catalog.variants)
        self._environment = describe(self.job.device, self._clocks, versions(needs), checkouts(needs))
        self._machine = machine_hash(self._environment)
        return self._environment

    def ready(self, timed: bool = True) -> Ready:
        """On a GPU, ramp the clocks and calibrate, if anything is to be timed."""
        calibration, seconds = None, {"import": self._import_s, **self._verified_s}
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

    # --- the variants of a point --------------------------------------------------------------------------------------

    def cells(self, item: Cells) -> Iterator[Heartbeat | Outputs | Cell]:
        """All variants of an item: check each, then time those that passed. Raises ContextLost; the session asks
        another process for the variants whose cells it did not get.
        """
        operator, point = self.catalog.operators[item.operator], Point(item.axes)
        try:
            at = _At(item, operator, point, reason_to_skip(operator, point))
        except Exception as error:  # the operator's own code
            failure = wrong(error) | {"message": f"the operator's redundant= raised {first_line(error)}"}
            yield from (item.failed(name, **failure) for name in item.variants)
            return
        for name in item.variants:
            yield Heartbeat(name, "verify")
            began, compiled_s = time.perf_counter(), self.compiled_s
            for event in self._check(at, self.catalog.find(item.operator, name)):
                yield self._described(item, event, self.spent(began, compiled_s))
            at.seconds[name] = self.spent(began, compiled_s)
        if at.verified:
            idle_s = time.perf_counter() - self._idle_since
            if ramp_s := next((ramp_s for least_s, ramp_s in RAMPS.items() if idle_s > least_s), 0.0):
                with nvtx_range("ramp", "ramp"):
                    self.ramp(ramp_s)
            measuring, began = Measuring(self.job, self.timer, self._clocks), time.perf_counter()
            for event in measuring.time(item, at.fixture, at.verified):
                share_s = (time.perf_counter() - began) / len(at.verified)
                yield self._described(item, event, at.seconds[event.variant] | {"time": share_s})
            self._idle_since = time.perf_counter()

    def spent(self, began: float, compiled_s: float) -> dict[str, float]:
        """Seconds of verification by activity. began, compiled_s: perf_counter and seconds of compilation before it."""
        compiling_s = self.compiled_s - compiled_s
        return {"compile": compiling_s, "verify": time.perf_counter() - began - compiling_s}

    @property
    def compiled_s(self) -> float:
        """Seconds of compilation in this process."""
        return self._compile_time.seconds

    def _described(self, item: Cells, event: Any, seconds: dict[str, float]) -> Any:
        """The event; of a cell, with its seconds, and its proof if it passed without its edge cases."""
        if not isinstance(event, Cell):
            return event
        proof = self.proof_of(item, event.variant) if event.status is Status.PASSED else None
        return structs.replace(event, proof=proof, seconds=rounded(seconds))

    def _check(self, at: _At, variant: Variant) -> Iterator[Heartbeat | Cell]:
        """Yields the variant's cell, or puts its launch into ``at.verified``."""
        item, name, state = at.item, variant.name, self._states[variant.id]

        if reason := unavailable(variant, self.job.device):
            yield item.cell(name, Status.UNAVAILABLE, reason=reason)
            return
        try:
            reason = at.redundant or reason_to_skip(variant, at.point)
        except Exception as error:  # a variant may raise anything
            yield item.failed(name, **wrong(error) | {"message": f"its skip= raised {first_line(error)}"})
            return
        if reason:
            yield item.cell(name, Status.SKIPPED, reason=reason)
            return

        if not (state.edge_cases_done or self.proof_of(item, name)):
            yield from self._check_edge_cases(variant)
        if state.rejection is not None:
            yield item.cell(name, state.rejection.status, finding=state.rejection)
            check_context(self.job.device)
            return
        if reason := self._out_of_time(variant, at.kind):
            yield item.cell(name, Status.SKIPPED, reason=reason)
            return
        try:
            launch = self._check_point(at, variant)
        except LeftOut as left_out:
            yield item.cell(name, Status.SKIPPED, reason=left_out.reason)
        except _NoInputs as error:
            yield item.failed(name, error=type(error.__cause__).__name__, message=str(error))
            check_context(self.job.device)
        except Exception as error:  # a variant may raise anything
            yield item.failed(name, **wrong(error))
            check_context(self.job.device)
        else:
            if self.job.timed and not state.interpreted and not item.in_array:
                at.verified.append((variant, launch))
            else:
                remark = Reason(code=Code.INTERPRETED) if state.interpreted else None
                metrics = None if item.in_array else Metrics(bytes_moved=at.fixture.bytes_moved)
                yield item.cell(name, Status.PASSED, reason=remark, metrics=metrics)

    def proof_of(self, item: Cells, name: str) -> Proof | None:
        """What stands for the edge cases of a variant here: one of another machine does not."""
        state = self._states[item.id_of(name)]
        return item.proven.get(name) if item.machine == self._machine and not state.edge_cases_done else None

    def _check_edge_cases(self, variant: Variant) -> Iterator[Heartbeat]:
        """Up to the first edge case or sequence that the variant does not pass."""
        state = self._states[variant.id]
        state.edge_cases_done = True
        findings: list[Finding] = []
        for finding in self._findings(variant):
            yield Heartbeat(variant.name, "verify")
            findings.append(finding)
            if finding.status.is_bad:
                state.rejection = finding
                return
        if is_unverified(findings):
            left_out_by = "skip= and known_failures= leave" if variant.known_failures else "skip= leaves"
            message = f"unverified: its {left_out_by} out every edge case"
            state.rejection = Finding(status=Status.FAILED, place=Place.EDGE_CASE, name="", message=message)

    def _check_point(self, at: _At, variant: Variant) -> Callable[[], Any]:
        """The variant's launch, set up on the fixture of the point and verified there. Raises LeftOut, _NoInputs, and
        whatever the variant does.
        """
        item, state = at.item, self._states[variant.id]
        if at.fixture is None and (reason := too_large(at.operator, at.point, self.job.device)):
            raise LeftOut(reason)
        with nvtx_range(item.key(variant.name), "verify", at.values):
            try:
                at.fixture = at.fixture or Fixture(
                    at.operator,
                    at.point,
                    self.job.device,
                    self.job.seed,
                    batches=2 if item.in_array else 3,
                    placement=0 if self.timer and at.kind == SWEEP else None,
                )
                if not item.in_array:
                    _ = at.fixture.bytes_moved  # computed here, so that an error in it is reported as the operator's
            except Exception as error:  # the operator's own code, or memory
                raise _NoInputs(f"could not make inputs at this point: {first_line(error)}") from error
            if item.in_array and is_beyond(variant, at.fixture):
                raise LeftOut(Reason(code=Code.KNOWN_FAILURE))
            with self._counting(variant, at.kind):
                once = state.interpreted or item.in_array or self.proof_of(item, variant.name) is not None
                return verify_cell(at.fixture, variant, once=once)

    @contextmanager
    def _counting(self, variant: Variant, kind: str) -> Iterator[None]:
        """Count the seconds against the variant's budget if Triton's interpreter runs meanwhile; so does torch.compile,
        which compiles again for other sizes, beside the points of a sweep. A point of the array and a random batch may
        take a share of it.
        """
        state, budget_s = self._states[variant.id], self.job.measure.interpreter_budget_s
        began, launches_before = time.perf_counter(), self._interpreter.launches
        try:
            with self._interpreter.limited(math.inf if kind == SWEEP else budget_s / SHARES):
                yield
        except Exception:
            if self._interpreter.ran_out:
                raise LeftOut(self._budget_spent) from None
            raise
        finally:
            interpreted = self._interpreter.launches > launches_before
            state.interpreted = state.interpreted or interpreted
            compiled = COMPILER in variant.requires and kind != SWEEP
            if interpreted or compiled:
                state.slow_s[kind] += time.perf_counter() - began

    @property
    def _budget_spent(self) -> Reason:
        return Reason(code=Code.INTERPRETER_BUDGET, seconds=self.job.measure.interpreter_budget_s)

    def _out_of_time(self, variant: Variant, kind: str) -> Reason | None:
        """Why a variant runs at no further point or batch; None while it has time left."""
        spent = self._states[variant.id].slow_s[kind] > self.job.measure.interpreter_budget_s
        return self._budget_spent if spent else None

    # --- for rooms ---------------------------------------------------------------------------------------------------

    def check_at(self, item: Cells, point: Point, variant: Variant) -> Iterator[Heartbeat | Cell]:
        """Check a variant at its edge cases and at an item's point. Yields its cell only if it must not be timed."""
        return self._check(_At(item, self.catalog.operators[item.operator], point, redundant=None), variant)

    def ramp(self, seconds: float) -> None:
        """Bring the clock of a GPU up."""
        if self.timer is not None:
            self.timer.ramp(seconds)

    # --- edge cases, sequences, random batches -----------------------------------------------------------------------

    def verify(self, item: Verify) -> Iterator[Checked]:
        """Findings of one variant, healthy or defective, at its edge cases and in its sequences, or at one of them.
        Raises ContextLost.
        """
        variant = self.catalog.find(item.operator, item.variant)
        if self.job.timed:
            return self._verified_first(item, variant)
        if item.known_failure:
            findings = [self._at_known_failure(variant, item)]
        elif item.axes is not None or item.name is not None:
            findings = self._findings(variant, _restricted(self.catalog.operators[item.operator], item))
            if item.axes is not None:
                findings = itertools.chain(findings, self._as_random_batch(variant, Point(item.axes)))
        else:
            findings = self._findings(variant)
        return (_told(item, finding) for finding in findings)

    def _as_random_batch(self, variant: Variant, point: Point) -> Iterator[Finding]:
        """What a random batch of this seed finds at an alignment that edge cases do not have."""
        from spec_decode_bench.harness.verify.random_batches import Drawn, checked

        batch = Drawn(point, self.job.seed)
        if self._states[variant.id].bad_import is None and batch.shift > 1:
            finding = checked(self.catalog.operators[variant.operator], variant, batch, self.job.device)
            if finding.status.is_bad:
                yield finding

    def _verified_first(self, item: Verify, variant: Variant) -> Iterator[Heartbeat | Checked]:
        """What ``cells`` does first for a variant, which it then does not repeat; the finding of one that is wrong."""
        if unavailable(variant, self.job.device):
            return
        began, compiled_s = time.perf_counter(), self.compiled_s
        yield from self._check_edge_cases(variant)
        self._verified_s.update(self.spent(began, compiled_s))
        if rejection := self._states[variant.id].rejection:
            yield _told(item, rejection)
            check_context(self.job.device)

    def _at_known_failure(self, variant: Variant, item: Verify) -> Finding:
        """The finding at a known failure. Far rows have one for each input, or none if memory is short; the first
        failure counts.
        """
        findings = list(self._findings(variant, only=(item.name, item.buffers)))
        if not findings:
            place = {"place": Place.EDGE_CASE, "name": item.name, "buffers": item.buffers}
            return Finding(**place, status=Status.SKIPPED, reason=Reason(code=Code.MEMORY))
        return judged_known_failure(next((finding for finding in findings if finding.status.is_bad), findings[0]))

    def _findings(
        self, variant: Variant, restricted: Operator | None = None, only: EdgeCaseName | None = None
    ) -> Iterator[Finding]:
        """At all edge cases and sequences of the operator, but those at which the variant has a known failure.

        restricted: the operator with some of them. only: exactly this one, even where it is a known failure.
        """
        operator, state = restricted or self.catalog.operators[variant.operator], self._states[variant.id]
        if state.bad_import is not None:
            yield state.bad_import
            return
        whole = restricted is None and only is None
        if whole and state.findings is not None:
            yield from state.findings
            return
        findings: list[Finding] = []
        with nvtx_range(cell_key(operator.name, variant.name, "edge cases"), "verify"):
            if operator.name not in self._known:
                self._known = {operator.name: {}}
            of = operator, variant, self.job.device, self.job.seed, self._thorough
            known = self._known[operator.name]
            announce = lambda place: self.send(Heartbeat(variant.name, "verify", **place))  # noqa: E731
            for finding in check_variant(*of, only=only, known=known, announce=announce):
                findings.append(finding)
                yield finding
                if finding.status.is_bad:
                    check_context(self.job.device)
        if whole:
            state.findings = findings

    def random_batches(self, item: RandomBatches) -> Iterator[Checked]:
        """Findings of one variant on random batches. Raises ContextLost."""
        from spec_decode_bench.harness.verify.random_batches import check_random

        operator, variant = self.catalog.operators[item.operator], self.catalog.find(item.operator, item.variant)
        state = self._states[variant.id]
        if state.bad_import is not None:
            yield _told(item, state.bad_import)
            return
        with nvtx_range(cell_key(operator.name, variant.name, "random batches"), "verify"):
            failed = check_random(
                operator,
                variant,
                self.job.device,
                self.job.seed,
                item.count,
                keep=lambda finding: self.send(_told(item, finding)),
                counting=lambda: self._counting(variant, RANDOM),
                out_of_time=lambda: self._out_of_time(variant, RANDOM),
                lost=lambda: is_context_lost(self.job.device),
                announce=lambda name, seed: self.send(
                    Heartbeat(variant.name, "verify", Place.RANDOM_BATCH, name, seed=seed)
                ),
            )
        if failed is not None:
            yield _told(item, failed)
        check_context(self.job.device)


def _told(item: Verify | RandomBatches, finding: Finding) -> Checked:
    return Checked(operator=item.operator, variant=item.variant, finding=finding)


def _restricted(operator: Operator, item: Verify) -> Operator:
    """The operator with one of its edge cases or sequences, or with a point of these axes as its only edge case."""
    if item.axes is not None:
        edge_cases, sequences = [EdgeCase(operator.label(item.axes), item.axes)], {}
    else:
        edge_cases = [case for case in operator.edge_cases if case.name == item.name]
        sequences = {name: steps for name, steps in operator.sequences.items() if name == item.name}
    return replace(operator, edge_cases=edge_cases, sequences=sequences)
