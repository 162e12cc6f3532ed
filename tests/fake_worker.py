"""A worker without a process: answers from a script, dies where the script says so."""

from __future__ import annotations

from harness.records.schema import Cell, Metrics, Status
from harness.runner.protocol import Audited, AuditReady, CheckRequest, Done, Fatal, Heartbeat, Job, Ready, Rejection
from harness.runner.worker import WorkerDied, WorkerSilent
from tests import factory

KILLED = "the worker process was killed by SIGSEGV"
READY = Ready(factory.cpu_environment(), None, {})


class FakeWorkers:
    """Replaces the class Worker.

    script:  task -> its events; a WorkerDied among them is raised.
    check:   CheckRequest -> its events.
    starts:  what each process answers once it is up, or an exception to raise; the last one repeats.
    asked, budgets, started, closed: what happened.
    """

    def __init__(self, script, starts=(READY,)) -> None:
        self.script, self.starts = script, list(starts)
        self.check = lambda request: iter(())
        self.asked: list[tuple[str, ...]] = []
        self.budgets: list[float] = []
        self.started: list[Job] = []
        self.closed = 0

    def __call__(self, job: Job | None = None) -> FakeWorker:
        if job is not None and job.role == "compare":
            return FakeComparer()
        self.started.append(job)
        answer = self.starts.pop(0) if len(self.starts) > 1 else self.starts[0]
        return FakeWorker(self, answer)


class FakeWorker:
    process_id = None

    def __init__(self, all_of_them: FakeWorkers, answer) -> None:
        self._all, self._answer = all_of_them, answer

    @property
    def up(self):
        return self.ready if isinstance(self.ready, Fatal) else Done()

    @property
    def ready(self):
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def ask(self, task):
        if isinstance(task, CheckRequest):
            yield from self._all.check(task)
            return
        self._all.asked.append(task.variants)
        self._all.budgets.append(task.budget_s)
        for event in self._all.script(task):
            if isinstance(event, Exception):
                raise event
            yield event

    def request_exit(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def close(self, wait_s: float = 30.0) -> None:
        self._all.closed += 1


class FakeComparer:
    """Finds nothing wrong; it is never asked to compare, as the workers here send no outputs."""

    up = Done()

    def kill(self) -> None:
        pass

    def ask(self, task):
        return iter(())

    def request_exit(self) -> None:
        pass

    def close(self, wait_s: float = 30.0) -> None:
        pass


def cell(task, name, status="passed", rounds=3) -> Cell:
    return Cell(
        operator=task.operator,
        variant=name,
        baseline="a",
        point=f"n={task.axes['n']}",
        axes=dict(task.axes),
        status=Status(status),
        reason=None if status == "passed" else "wrong",
        metrics=Metrics(bytes_moved=1, rounds=rounds) if status == "passed" else None,
    )


def session(dies_verifying=(), dies_timed=(), dies_late=(), dies_reported=()):
    """Events of an evaluator in which some variants end the process: while verified, while timed, while checked
    afterwards, right after they were reported as failed.
    """

    def script(task):
        timed = []
        for name in task.variants:
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
                yield cell(task, name, "failed")
                yield WorkerDied("the CUDA context was lost")
            yield cell(task, name)

    return script


def auditor(dies=(), rejects=()):
    def script(task):
        for name in task.variants:
            yield Heartbeat(name, "audit")
            if name in dies:
                yield WorkerDied(KILLED)
            counts = {"cupti_launches": None, "eager_launches": 1, "allocations": 0}
            yield Audited(name, counts, Rejection(Status.MISMATCH, "no_sync: it waits") if name in rejects else None)

    return script


AUDIT_READY = AuditReady({"null": {"cupti_us": [0.7]}}, {1000: {"cupti_us": [1.7]}}, None)
SILENT = WorkerSilent("no sign of life for 600 s")
