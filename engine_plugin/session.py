"""Follows the steps of an engine in the process that runs its model: captures, checks, applies, or measures.

The adapter calls ``begin`` when a step begins, asks ``arm_of`` which arm prepares an operator's part of it, and hands
over what it compared, captured and timed. Everything is on disk when the next step begins, so an engine that dies loses
at most the block that it was in.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import torch

from spec_decode_bench.engine_plugin.configuration import EnginePlan
from spec_decode_bench.engine_plugin.records import EngineBlock, first_difference
from spec_decode_bench.harness import captures
from spec_decode_bench.harness.captures import CaptureWriter
from spec_decode_bench.harness.config.load import LoadedConfig
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.discover import discover, unavailable
from spec_decode_bench.harness.errors import UsageError, did_you_mean, first_line
from spec_decode_bench.harness.records.file import Writer
from spec_decode_bench.harness.records.schema import SCHEMA_VERSION, Finding, Header, Place, Status
from spec_decode_bench.harness.timing.environment import describe

ENGINE, PACKED, SUITE = "engine", "packed", "suite"


class Entry(NamedTuple):
    """Inputs of an operator as ``CaptureWriter.add`` takes them."""

    operator: str
    axes: Mapping[str, Any]
    tensors: Mapping[str, Any]


class Clock(NamedTuple):
    """When a step began: seconds, those of them in which this thread had a CPU, and the number of that CPU."""

    now: float
    busy: float
    cpu: int

    @classmethod
    def read(cls) -> Clock:
        return cls(perf_counter(), thread_time(), _cpu_number())


_cpu_number = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: 0)


class Step(NamedTuple):
    """rows: requests. decodes: whether all of them decode with all their drafts. computed: request -> tokens that are
    computed, as the scheduler counts them; called only where it is needed.
    """

    rows: int
    decodes: bool
    computed: Callable[[], Mapping[str, int]]


@dataclass
class Block:
    """What is known of the steps of a block so far. seen: steps since it began or was interrupted."""

    seen: int = 0
    itl_us: list[float] = field(default_factory=list)
    host_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    busy_us: list[float] = field(default_factory=list)
    cpus: list[int] = field(default_factory=list)
    before: Mapping[str, int] | None = None


class Session:
    """Of one process. Nothing is written before its first step."""

    def __init__(self, source: LoadedConfig, version: str) -> None:
        self.source, self.version = source, version
        self.plan: EnginePlan = source.settings
        self.arm: str = ENGINE
        self.checking = self.capturing = False
        self.steps = 0
        self.variants: dict[str, Variant] = {}
        self._off: set[str] = set()
        self._host: dict[str, float] = {}
        self._previous: tuple[Clock, Step] | None = None
        self._block = Block()
        self._checked, self._uncovered = Counter(), Counter()
        self._numbers: Counter[int] = Counter()
        self._number = 0
        #: Batch size -> arms whose launches are not counted yet, of those that are measured.
        self._uncounted: dict[int, list[str]] = {}
        self._profiler: torch.profiler.profile | None = None
        self._counting = False
        self._launches: dict[str, int] = {}
        self._compared = 0
        self._prefill_us: list[float] = []
        self._captured_us: list[float] = []
        self._captured, self._bytes, self._left_out = 0, 0, Counter()
        self._writer: Writer | None = None
        self._capture: CaptureWriter | None = None
        self._is_on = True

    # --- what adapters ask ------------------------------------------------------------------------------------------

    def arm_of(self, operator: str) -> str:
        """What prepares an operator's part of this step."""
        return ENGINE if operator in self._off or operator not in self.plan.stack else self.arm

    def is_checked(self, operator: str) -> bool:
        """Whether its results are compared in this step."""
        return self.checking and operator in self.plan.stack and operator not in self._off

    @property
    def checked_arms(self) -> list[str]:
        return [arm for arm in self.plan.arms if arm != ENGINE] if self.plan.mode == "measure" else [SUITE]

    # --- what adapters hand over ------------------------------------------------------------------------------------

    def spent(self, operator: str, seconds: float) -> None:
        """Of the host in the functions that an operator stands for, in this step."""
        self._host[operator] = self._host.get(operator, 0.0) + 1e6 * seconds

    def count(self) -> None:
        """From here to ``counted``: launches of an operator."""
        if not self._counting:
            return
        try:
            torch.cuda.synchronize()
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profiler.start()
        except Exception as error:
            self._uncountable(error)

    def counted(self, operator: str) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        try:
            torch.cuda.synchronize()
            profiler.stop()
            on_gpu = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
            self._launches[operator] = self._launches.get(operator, 0) + len(on_gpu)
        except Exception as error:
            self._uncountable(error)

    def _uncountable(self, error: Exception) -> None:
        self._counting, self._profiler = False, None
        say(f"launches are not counted: {first_line(error)}")

    def leave(self, operator: str) -> None:
        """A step that its variant does not cover."""
        self._uncovered[operator] += 1

    def compare(self, operator: str, arm: str, results: Mapping[str, tuple[Any, Any]]) -> None:
        """results: name -> (the engine's own, those of the arm), as far as somebody reads them. The first difference
        switches the operator off.
        """
        self._checked[operator] += 1
        self._compared += 1
        variant = f"{operator}/{self.plan.stack[operator] if arm == SUITE else arm}"
        for tensor, (expected, got) in results.items():
            if finding := first_difference(variant, self.steps, tensor, expected, got):
                return self.switch_off(operator, finding)
        return None

    def failed(self, operator: str, error: Exception) -> None:
        """What it raised switches an operator off."""
        finding = Finding(
            status=Status.FAILED,
            place=Place.POINT,
            variant=f"{operator}/{self.plan.stack[operator]}",
            name=f"step {self.steps}",
            error=type(error).__name__,
            message=first_line(error),
        )
        self.switch_off(operator, finding)

    def switch_off(self, operator: str, finding: Finding) -> None:
        self._off.add(operator)
        say(f"{finding.variant}: {finding.message}. It is off from here on, and the engine uses its own functions")
        self._write(self._line(self._previous[1].rows, status=finding.status, finding=finding))

    def capture(self, read: Callable[[], Iterable[Entry | str]]) -> None:
        """Write the inputs of operators, in a step that is captured. read: makes them; a text instead of one says why
        no point of the operator describes it.
        """
        if not self.capturing or is_capturing():
            return
        try:
            for entry in read():
                if isinstance(entry, str):
                    self._left_out[entry] += 1
                else:
                    self._bytes += self._capture.add(self.steps, *entry)
        except Exception as error:
            self._end(f"{first_line(error)}; nothing more is captured in this process")

    # --- steps ------------------------------------------------------------------------------------------------------

    def begin(self, step: Step, model: Callable[[], Mapping[str, Any]]) -> None:
        """A step begins. Raises nothing: what goes wrong here ends the plugin's work, not the engine's.

        model: what there is to say of the model: {"model": ..., "method": ..., "num_drafts": ...}.
        """
        if not self._is_on:
            return
        now = Clock.read()
        try:
            if self._writer is None:
                self._start(model())
            last, self._previous = self._previous, (now, step)
            self.steps += 1
            host, self._host = self._host, {}
            if self.plan.mode == "capture":
                self._begin_captured(now, last, step)
            elif self.plan.mode == "measure":
                self._begin_measured(now, last, step, host)
            else:
                self._begin_applied(now, last, step, host)
        except Exception as error:
            self._end(f"{first_line(error)}; nothing more is measured or applied in this process")

    def _end(self, why: str) -> None:
        self._is_on = self.checking = self.capturing = False
        self.arm = ENGINE
        say(why)

    def _start(self, model: Mapping[str, Any]) -> None:
        """Files of this process, and the variants of the stack."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        catalog = discover(self.plan.variants)
        for operator, name in self.plan.stack.items():
            names = [variant.name for variant in catalog.of(operator)]
            if name not in names:
                raise self.source.error(
                    f"engine_plugin.stack.{operator}", f"no variant {name!r} of {operator}{did_you_mean(name, names)}"
                )
            self.variants[operator] = catalog.find(operator, name)
            if reason := unavailable(self.variants[operator], device):
                raise UsageError(f"{operator}/{name} needs {reason.detail}")
        environment = describe(device, packages={"vllm": self.version})
        header = Header(
            schema=SCHEMA_VERSION,
            name=self.source.config.name,
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seed=0,
            variants=tuple("/".join(part) for part in self.plan.stack.items()),
            config={**self.source.recorded, "engine": dict(model)},
            environment=environment,
        )
        stem = Path(self.plan.out) / f"{header.name}-{os.getpid()}"
        if self.plan.mode == "capture":
            speculative = captures.Speculative(method=model["method"], num_drafts=model["num_drafts"])
            about = captures.Header(
                engine="vllm",
                engine_version=self.version,
                model=model["model"],
                speculative=speculative,
                commit=environment.commit or "",
                gpu=environment.gpu or "",
                created=header.started,
            )
            self._capture = CaptureWriter(stem.with_name(f"{stem.name}.capture"), about)
        self._writer = Writer(stem.with_name(f"{stem.name}.jsonl"), resumable=False)
        self._writer.write(header)
        say(f"{self.plan.mode} in process {os.getpid()}: {self._writer.path}")

    def _begin_captured(self, now: Clock, last: tuple[Clock, Step] | None, step: Step) -> None:
        if last is not None:
            taken = self._captured_us if self.capturing else self._block.itl_us
            taken.append(1e6 * (now.now - last[0].now))
        if self.capturing or len(self._block.itl_us) >= self.plan.steps:
            self._write(self._line(last[1].rows))
        self.capturing = self.steps % self.plan.every == 0 and self._captured < self.plan.limit
        self._captured += self.capturing
        if not self.capturing and self._captured == self.plan.limit:
            left = "".join(f"; left out: {count} x {why}" for why, count in self._left_out.items())
            self._end(f"captured {self._captured} steps in {self._bytes} bytes: {self._capture.path}{left}")

    def _begin_applied(
        self, now: Clock, last: tuple[Clock, Step] | None, step: Step, host: Mapping[str, float]
    ) -> None:
        if last is not None and self._is_sample(last, step):
            self._sample(now, last, host)
        if len(self._block.itl_us) >= self.plan.steps:
            self._write(self._line(last[1].rows))
        self.arm = SUITE
        self.checking = (
            self.plan.mode == "check" or self._compared < self.plan.first or self.steps % self.plan.every == 0
        )

    def _begin_measured(
        self, now: Clock, last: tuple[Clock, Step] | None, step: Step, host: Mapping[str, float]
    ) -> None:
        launches, self._launches, self._counting = self._launches, {}, False
        if launches:
            self._write(self._line(last[1].rows, launches=launches))
        if last is None or not self._is_sample(last, step):
            if last is not None and not last[1].decodes:
                self._prefill_us.append(1e6 * (now.now - last[0].now))
            self._block = Block()
        else:
            self._sample(now, last, host)
            if len(self._block.itl_us) == self.plan.steps:
                self._numbers[step.rows] += 1
                self._write(self._line(step.rows, self._tokens(step)))
        turn, place = divmod(self._numbers[step.rows], 2 * len(self.plan.arms))
        if turn == self.plan.rounds:
            return self._begin_counted(step)
        if self._block.seen == self.plan.settle:
            self._block.before = step.computed()
        self.checking = step.decodes and self._is_first(step.rows)
        self.arm = order(self.plan.arms, turn)[place]

    def _begin_counted(self, step: Step) -> None:
        """Behind all blocks of a batch size, the launches of each arm."""
        if step.rows not in self._uncounted:
            self._uncounted[step.rows] = list(self.plan.arms) if torch.cuda.is_available() else []
            say(f"batch size {step.rows}: {self.plan.rounds} rounds are measured")
        waiting = self._uncounted[step.rows]
        self._counting = bool(waiting and step.decodes)
        self._prefill_us = []
        self._block, self.checking, self.arm = Block(), False, waiting.pop(0) if self._counting else ENGINE

    def _is_first(self, rows: int) -> bool:
        """Whether a step of this batch size belongs to those that are compared before the first block."""
        return not self._numbers[rows] and self._block.seen < min(self.plan.first, self.plan.settle)

    @staticmethod
    def _is_sample(last: tuple[Clock, Step], step: Step) -> bool:
        """Whether the time between the starts of two steps is one of a decode of unchanged requests."""
        return last[1].decodes and step.decodes and last[1].rows == step.rows

    def _sample(self, now: Clock, last: tuple[Clock, Step], host: Mapping[str, float]) -> None:
        self._block.seen += 1
        if self._block.seen > self.plan.settle:
            self._block.itl_us.append(round(1e6 * (now.now - last[0].now), 2))
            self._block.busy_us.append(round(1e6 * (now.busy - last[0].busy), 2))
            self._block.cpus.append(last[0].cpu)
            for operator, us in host.items():
                self._block.host_us[operator].append(round(us, 2))

    def _tokens(self, step: Step) -> float | None:
        """Mean of the tokens that requests received in a step of the block."""
        after, before = step.computed(), self._block.before or {}
        grown = [count - before[request] for request, count in after.items() if request in before]
        return sum(grown) / len(grown) / len(self._block.itl_us) if grown else None

    def _line(
        self,
        rows: int,
        tokens: float | None = None,
        launches: Mapping[str, int] = {},
        status: Status = Status.PASSED,
        finding: Finding | None = None,
    ) -> EngineBlock:
        self._number += 1
        number = self._numbers[rows]
        applied = {name: variant for name, variant in self.plan.stack.items() if name not in self._off}
        arm = self.arm if applied else ENGINE
        line = EngineBlock(
            status=status,
            finding=finding,
            launches=dict(launches),
            mode=self.plan.mode,
            arm=arm,
            batch=rows,
            number=self._number,
            turn=(number - 1) // (2 * len(self.plan.arms)) if number else 0,
            itl_us=self._block.itl_us,
            host_us=dict(self._block.host_us),
            busy_us=self._block.busy_us,
            cpus=self._block.cpus,
            tokens=tokens,
            prefill_us=self._prefill_us,
            checked=dict(self._checked),
            uncovered=dict(self._uncovered),
            captured_us=self._captured_us,
            captured_bytes=self._bytes,
            variants=applied if arm == SUITE else {},
        )
        self._block, self._prefill_us, self._captured_us = Block(), [], []
        self._checked.clear()
        self._uncovered.clear()
        return line

    def _write(self, line: EngineBlock) -> None:
        self._writer.write(line)


def order(arms: list[str], turn: int) -> list[str]:
    """A B C C B A, from one turn to the next rotated: a drift in time is the same for all arms."""
    there = [*arms[turn % len(arms) :], *arms[: turn % len(arms)]]
    return there + there[::-1]


def say(text: str) -> None:
    """A sentence on stderr, beside the engine's log."""
    print(f"spec_decode_bench: {text}", file=sys.stderr, flush=True)


def is_capturing() -> bool:
    """Whether a graph is being captured on the current stream."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
