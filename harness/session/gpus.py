"""Several GPUs as one session: each has its own Session, which gets the next point as soon as it is free.

Runs in the parent process, which never touches a device. Each GPU has a thread, which waits for its worker processes;
points are handed out, and outcomes yielded, by the thread that iterates over ``SeveralGpus.run``. All cells of a point
come from one GPU. A GPU that is uncalibrated, throttled or broken returns its point and gets no more, as long as
another GPU is left.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import structs

from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import Cells, Checked, WorkItem
from spec_decode_bench.harness.records.differences import differences
from spec_decode_bench.harness.records.schema import Cell, Environment, Segment
from spec_decode_bench.harness.session.messages import Job, Ready
from spec_decode_bench.harness.session.session import Event, Progress, Session, calibration_errors, segment
from spec_decode_bench.harness.session.worker import RunError, Worker, start_worker
from spec_decode_bench.harness.wording import counted

#: A GPU gets no more points once this share of a point's samples was taken while it was throttled. Below it the samples
#: are kept and marked, as in a run on one GPU.
THROTTLED_SHARE = 0.1
#: Seconds after which the progress of all GPUs is shown again.
SHOWN_EVERY_S = 0.5
#: In the notes of a record.
LOCK_NOTE = "host times are measured under a lock, by one worker per machine at a time"


class Gpu(Protocol):
    """One GPU with its session, used by one thread; ``abort`` may be called by any.

    name: for messages, such as "GPU 1". timing_s: seconds for which it timed so far. doing: the current activity.
    """

    name: str
    timing_s: float
    doing: str

    def start(self) -> Ready:
        """Raises RunError."""

    def run(self, item: Cells) -> list[Cell | Segment]:
        """The outcomes of one point. Raises RunError where this GPU cannot go on."""

    def abort(self) -> None:
        """End its processes; a call that waits for them raises RunError."""

    def close(self, wait_s: float) -> None: ...


class LocalGpu:
    """A GPU of this machine. job: with the GPU in it. start: as in Session."""

    def __init__(self, name: str, job: Job, start: Callable[[Job], Worker] = start_worker) -> None:
        self.name, self.doing, self._make = name, "", start
        self._session = Session(job, self._started)
        self._workers: list[Worker] = []
        self._aborted = False

    @property
    def timing_s(self) -> float:
        return self._session.timing_s

    def start(self) -> Ready:
        return self._session.__enter__().ready

    def _started(self, job: Job) -> Worker:
        if not self._aborted:
            worker = self._make(job)
            self._workers.append(worker)
            if not self._aborted:
                return worker
            worker.kill()  # ``abort`` may have come too early for it
        raise RunError("the run has ended")

    def run(self, item: Cells) -> list[Cell | Segment]:
        return list(self.outcomes([item]))

    def outcomes(self, items: Sequence[WorkItem]) -> Iterator[Event]:
        """As Session.run has them; what it is doing goes to ``doing``."""
        for outcome in self._session.run(items):
            if self._aborted:  # it would say that a variant was killed
                raise RunError("the run has ended")
            if isinstance(outcome, Progress):
                self.doing = outcome.doing
            else:
                yield outcome

    def abort(self) -> None:
        self._aborted = True
        for worker in list(self._workers):
            worker.kill()

    def close(self, wait_s: float) -> None:
        self._session.close(0 if self._aborted else wait_s)


class Points:
    """The points that are left, and the seconds for timing them."""

    def __init__(self, items: Sequence[Cells], time_budget_s: float) -> None:
        self._left = list(items)
        self._budget_s = time_budget_s
        self._operators: dict[int, set[str]] = {}

    def __len__(self) -> int:
        return len(self._left)

    def take(self, member: int) -> Cells:
        """The next point for a GPU, with its share of the time budget.

        While there are some, it is one of an operator whose variants this GPU has verified and compiled already, and
        then one of the operator with the most cells left for each GPU that has.
        """
        own_operators = self._operators.setdefault(member, set())
        known = Counter(name for names in self._operators.values() for name in names)
        cells = Counter()
        for item in self._left:
            cells[item.operator] += len(item.variants)

        def preference(item: Cells) -> tuple[bool, float]:
            return item.operator in own_operators, cells[item.operator] / (1 + known[item.operator])

        item = max(self._left, key=preference)
        own_operators.add(item.operator)
        share_s = max(self._budget_s, 0.0) * len(item.variants) / cells.total()
        self._left.remove(item)
        self._budget_s -= share_s
        return structs.replace(item, budget_s=share_s)

    def return_time(self, seconds: float) -> None:
        """What a point did not use of its share; negative where it took more."""
        self._budget_s += seconds

    def give_back(self, item: Cells) -> None:
        self._left.insert(0, item)


@dataclass(eq=False)
class _Member:
    """number: of its first process in the record. processes: its session's numbers -> those of the record."""

    gpu: Gpu
    thread: ThreadPoolExecutor
    number: int = 0
    processes: dict[int, int] = field(default_factory=dict)
    ready: Ready | None = None


@dataclass(frozen=True)
class _UnderWay:
    member: _Member
    item: Cells
    timed_before_s: float


class SeveralGpus:
    """Has the interface of a Session: ``ready`` describes the first GPU, the others become segments of the record.

    gpus:       at least one, all of one model.
    on_warning: called with a sentence about a GPU that gets no more points.
    """

    def __init__(self, gpus: Sequence[Gpu], measure: Measure, on_warning: Callable[[str], None]) -> None:
        self._gpus, self._measure, self._on_warning = gpus, measure, on_warning
        self._everyone: list[_Member] = []
        self._members: list[_Member] = []
        self._dropped: list[str] = []
        self._numbers = itertools.count()

    def __enter__(self) -> SeveralGpus:
        """Raises RunError where no GPU can be used, or they differ."""
        self._everyone = [_Member(gpu, ThreadPoolExecutor(1, thread_name_prefix=gpu.name)) for gpu in self._gpus]
        try:
            self._start()
        except BaseException:
            self.close(wait_s=0)
            raise
        return self

    def __exit__(self, error: type | None, *_: Any) -> None:
        self.close(30.0 if error is None else 0)

    @property
    def ready(self) -> Ready:
        """Of the first GPU, with notes on the others."""
        first = self._members[0]
        names = ", ".join(f"{member.number}: {member.gpu.name}" for member in self._members)
        notes = (f"measured by {counted(len(self._members), 'worker')} ({names}); {LOCK_NOTE}", *self._dropped)
        environment = first.ready.environment
        return structs.replace(
            first.ready, environment=structs.replace(environment, notes=(*environment.notes, *notes))
        )

    @property
    def environment(self) -> Environment:
        return self.ready.environment

    def verify_first(self, items: Sequence[Cells]) -> Iterator[Checked]:
        """Nothing: every GPU verifies what it measures."""
        yield from ()

    def run(self, items: Sequence[Cells]) -> Iterator[Cell | Segment | Progress]:
        """The outcomes of all points, each of one GPU."""
        for member in self._members[1:]:
            yield segment(member.ready, member.gpu.name, self._measure.cache, member.number)
        done, total = 0, sum(len(item.variants) for item in items)
        points = Points(items, self._measure.time_budget_s)
        busy: dict[Future, _UnderWay] = {}
        while points or busy:
            at_work = [task.member for task in busy.values()]
            for member in [member for member in self._members if member not in at_work][: len(points)]:
                item = points.take(member.number)
                busy[member.thread.submit(member.gpu.run, item)] = _UnderWay(member, item, member.gpu.timing_s)
            for future in wait(busy, timeout=SHOWN_EVERY_S, return_when=FIRST_COMPLETED).done:
                for line in self._finished(points, busy.pop(future), future):
                    done += isinstance(line, Cell)
                    yield line
            for member in self._members:
                yield Progress(done, total, f"{member.gpu.name}: {member.gpu.doing}")
        yield Progress(total, total, "")

    def close(self, wait_s: float = 30.0) -> None:
        """End all processes; they get ``wait_s`` seconds to finish by themselves."""
        if not wait_s:
            for member in self._everyone:
                member.gpu.abort()
        for member in self._everyone:
            member.thread.submit(member.gpu.close, wait_s)
        for member in self._everyone:
            member.thread.shutdown()

    # --- GPUs ---------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Bring all GPUs up together, and keep those that can measure."""
        starting = {member.thread.submit(member.gpu.start): member for member in self._everyone}
        wait(starting)
        reasons: dict[str, str] = {}
        for future, member in starting.items():
            if isinstance(error := future.exception(), RunError):
                reasons[member.gpu.name] = str(error)
            else:
                member.ready = future.result()
        started = [member for member in self._everyone if member.ready is not None]
        if not started:
            raise RunError("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        _check_same_model(started)
        uncalibrated = {
            member.gpu.name: f"UNCALIBRATED: {errors[0]}"
            for member in started
            if (errors := calibration_errors(member.ready, self._measure.cache))
        }
        if len(uncalibrated) < len(started):  # else all go on, and the record says so
            reasons |= uncalibrated
        self._members = [member for member in started if member.gpu.name not in reasons]
        for member in self._members:
            member.number = member.processes[0] = next(self._numbers)
        for name, reason in reasons.items():
            self._dropped.append(f"{name} was not used: {reason}")
            self._on_warning(self._dropped[-1])

    # --- points -------------------------------------------------------------------------------------------------------

    def _finished(self, points: Points, task: _UnderWay, future: Future) -> Iterator[Cell | Segment]:
        """The lines of a point, unless another GPU measures it again. Raises RunError where there is none."""
        member, error = task.member, future.exception()
        if error is not None and not isinstance(error, RunError):
            raise error
        lines = [] if error else future.result()
        why = str(error) if error else _throttled(lines)
        points.return_time(task.item.budget_s - (member.gpu.timing_s - task.timed_before_s))
        if error and len(self._members) == 1:
            raise error
        if why is not None and len(self._members) > 1:
            yield self._retired(member, why)
            points.give_back(task.item)
            lines = [line for line in lines if isinstance(line, Segment)]
        for line in lines:
            if line.process not in member.processes:
                member.processes[line.process] = next(self._numbers)
            yield structs.replace(line, process=member.processes[line.process])

    def _retired(self, member: _Member, why: str) -> Segment:
        self._members.remove(member)
        text = f"{member.gpu.name} hands its points to the other GPUs: {why}"
        self._on_warning(text)
        # A line, so that the record names it, too; its cells so far are good.
        return segment(member.ready, text, self._measure.cache, next(self._numbers))


def _check_same_model(members: Sequence[_Member]) -> None:
    """Raises RunError where cells of these GPUs must not be in the same record, and where two are one and the same."""
    first, *others = members
    known: dict[str, str] = {}
    for member in members:
        gpu_id = member.ready.environment.gpu_id
        if gpu_id is not None and (other := known.setdefault(gpu_id, member.gpu.name)) != member.gpu.name:
            raise RunError(
                f"{other} and {member.gpu.name} are the same device, so they would disturb each other; name it once"
            )
    for other in others:
        for difference in differences(first.ready.environment, other.ready.environment, "one_record"):
            raise RunError(
                f"{other.gpu.name} has {difference.name} {difference.theirs}, {first.gpu.name} has "
                f"{difference.ours}; a record holds one kind of GPU and machine, so run them one after the other"
            )


def _throttled(lines: Sequence[Any]) -> str | None:
    """Why a GPU is too slow now to go on; None where it is not."""
    metrics = [line.metrics for line in lines if isinstance(line, Cell) and line.metrics and line.metrics.rounds]
    rounds = sum(cell_metrics.rounds for cell_metrics in metrics)
    disturbed = sum(cell_metrics.disturbed for cell_metrics in metrics)
    if disturbed <= THROTTLED_SHARE * rounds:
        return None
    reasons = Counter()
    for cell_metrics in metrics:
        reasons.update(cell_metrics.discarded)
    reason = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
    return f"throttled or below its clock{reason} in {disturbed} of {counted(rounds, 'sample')} of a point"
