"""Several GPUs as one session. The life of a point among them:

1. ``Points`` has it until a GPU is free, and hands it out with its share of the time budget.
2. The GPU's session verifies and times all its variants (``Gpu.run``), in the thread of this GPU.
3. ``SeveralGpus.run`` yields its cells, with the numbers that processes have in the record. Where the GPU failed or was
   throttled, the point goes back to ``Points`` instead, and the GPU gets no more, as long as another one is left.

One loop, in the thread that iterates over ``SeveralGpus.run``, hands points out and takes lines in; the other threads
only wait for sessions, so nothing is locked. A GPU of this machine (``LocalGpu``) and one of a cluster
(``harness.session.cluster.ClusterGpu``) differ in how their sessions are started and asked, which is all of ``Gpu``.

Runs in the parent process, which never touches a device.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import structs

from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import Result, Task, WorkItem
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.differences import differences
from spec_decode_bench.harness.records.schema import Cell, Environment, Segment
from spec_decode_bench.harness.session.messages import Job, Ready
from spec_decode_bench.harness.session.session import Session, calibration_errors, segment
from spec_decode_bench.harness.session.worker import RunError, Worker

#: A GPU gets no more points once this share of a point's samples was taken while it was throttled. Below it the samples
#: are kept and marked, as in a run on one GPU.
THROTTLED_SHARE = 0.1
#: Seconds after which the progress of all GPUs is shown again.
SHOWN_EVERY_S = 0.5
#: In the notes of a record.
LOCK_NOTE = "host times are measured under a lock, by one worker per machine at a time"


@dataclass(frozen=True)
class Measured:
    """Of a point. processes: lines of those that replaced one meanwhile. timing_s: for which variants were timed."""

    cells: list[Cell]
    processes: list[Segment]
    timing_s: float


class Gpu(Protocol):
    """A GPU with its session, asked by one thread; ``abort`` may be called by any.

    name: for messages, such as "GPU 1". doing: the current activity.
    """

    name: str
    doing: str

    def start(self) -> Ready:
        """Raises RunError where it cannot be used."""

    def run(self, task: Task) -> Measured:
        """Raises RunError where this GPU cannot go on."""

    def abort(self) -> None:
        """End its processes at once; a call that waits for them raises RunError."""

    def close(self, wait_s: float = 30.0) -> None:
        """End its processes, after up to ``wait_s`` seconds to finish on their own. Harmless after ``abort``."""


class LocalGpu:
    """A GPU of the machine that this object is on. job: with the GPU in it. start: as in Session."""

    def __init__(self, name: str, job: Job, start: Callable[[Job], Worker] = Worker) -> None:
        self.name, self.doing, self._make = name, "", start
        self._session = Session(job, self._started)
        self._session.on_progress, self._session.on_process = self._does, self._replaced
        self._processes: list[Segment] = []
        self._workers: list[Worker] = []
        self._aborted = False

    def _does(self, done: int, total: int, doing: str) -> None:
        self.doing = doing

    def _replaced(self, segment: Segment) -> None:
        self._processes.append(segment)

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

    def run(self, task: Task) -> Measured:
        before_s, self._processes = self._session.timing_s, []
        cells = list(self.outcomes([task]))
        return Measured(cells, self._processes, self._session.timing_s - before_s)

    def outcomes(self, items: Sequence[WorkItem]) -> Iterator[Any]:
        """As Session.run has them; what it is doing goes to ``doing``."""
        for outcome in self._session.run(items):
            if self._aborted:  # it would say that a variant was killed
                raise RunError("the run has ended")
            yield outcome

    def abort(self) -> None:
        self._aborted = True
        for worker in list(self._workers):
            worker.kill()

    def close(self, wait_s: float = 30.0) -> None:
        self._session.close(0 if self._aborted else wait_s)


class Points:
    """The points that are left, and the seconds for timing them."""

    def __init__(self, items: Sequence[Task], time_budget_s: float) -> None:
        self._left = list(items)
        self._budget_s = time_budget_s
        self._operators: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._left)

    def take(self, gpu: str) -> Task:
        """The next point for a GPU, with its share of the time budget.

        While there are some, it is one of an operator whose variants this GPU has verified and compiled already, and
        then one of the operator with the most cells left for each GPU that has.
        """
        own_operators = self._operators.setdefault(gpu, set())
        known = Counter(itertools.chain.from_iterable(self._operators.values()))
        cells = Counter()
        for item in self._left:
            cells[item.operator] += len(item.variants)

        def preference(item: Task) -> tuple[bool, float]:
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

    def give_back(self, item: Task) -> None:
        self._left.insert(0, item)


@dataclass(eq=False)
class _Member:
    """ready: once it has started. processes: its session's numbers -> those of the record."""

    gpu: Gpu
    thread: ThreadPoolExecutor
    ready: Ready | None = None
    processes: dict[int, int] = field(default_factory=dict)


class SeveralGpus:
    """Has the interface of a Session: ``ready`` describes the first GPU, the others become segments of the record.

    gpus:       at least one, all of one model.
    on_warning: called with a sentence about a GPU that gets no more points.
    on_progress, on_process: as of a Session.
    """

    environment: Environment
    ready: Ready

    def __init__(self, gpus: Sequence[Gpu], measure: Measure, on_warning: Callable[[str], None]) -> None:
        self._measure, self._on_warning = measure, on_warning
        self._all = [_Member(gpu, ThreadPoolExecutor(1, thread_name_prefix=gpu.name)) for gpu in gpus]
        self._fit: list[_Member] = []
        self._numbers = itertools.count()
        self.on_progress: Callable[[int, int, str], None] = lambda done, total, doing: None
        self.on_process: Callable[[Segment], None] = lambda segment: None

    def __enter__(self) -> SeveralGpus:
        """Raises RunError where no GPU can be used, or they differ."""
        try:
            self._start()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, error: type | None, *_: Any) -> None:
        if error is not None:
            for member in self._all:
                member.gpu.abort()
        for member in self._all:
            member.thread.submit(member.gpu.close)
        for member in self._all:
            member.thread.shutdown()

    def _start(self) -> None:
        """Bring all GPUs up together, and keep those that can measure."""
        starting = [(member, member.thread.submit(member.gpu.start)) for member in self._all]
        unfit: dict[_Member, str] = {}
        for member, future in starting:
            try:
                member.ready = future.result()
            except RunError as error:
                unfit[member] = str(error)
        started = [member for member in self._all if member.ready]
        if not started:
            raise RunError("; ".join(f"{member.gpu.name}: {why}" for member, why in unfit.items()))
        _check_same_model(started)
        errors = {member: calibration_errors(member.ready, self._measure.cache) for member in started}
        if not all(errors.values()):  # else all go on, and the record says so
            unfit |= {member: f"UNCALIBRATED: {found[0]}" for member, found in errors.items() if found}
        self._fit = [member for member in started if member not in unfit]
        for member in self._fit:
            member.processes[0] = next(self._numbers)
        names = ", ".join(f"{member.processes[0]}: {member.gpu.name}" for member in self._fit)
        notes = [f"measured by {counted(len(self._fit), 'worker')} ({names}); {LOCK_NOTE}"]
        for member, why in unfit.items():
            notes.append(self._dropped(member, f"was not used: {why}"))
        ready = self._fit[0].ready
        self.environment = structs.replace(ready.environment, notes=(*ready.environment.notes, *notes))
        self.ready = structs.replace(ready, environment=self.environment)

    def verify_first(self, items: Sequence[Task], until_wrong: Collection[str]) -> Iterator[Result]:
        """Nothing: every GPU verifies what it measures."""
        yield from ()

    def run(self, items: Sequence[Task]) -> Iterator[Cell]:
        """The outcomes of all points, each of one GPU. Raises RunError where the last GPU cannot go on."""
        for member in self._fit[1:]:
            self.on_process(segment(member.ready, member.gpu.name, self._measure.cache, member.processes[0]))
        done, total = 0, sum(len(item.variants) for item in items)
        points = Points(items, self._measure.time_budget_s)
        free = list(self._fit)
        busy: dict[Future, tuple[_Member, Task]] = {}
        while points or busy:
            while points and free:
                member = free.pop(0)
                item = points.take(member.gpu.name)
                busy[member.thread.submit(member.gpu.run, item)] = member, item
            for future in wait(busy, timeout=SHOWN_EVERY_S, return_when=FIRST_COMPLETED).done:
                member, item = busy.pop(future)
                for cell in self._cells(future, member, item, points):
                    done += 1
                    yield cell
                if member in self._fit:
                    free.append(member)
            for member in self._fit:
                self.on_progress(done, total, f"{member.gpu.name}: {member.gpu.doing}")
        self.on_progress(total, total, "")

    def _cells(self, future: Future, member: _Member, item: Task, points: Points) -> list[Cell]:
        """The cells of a point; none where another GPU measures it again."""
        is_last = len(self._fit) == 1
        try:
            measured = future.result()
            why = _throttled(measured.cells)
        except RunError as error:
            if is_last:
                raise
            measured, why = Measured([], [], 0.0), str(error)
        points.return_time(item.budget_s - measured.timing_s)
        for line in measured.processes:
            self.on_process(structs.replace(line, process=self._number(member, line.process)))
        if why is not None and not is_last:
            points.give_back(item)
            self._fit.remove(member)
            text = self._dropped(member, f"hands its points to the other GPUs: {why}")
            # A line, so that the record names it, too; its cells so far are good.
            self.on_process(segment(member.ready, text, self._measure.cache, next(self._numbers)))
            return []
        return [structs.replace(cell, process=self._number(member, cell.process)) for cell in measured.cells]

    def _number(self, member: _Member, process: int) -> int:
        """In the record, of a process of a GPU's session."""
        if process not in member.processes:
            member.processes[process] = next(self._numbers)
        return member.processes[process]

    def _dropped(self, member: _Member, why: str) -> str:
        """End the processes of a GPU that gets no more points, and say so."""
        member.gpu.abort()
        text = f"{member.gpu.name} {why}"
        self._on_warning(text)
        return text


def _check_same_model(members: Sequence[_Member]) -> None:
    """Raises RunError where cells of these GPUs must not be in the same record, and where two are one and the same."""
    first, known = members[0], {}
    for member in members:
        name, environment = member.gpu.name, member.ready.environment
        other = known.setdefault(environment.gpu_id, name)
        if environment.gpu_id is not None and other != name:
            raise RunError(f"{other} and {name} are the same device, so they would disturb each other; name it once")
        for difference in differences(first.ready.environment, environment, "one_record"):
            raise RunError(
                f"{name} has {difference.name} {difference.theirs}, {first.gpu.name} has {difference.ours}; "
                "a record holds one kind of GPU and machine, so run them one after the other"
            )


def _throttled(cells: Sequence[Cell]) -> str | None:
    """Why a GPU is too slow now to go on; None where it is not."""
    metrics = [cell.metrics for cell in cells if cell.metrics]
    rounds, disturbed = sum(of_cell.rounds for of_cell in metrics), sum(of_cell.disturbed for of_cell in metrics)
    if disturbed <= THROTTLED_SHARE * rounds:
        return None
    reasons = sum((Counter(of_cell.discarded) for of_cell in metrics), Counter())
    reason = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
    return f"throttled or below its clock{reason} in {disturbed} of {counted(rounds, 'sample')} of a point"
