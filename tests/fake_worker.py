"""A worker without a process: answers from a script, dies where the script says so."""

from __future__ import annotations

from collections.abc import Sequence

from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.records.schema import Cell, Finding, Metrics, Place, Status
from spec_decode_bench.harness.session.messages import (
    Audited,
    AuditReady,
    Fatal,
    Heartbeat,
    Job,
    Ready,
    Up,
)
from spec_decode_bench.harness.session.session import Session
from spec_decode_bench.harness.session.worker import WorkerDied, WorkerSilent
from tests import factory

KILLED = "the worker process was killed by SIGSEGV"
READY = Ready(factory.cpu_environment(), None, {})


AUDIT_READY = AuditReady({"null": {"cupti_us": [0.7]}}, {1000: {"cupti_us": [1.7]}}, None)


def items(points: int = 1, names: Sequence[str] = "abc", **more) -> list[Task]:
    """Work items of an operator "o" at n = 1, 2, ..."""
    of = {"operator": "o", "variants": tuple(names), "baseline": "a"} | more
    return [Task(axes={"n": n}, point=f"n={n}", **of) for n in range(1, points + 1)]


class FakeWorkers:
    """Replaces the class Worker. By role: "evaluate" and "audit".

    scripts: of each role: item -> its events; a WorkerDied among them is raised. A role without one answers nothing.
    starts:  of each role: what each process answers once it is up, or an exception to raise; the last one repeats.
    asked, budgets, started, closed: what happened; the first two of the evaluator, asked also of the auditor.
    """

    def __init__(self, script, starts=(READY,), **others) -> None:
        self.scripts = {"evaluate": script} | others
        self.starts = {"evaluate": list(starts), "audit": [AUDIT_READY]}
        self.asked: dict[str, list[tuple[str, ...]]] = {"evaluate": [], "audit": []}
        self.budgets: list[float] = []
        self.started: dict[str, list[Job]] = {"evaluate": [], "audit": []}
        self.closed: dict[str, int] = {"evaluate": 0, "audit": 0}

    def __call__(self, job: Job) -> FakeWorker:
        self.started[job.role].append(job)
        starts = self.starts[job.role]
        return FakeWorker(self, job.role, starts.pop(0) if len(starts) > 1 else starts[0])


class FakeWorker:
    process_id = None

    def __init__(self, all_of_them: FakeWorkers, role: str, answer) -> None:
        self._all, self._role, self._answer = all_of_them, role, answer

    @property
    def up(self):
        return self.ready if isinstance(self.ready, Fatal) else Up(getattr(self.ready, "environment", None))

    @property
    def ready(self):
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def ask(self, item):
        self._all.asked[self._role].append(item.variants)
        if self._role == "evaluate" and isinstance(item, Task):
            self._all.budgets.append(item.budget_s)
        for event in self._all.scripts.get(self._role, lambda item: ())(item):
            if isinstance(event, Exception):
                raise event
            yield event

    def request_exit(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def close(self, wait_s: float = 30.0) -> None:
        self._all.closed[self._role] += 1


def run(workers: FakeWorkers, plan: Sequence[Task], device: str = "cpu", **measure) -> list:
    """The outcomes of a session with these workers."""
    with Session(Job(device, (), 0, Measure(**measure), timed=True), workers) as session:
        return list(session.run(plan))


def cell(item: Task, name: str, status: str = "passed", rounds: int = 3) -> Cell:
    if status == "passed":
        return item.cell(name, Status.PASSED, metrics=Metrics(bytes_moved=1, rounds=rounds))
    return item.failed(name, status=Status(status), message="wrong")


def evaluator(dies_verifying=(), dies_timed=(), dies_late=(), dies_reported=()):
    """Events of an evaluator in which some variants end the process: while verified, while timed, while checked
    afterwards, right after they were reported as failed.
    """

    def script(item):
        timed = []
        for name in item.variants:
            yield Heartbeat(name, "verify")
            if name in dies_verifying:
                yield WorkerDied(KILLED)
            timed.append(name)
        for name in timed:
            yield Heartbeat(name, "measure")
        for _ in range(2):
            yield Heartbeat(timed[0], "measure")
            if set(timed) & set(dies_timed):
                yield WorkerDied(KILLED)
        for name in timed:
            if name in dies_late:
                yield WorkerDied(KILLED)
            if name in dies_reported:
                yield cell(item, name, "failed")
                yield WorkerDied("the CUDA context was lost")
            yield cell(item, name)

    return script


def auditor(dies=(), rejects=()):
    def script(item):
        for name in item.variants:
            yield Heartbeat(name, "audit")
            if name in dies:
                yield WorkerDied(KILLED)
            counts = {"cupti_launches": None, "eager_launches": 1, "allocations": 0}
            found = {"status": Status.MISMATCH, "check": "no_sync", "message": "it waits"}
            finding = Finding(place=Place.POINT, name=item.point, **found) if name in rejects else None
            yield Audited(name, counts, finding)

    return script


SILENT = WorkerSilent("the worker process did not respond for 600 s")
