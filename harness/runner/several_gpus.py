"""A run on several GPUs: one Runner each, which gets the next point as soon as it is free. No fixed shards.

Runs in the parent process, which never touches a device. Each GPU has a thread, which waits for its worker processes;
points are handed out, and lines written, by the thread that calls ``SeveralGpus.run``. All cells of a point come from
one GPU. A GPU whose timer is not calibrated, that is throttled, or that cannot go on, gives its point back and gets no
more, as long as there is another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from msgspec import structs

from harness.config.sweep import Group
from harness.records.merge import SAME_ENVIRONMENT
from harness.records.schema import Cell, Segment
from harness.runner.protocol import Job, Ready
from harness.runner.run import Progress, Runner, WallTime, calibration_errors, segment
from harness.runner.worker import RunError, Worker
from harness.wording import counted

#: A GPU gets no more points once this share of a point's samples was taken while it was throttled. Below it the samples
#: are kept and marked, as in a run on one GPU.
THROTTLED_SHARE = 0.1
#: In the notes of a record.
LOCK_NOTE = "host times are taken under a lock: while one worker measures host time, no other one of its machine does"


class Gpu(Protocol):
    """One GPU with its worker processes, used by one thread; ``abort`` may be called by any.

    name: for messages, such as "GPU 1". wall_time: seconds so far, by activity.
    """

    name: str
    wall_time: WallTime

    def start(self, on_progress: Callable[[Progress], None]) -> Ready:
        """Raises RunError."""

    def point(self, group: Group, budget_s: float) -> list[Cell | Segment]:
        """The lines of one point. Raises RunError where this GPU cannot go on."""

    def abort(self) -> None:
        """End its processes; a call that waits for them raises RunError."""

    def close(self, wait_s: float) -> None: ...


class LocalGpu:
    """A GPU of this machine. job: with the GPU in it. start: as in Runner."""

    def __init__(self, name: str, job: Job, start: Callable[[Job], Worker] | None = None) -> None:
        self.name, self._job, self._make = name, job, start or Worker
        self.wall_time = WallTime()
        self._runner: Runner | None = None
        self._lines: list[Cell | Segment] = []
        self._workers: list[Worker] = []
        self._aborted = False

    def start(self, on_progress: Callable[[Progress], None]) -> Ready:
        self._runner = Runner(self._job, self._lines.append, on_progress, self._started)
        self.wall_time = self._runner.wall_time
        return self._runner.ready

    def _started(self, job: Job) -> Worker:
        if not self._aborted:
            worker = self._make(job)
            self._workers.append(worker)
            if not self._aborted:
                return worker
            worker.kill()  # ``abort`` may have come too early for it
        raise RunError("the run has ended")

    def point(self, group: Group, budget_s: float) -> list[Cell | Segment]:
        self._lines.clear()
        self._runner.point(group, budget_s)
        return list(self._lines)

    def abort(self) -> None:
        self._aborted = True
        for worker in list(self._workers):
            worker.kill()

    def close(self, wait_s: float) -> None:
        if self._runner is not None:
            self._runner.close(0 if self._aborted else wait_s)


class Points:
    """The points that are left, and the seconds for timing them."""

    def __init__(self, groups: Sequence[Group], time_budget_s: float) -> None:
        self._left = list(groups)
        self._budget_s = time_budget_s
        self._operators: dict[int, set[str]] = {}

    def __len__(self) -> int:
        return len(self._left)

    def take(self, worker: int) -> tuple[Group, float]:
        """The next point for a worker, and its share of the time budget.

        While there are some, it is one of an operator whose variants the worker has verified and compiled already, and
        then one of the operator with the most cells left for each worker that has.
        """
        mine = self._operators.setdefault(worker, set())
        known = Counter(name for names in self._operators.values() for name in names)
        cells = Counter()
        for group in self._left:
            cells[group.operator.name] += len(group.variants)

        def preference(group: Group) -> tuple[bool, float]:
            name = group.operator.name
            return name in mine, cells[name] / (1 + known[name])

        group = max(self._left, key=preference)
        mine.add(group.operator.name)
        share_s = max(self._budget_s, 0.0) * len(group.variants) / cells.total()
        self._left.remove(group)
        self._budget_s -= share_s
        return group, share_s

    def return_time(self, seconds: float) -> None:
        """What a point did not use of its share; negative where it took more."""
        self._budget_s += seconds

    def give_back(self, group: Group) -> None:
        self._left.insert(0, group)


@dataclass(eq=False)
class _Member:
    """number: as in the record, 0 for the GPU of its header. doing: what its progress said last."""

    gpu: Gpu
    thread: ThreadPoolExecutor
    number: int = 0
    ready: Ready | None = None
    doing: str = ""


@dataclass(frozen=True)
class _UnderWay:
    member: _Member
    group: Group
    budget_s: float
    timed_before_s: float


@dataclass
class SeveralGpus:
    """Has the interface of a Runner: ``ready`` describes the first GPU, the others become segments of the record.

    gpus:        at least one, all of one model.
    on_line, on_progress: as in Runner; called by the thread that calls ``run``, and by any.
    on_warning:  called with a sentence about a GPU that gets no more points.
    time_budget_s, cache: of the configuration.

    Raises RunError where no GPU can be used, or they differ.
    """

    gpus: Sequence[Gpu]
    on_line: Callable[[Cell | Segment], None]
    on_progress: Callable[[Progress], None]
    on_warning: Callable[[str], None]
    time_budget_s: float
    cache: str
    _members: list[_Member] = field(default_factory=list, init=False)
    _dropped: list[str] = field(default_factory=list, init=False)
    _done: int = field(default=0, init=False)
    _total: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._everyone = [_Member(gpu, ThreadPoolExecutor(1, thread_name_prefix=gpu.name)) for gpu in self.gpus]
        try:
            self._start()
        except BaseException:
            self.close(wait_s=0)
            raise

    @property
    def ready(self) -> Ready:
        """Of the first GPU, with notes on the others."""
        first = self._members[0]
        names = ", ".join(f"{member.number}: {member.gpu.name}" for member in self._members)
        notes = (f"measured by {counted(len(self._members), 'worker')} ({names}); {LOCK_NOTE}", *self._dropped)
        environment = first.ready.environment
        return replace(first.ready, environment=structs.replace(environment, notes=(*environment.notes, *notes)))

    @property
    def wall_time(self) -> WallTime:
        """The mean over all GPUs."""
        spent = [member.gpu.wall_time for member in self._everyone]
        audited = [one.auditing for one in spent if one.auditing is not None]
        mean = lambda name: sum(getattr(one, name) for one in spent) / len(spent)  # noqa: E731
        auditing = sum(audited) / len(spent) if audited else None
        return WallTime(mean("starting"), mean("verifying"), mean("timing"), auditing)

    def run(self, groups: Sequence[Group]) -> None:
        """All groups, each by one GPU. Raises RunError."""
        for member in self._members[1:]:
            self.on_line(segment(member.ready, member.gpu.name, self.cache, member.number))
        self._total = sum(len(group.variants) for group in groups)
        points = Points(groups, self.time_budget_s)
        busy: dict[Future, _UnderWay] = {}
        while points or busy:
            at_work = [one.member for one in busy.values()]
            for member in [member for member in self._members if member not in at_work][: len(points)]:
                group, budget_s = points.take(member.number)
                future = member.thread.submit(member.gpu.point, group, budget_s)
                busy[future] = _UnderWay(member, group, budget_s, member.gpu.wall_time.timing)
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                self._finish(points, busy.pop(future), future)
        self.on_progress(Progress(self._total, self._total, ""))

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
        starting = {
            member.thread.submit(member.gpu.start, lambda progress, member=member: self._show(member, progress)): member
            for member in self._everyone
        }
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
            if (errors := calibration_errors(member.ready, self.cache))
        }
        if len(uncalibrated) < len(started):  # else all go on, and the record says so
            reasons |= uncalibrated
        self._members = [member for member in started if member.gpu.name not in reasons]
        for number, member in enumerate(self._members):
            member.number = number
        for name, reason in reasons.items():
            self._dropped.append(f"{name} measured nothing: {reason}")
            self.on_warning(self._dropped[-1])

    def _show(self, member: _Member, progress: Progress) -> None:
        member.doing = progress.doing
        self.on_progress(Progress(self._done, self._total, f"{member.gpu.name}: {progress.doing}"))

    # --- points -------------------------------------------------------------------------------------------------------

    def _finish(self, points: Points, one: _UnderWay, future: Future) -> None:
        """Write the lines of a point, or have another GPU measure it. Raises RunError where there is none."""
        error = future.exception()
        if error is not None and not isinstance(error, RunError):
            raise error
        lines = [] if error else future.result()
        why = str(error) if error else _throttled(lines)
        points.return_time(one.budget_s - (one.member.gpu.wall_time.timing - one.timed_before_s))
        if error and len(self._members) == 1:
            raise error
        if why is not None and len(self._members) > 1:
            self._retire(one.member, why)
            points.give_back(one.group)
            lines = [line for line in lines if isinstance(line, Segment)]
        for line in lines:
            self.on_line(structs.replace(line, worker=one.member.number))
            self._done += isinstance(line, Cell)
        self.on_progress(Progress(self._done, self._total, f"{one.member.gpu.name}: {one.member.doing}"))

    def _retire(self, member: _Member, why: str) -> None:
        self._members.remove(member)
        text = f"{member.gpu.name} gives its points back: {why}"
        self.on_warning(text)
        # A line, so that the record names it, too; its cells so far are good.
        self.on_line(segment(member.ready, text, self.cache, member.number))


def _check_same_model(members: Sequence[_Member]) -> None:
    """Raises RunError where cells of these GPUs must not be in the same record, and where two are one and the same."""
    first, *others = members
    known: dict[str, str] = {}
    for member in members:
        gpu_id = member.ready.environment.gpu_id
        if gpu_id is not None and (other := known.setdefault(gpu_id, member.gpu.name)) != member.gpu.name:
            raise RunError(f"{other} and {member.gpu.name} are one device, so they would disturb each other")
    for other in others:
        for name in SAME_ENVIRONMENT:
            ours, theirs = (getattr(one.ready.environment, name) for one in (first, other))
            if ours != theirs:
                raise RunError(
                    f"{other.gpu.name} has {name} {theirs}, {first.gpu.name} has {ours}; one record is of one kind of "
                    "GPU and machine, so run them one after the other"
                )


def _throttled(lines: Sequence[Any]) -> str | None:
    """Why a GPU is too slow now to go on; None where it is not."""
    timed = [line.metrics for line in lines if isinstance(line, Cell) and line.metrics and line.metrics.rounds]
    rounds, disturbed = sum(one.rounds for one in timed), sum(one.disturbed for one in timed)
    if disturbed <= THROTTLED_SHARE * rounds:
        return None
    reasons = Counter()
    for one in timed:
        reasons.update(one.discarded)
    named = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
    return f"throttled or below its clock{named} in {disturbed} of {counted(rounds, 'sample')} of a point"
