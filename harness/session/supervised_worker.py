"""A worker process that is replaced when it dies: who is to blame, and who is asked again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from spec_decode_bench.harness.config.work_items import Answer, Check, Death, Request, Result
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.session.messages import AuditReady, Fatal, Heartbeat, Job, Load, Loaded, Ready, Up
from spec_decode_bench.harness.session.worker import RunError, Worker, WorkerDied, WorkerSilent

#: A variant that ended its process this often is not run at further points.
MAX_DEATHS = 2
#: How often a process that dies during start-up is started. The cause, such as the kernel's OOM killer, may be
#: gone by then.
MAX_STARTS = 3


@dataclass
class Deaths:
    """How often a variant ended its process, how the process ended last, and whether the variant is run again."""

    count: int = 0
    last_reason: str = ""
    excluded: bool = False


class SupervisedWorker:
    """Owns one worker process at a time, from ``begin`` on.

    number:              of the process in the record.
    most_deaths:         a variant that ended its process so often is not run again.
    unattributed_deaths: how often the process died while nobody had control.
    on_heartbeat:        called with whatever shows that it is alive.
    replace:             starts a process in place of the one that died. Raises RunError where it cannot.
    """

    def __init__(self, job: Job, start: Callable[[Job], Worker], replace: Callable[[WorkerDied], None]) -> None:
        self._job, self._start, self._replace = job, start, replace
        self._worker: Worker | None = None
        self._closed = False
        self._deaths: dict[str, Deaths] = {}
        self._prepared: Request | None = None
        self._heartbeat: Heartbeat | None = None
        self._found: list[Result] = []
        self.number, self.most_deaths, self.unattributed_deaths = 0, MAX_DEATHS, 0
        self.on_heartbeat: Callable[[Heartbeat], None] = lambda heartbeat: None

    # --- requests -----------------------------------------------------------------------------------------------------

    def settle(self, request: Request) -> list[Any]:
        """An outcome for each variant of a request; of a Check any number. A variant that ended the process gets that
        of its death, and those that it left are asked again: one by one where several took turns, so that only the
        culprit dies again. Raises RunError where the process cannot be replaced.
        """
        outcomes, may_run = [], []
        for name in request.variants:
            deaths = self._deaths.get(request.id_of(name))
            if deaths is None or not deaths.excluded:
                may_run.append(name)
                continue
            text = f"not run again: it ended its process {counted(deaths.count, 'time')}; {deaths.last_reason}"
            outcomes.append(request.died(name, Death(text, count=deaths.count)))
        groups, died_before = [may_run], False
        while groups:
            if not (group := groups.pop(0)):
                continue
            try:
                answer = self._answered(request.of(group))
            except WorkerDied as error:
                death = error
            else:
                outcomes += [structs.replace(outcome, process=self.number) for outcome in answer.outcomes]
                if not answer.lost:
                    continue
                death = WorkerDied("the CUDA context was lost")
                self._blame(request.id_of(answer.outcomes[-1].variant), death)
                groups.insert(0, _without(group, *(outcome.variant for outcome in answer.outcomes)))
                self._replace(death)
                continue
            outcomes += [structs.replace(found, process=self.number) for found in self._found]
            had_control = self._heartbeat.variants if self._heartbeat else ()
            if len(had_control) > 1 and len(group) > 1:
                groups[:0] = [[name] for name in group]
            elif not had_control and not died_before:  # it may not happen again
                groups.insert(0, group)
            else:  # without a culprit the first one, or this might never end
                culprit = next(iter(had_control), None)
                failed = culprit if culprit in group else group[0]
                self._blame(request.id_of(failed), death)
                outcome = request.died(failed, self._death_of(request, culprit, death))
                outcomes.append(structs.replace(outcome, process=self.number))
                groups.insert(0, _without(group, failed))
            if not had_control:
                died_before = True
                self.unattributed_deaths += 1
            self._replace(death)
        return outcomes

    def _answered(self, request: Request) -> Answer:
        """Raises WorkerDied; then ``_heartbeat`` says who had control, and ``_found`` what was found before."""
        self._finish_preparing()
        self._heartbeat, self._found = None, []
        self._worker.send(request)
        answer = self._worker.receive(request, self._hear)
        names, asked = sorted(outcome.variant for outcome in answer.outcomes), sorted(request.variants)
        if names != asked and not (set(names) <= set(asked) and (isinstance(request, Check) or answer.lost)):
            self._heartbeat, self._found = None, []
            text = f"was asked for {', '.join(asked)}, and answered for {', '.join(names) or 'nobody'}"
            raise WorkerDied(f"the worker process {text}")
        return answer

    def _hear(self, event: Heartbeat | Result) -> None:
        if isinstance(event, Result):
            self._found.append(event)
        else:
            self._heartbeat = event
            self.on_heartbeat(event)

    def _death_of(self, request: Request, culprit: str | None, death: WorkerDied) -> Death:
        where = None if self._heartbeat is None else self._heartbeat.where
        return Death(str(death), None if culprit is None else request.id_of(culprit), where)

    def _blame(self, variant_id: str, death: WorkerDied) -> None:
        deaths = self._deaths.setdefault(variant_id, Deaths())
        deaths.count += 1
        deaths.last_reason = str(death)
        deaths.excluded |= deaths.count >= self.most_deaths

    def prepare(self, request: Request) -> None:
        """Sends a request whose answer is dropped when the next one is sent; a death shows then."""
        with suppress(WorkerDied, RunError):
            self._finish_preparing()
            self.wait_until_up()
            self._worker.send(request)
            self._prepared = request

    def _finish_preparing(self) -> None:
        """Raises WorkerDied."""
        if (request := self._prepared) is not None:
            self._prepared, self._heartbeat, self._found = None, None, []
            self._worker.receive(request, lambda event: None)

    def load(self, request: Load, wait: bool = True) -> Loaded | None:
        """Have the process import files of --variants, and those that replace it. Raises WorkerDied. wait: for the
        answer.
        """
        self._job = replace(self._job, variant_files=request.files)
        if not wait:
            return self.prepare(request)
        self._worker.send(request)
        return self._worker.receive(request, lambda event: None)

    # --- the process --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first process."""
        self._worker = self._start(self._job)

    def wait_until_up(self) -> Up:
        """Wait until the process has brought the device up."""
        return self._started(lambda worker: worker.up)

    def wait_until_ready(self, timed: bool = True) -> Ready | AuditReady:
        """What the process says of its calibration, which it leaves out where nothing is to be timed."""
        return self._started(lambda worker: worker.ready(timed))

    def _started(self, wait: Callable[[Worker], Any]) -> Any:
        """A process that dies first is started MAX_STARTS times in all, one that hangs only once."""
        for starts in range(1, MAX_STARTS + 1):
            try:
                self._finish_preparing()
                answer = wait(self._worker)
            except WorkerDied as death:
                if isinstance(death, WorkerSilent) or starts == MAX_STARTS:
                    self.close(wait_s=0)
                    raise RunError(f"the worker could not start: {death}") from None
                self._worker.close(wait_s=0)
                self._prepared = None
                self._worker = self._start(self._job)
            else:
                break
        if isinstance(answer, Fatal):
            raise RunError(f"cannot use the device: {answer.reason}")
        return answer

    def restart(self, compiles: bool = False) -> None:
        """Replace the process; then ``wait_until_up``. compiles: the CUDA sources, too, once more."""
        self._worker.close(wait_s=0)
        self._prepared = None
        if not compiles:
            self._job = replace(self._job, compiled=())
        self._worker = self._start(self._job)

    def request_exit(self) -> None:
        """Let the process finish without waiting for it."""
        if not self._closed and self._prepared is None:
            self._worker.request_exit()

    def close(self, wait_s: float = 30.0) -> None:
        """Let the process finish for ``wait_s`` seconds, then kill it; at once if it is still preparing something.
        Closing twice is harmless.
        """
        if not self._closed:
            self._closed = True
            self._worker.close(wait_s if self._prepared is None else 0)


def _without(group: list[str], *names: str) -> list[str]:
    return [name for name in group if name not in names]
