"""A worker without a process: answers from a script, dies where the script says so."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import Answer, AtPoint, Check, Result, Task
from spec_decode_bench.harness.records.schema import Cell, Finding, Metrics, Place, Status, Where
from spec_decode_bench.harness.session.messages import AuditOf, AuditReady, Fatal, Heartbeat, Job, Ready, Up
from spec_decode_bench.harness.session.session import Session
from spec_decode_bench.harness.session.worker import WorkerDied, WorkerSilent
from tests import factory

PASSED = Where(Place.POINT, "n=1").finding(Status.PASSED)
KILLED = "the worker process was killed by SIGSEGV"
READY = Ready(factory.cpu_environment(), None, {})


AUDIT_READY = AuditReady({"null": [0.7]}, {1000: [1.7]}, None)


def items(points: int = 1, names: Sequence[str] = "abc", **more) -> list[Task]:
    """Work items of an operator "o" at n = 1, 2, ..."""
    of = {"operator": "o", "variants": tuple(names), "baseline": "a"} | more
    return [Task(axes={"n": n}, point=f"n={n}", **of) for n in range(1, points + 1)]


class FakeWorkers:
    """Replaces the class Worker. By role: "evaluate" and "audit".

    scripts: of each role: request -> heartbeats, a WorkerDied that is raised, and the outcomes of the answer.
    starts:  of each role: what each process answers once it is up, or an exception to raise; the last one repeats.
    asked:   (kind of request, variants, as it is spelt) of each role. budgets, started, closed: what happened.
    """

    def __init__(self, script, starts=(READY,), **others) -> None:
        self.scripts = {"evaluate": script} | others
        self.starts = {"evaluate": list(starts), "audit": [AUDIT_READY]}
        self.asked: dict[str, list[tuple[type, tuple[str, ...]]]] = {"evaluate": [], "audit": []}
        self.budgets: list[float] = []
        self.started: dict[str, list[Job]] = {"evaluate": [], "audit": []}
        self.closed: dict[str, int] = {"evaluate": 0, "audit": 0}

    def __call__(self, job: Job) -> FakeWorker:
        self.started[job.role].append(job)
        starts = self.starts[job.role]
        return FakeWorker(self, job.role, starts.pop(0) if len(starts) > 1 else starts[0])

    def asked_to(self, kind: type, role: str = "evaluate") -> list[tuple[str, ...]]:
        """The variants of its requests of a kind."""
        return [variants for asked, variants in self.asked[role] if asked is kind]


class FakeWorker:
    process_id = None
    timed = None

    def __init__(self, all_of_them: FakeWorkers, role: str, answer) -> None:
        self._all, self._role, self._answer = all_of_them, role, answer

    @property
    def up(self):
        answer = self.ready(None)
        return answer if isinstance(answer, Fatal) else Up(getattr(answer, "environment", None))

    def ready(self, timed: bool | None = True):
        self.timed = timed if timed is not None else self.timed
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def send(self, request) -> None:
        self._all.asked[self._role].append((type(request), request.variants))

    def receive(self, request, hear) -> Answer:
        if isinstance(request, Task):
            self._all.budgets.append(request.budget_s)
        outcomes = []
        for event in self._all.scripts.get(self._role, lambda request: ())(request):
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Heartbeat):
                hear(event)
            else:
                outcomes.append(event)
                if isinstance(request, Check):
                    hear(event)
        return Answer(outcomes)

    def request_exit(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def close(self, wait_s: float = 30.0) -> None:
        self._all.closed[self._role] += 1


def run(workers: FakeWorkers, plan: Sequence[Task], device: str = "cpu", **measure) -> tuple[list, list]:
    """The outcomes of a session with these workers, and the lines of the processes that replaced one."""
    with Session(Job(device, (), 0, Measure(**measure), timed=True), workers) as session:
        processes = []
        session.on_process = processes.append
        return list(session.run(plan)), processes


def checked(request: Check, status: Status = Status.PASSED, **more) -> Result:
    """What a worker answers to a Check of one variant."""
    at_point = isinstance(request.where, AtPoint)
    place = {"place": Place.POINT if at_point else Place.EDGE_CASE, "name": request.where.label}
    return Result(
        operator=request.operator, variant=request.variants[0], finding=Finding(status=status, **place, **more)
    )


def timed(name: str, launches: int | None = None) -> Result:
    metrics = Metrics(bytes_moved=1, rounds=3, launches=launches)
    return Result(operator="o", variant=name, finding=PASSED, metrics=metrics, seconds={"time": 10.0})


def cell(item: Task, name: str, status: str = "passed", rounds: int = 3) -> Cell:
    """As measured elsewhere."""
    (check,) = [Check(operator=item.operator, variants=(name,), where=AtPoint(label=item.point, axes=item.axes))]
    if status == "passed":
        metrics = Metrics(bytes_moved=1, rounds=rounds)
        return item.cell(structs.replace(checked(check), metrics=metrics))
    return item.cell(checked(check, Status(status), message="wrong"))


def evaluator(dies_verifying=(), dies_timed=(), dies_late=(), launches=None):
    """Answers of an evaluator in which some variants end the process: while verified, while timed in turns, while
    checked afterwards.
    """

    def script(request):
        if isinstance(request, Check):
            yield Heartbeat(request.variants)
            if request.variants[0] in dies_verifying:
                yield WorkerDied(KILLED)
            yield checked(request)
            return
        for name in request.variants:
            yield Heartbeat((name,))
        for _ in range(2):
            yield Heartbeat(request.variants)
            if set(request.variants) & set(dies_timed):
                yield WorkerDied(KILLED)
        for name in request.variants:
            yield Heartbeat((name,))
            if name in dies_late:
                yield WorkerDied(KILLED)
            yield timed(name, launches)

    return script


def auditor(dies=(), rejects=()):
    def script(request):
        for name in request.variants:
            yield Heartbeat((name,))
            if name in dies:
                yield WorkerDied(KILLED)
            if isinstance(request, AuditOf):
                metrics = structs.replace(request.timed.metrics, eager_launches=1, allocations=0)
                wrong = request.task.where.finding(Status.MISMATCH, check="no_sync", message="it waits")
                yield structs.replace(request.timed, metrics=metrics, finding=wrong if name in rejects else PASSED)

    return script


SILENT = WorkerSilent("the worker process did not respond for 600 s")
