"""A worker process, and the parent's handle on it. Only workers touch the device, because a variant can do anything to
its process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from multiprocessing.connection import Connection, wait
from typing import Any

from spec_decode_bench.harness import interpreter, registry
from spec_decode_bench.harness.config.work_items import Answer, Result
from spec_decode_bench.harness.errors import UsageError, first_line
from spec_decode_bench.harness.session import fork_server
from spec_decode_bench.harness.session.interrupt import kill_group
from spec_decode_bench.harness.session.messages import (
    AuditReady,
    Calibrate,
    Fatal,
    Heartbeat,
    Job,
    Ready,
    Up,
    receive,
    receive_request,
    send,
)
from spec_decode_bench.harness.session.worker_output import WorkerOutput, redirect_output

#: Exit status of a worker whose CUDA context a variant has destroyed.
CONTEXT_LOST = 70
#: Seconds a worker may take to bring the device up, or to calibrate.
START_LIMIT_S = 600.0
#: Seconds that a process which closed its pipe may take to end.
EXIT_LIMIT_S = 10.0
#: Seconds that a killed process may take to vanish; the driver may have to wait for a kernel first.
GONE_LIMIT_S = 60.0
#: Seconds between two looks at whether an answer is still needed.
POLL_S = 0.1


class RunError(UsageError):
    """No worker is available: the run cannot start, or cannot go on after a worker died. The message says why."""


class WorkerDied(Exception):
    """The process ended, or had to be ended, without finishing its message."""


class WorkerSilent(WorkerDied):
    """The process sent nothing for too long and was killed."""


class Outdated(Exception):
    """Nobody needs the answer any more that is waited for."""


def _serve(connection: Connection, heartbeats: Connection, output: Connection, job: Job) -> None:
    """Body of the process. It ignores Ctrl-C: the parent stops asking and ends it."""
    redirect_output(output)
    registry.load(job.rooms)
    interpreter.choose(job.device)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of processes would run beside what is timed
    if job.gpu is not None:  # the driver looks at it when it is brought up, which no import does
        os.environ["CUDA_VISIBLE_DEVICES"] = job.gpu
    if job.role == "audit":
        from spec_decode_bench.harness.session.auditor import Auditor as Owner
    else:
        from spec_decode_bench.harness.session.evaluator import Evaluator as Owner
    import torch

    from spec_decode_bench.harness.session.sampling import ContextLost

    # Host tensors are small: more threads would only spin, on cores that other workers need. Engines do the same.
    torch.set_num_threads(1)
    process_id = os.getpid()

    def say(pipe: Connection, message: Any) -> None:
        if os.getpid() != process_id:  # a variant forked: the copy went on as a second worker
            os._exit(1)
        send(pipe, message)

    try:
        try:
            owner = Owner(job)
            up = Up(owner.bring_up())
        except Exception as error:  # there is nothing to clean up yet
            say(connection, Fatal(first_line(error)))
            return
        owner.tell = partial(say, heartbeats)
        say(connection, up)
        while request := receive_request(connection):
            answer = request.run(owner)
            if isinstance(answer, list):
                answer = Answer(answer, owner.lost)
            say(connection, answer)
            if owner.lost:
                raise ContextLost
        owner.close()
    except ContextLost:
        connection.close()
        os._exit(CONTEXT_LOST)
    except (EOFError, BrokenPipeError):  # the parent is gone
        os._exit(1)
    except SystemExit:
        raise
    except BaseException as error:  # a variant raised no Exception, or an answer cannot be encoded
        with suppress(OSError):
            say(connection, Fatal(first_line(error)))
        connection.close()
        os._exit(1)


class Worker:
    """The parent's handle on one worker process, which begins its job at once.

    poll: called every POLL_S seconds while the answer to a request is waited for; may raise Outdated.

    Raises RunError where the system starts no process or thread.
    """

    def __init__(self, job: Job, poll: Callable[[], None] | None = None) -> None:
        self._job, self._poll, process = job, poll, None
        try:
            self._connection, worker_end = fork_server.CONTEXT.Pipe()
            self._heartbeats, heartbeats = fork_server.CONTEXT.Pipe(duplex=False)
            self._worker_output = WorkerOutput(fork_server.CONTEXT)
            ends = worker_end, heartbeats, self._worker_output.writer
            process = fork_server.started(_serve, (*ends, self._job), "device worker")
            worker_end.close()
            heartbeats.close()
            self._worker_output.listen()
        except (OSError, EOFError, RuntimeError) as error:  # the last one from a thread
            if process is not None:
                process.kill()
            raise RunError(
                f"could not start a worker process: {first_line(error)}; see the system's limits with ulimit -a"
            ) from None
        self._process, self._open_heartbeats = process, [self._heartbeats]

    @cached_property
    def up(self) -> Up | Fatal:
        """Waits until the process has brought the device up. Raises WorkerDied."""
        return self._receive((Up, Fatal), START_LIMIT_S, "it should have been ready by then")

    def ready(self, timed: bool = True) -> Ready | AuditReady | Fatal:
        """Has the process calibrate, and waits for it. Raises WorkerDied."""
        if isinstance(self.up, Fatal):
            return self.up
        request = Calibrate(timed)
        self.send(request)
        return self._receive((request.answer, Fatal), START_LIMIT_S, "it should have been ready by then")

    @property
    def process_id(self) -> int | None:
        return self._process.pid

    def send(self, request: Any) -> None:
        """Raises WorkerDied."""
        try:
            send(self._connection, request)
        except OSError:
            raise WorkerDied(self._exit_reason()) from None

    def receive(self, request: Any, hear: Callable[[Heartbeat | Result], None]) -> Answer:
        """The answer to a request that was sent. Raises WorkerDied if the process ends, or is silent for too long.

        hear: called with what it says meanwhile.
        """
        limit_s = self._job.measure.timeout_s
        answer = self._receive((request.answer, Fatal), limit_s, "measure.timeout_s", hear, self._poll)
        if isinstance(answer, Fatal):
            raise WorkerDied(f"the worker process could not go on: {answer.reason}")
        return answer

    def _receive(
        self,
        kinds: tuple[Any, ...],
        limit_s: float,
        limit: str,
        hear: Callable[[Any], None] = lambda _: None,
        poll: Callable[[], None] | None = None,
    ) -> Any:
        try:
            try:
                while pipes := self._wait(limit_s, poll):
                    if pipes == [self._connection]:
                        return receive(self._connection, kinds)
                    self._hear(hear)
            finally:
                while self._open_heartbeats and self._heartbeats.poll():  # what was said before the end
                    self._hear(hear)
        except (EOFError, OSError):
            raise WorkerDied(self._exit_reason()) from None
        except Outdated:
            raise
        except Exception as error:  # a variant wrote into the pipe
            self._process.kill()
            text = f"unreadable message from the worker process ({first_line(error)}), which was ended"
            raise WorkerDied(text) from None
        self._process.kill()
        raise WorkerSilent(f"the worker process did not respond for {limit_s:g} s ({limit}) and was ended")

    def _wait(self, limit_s: float, poll: Callable[[], None] | None) -> list[Any]:
        """The pipes that can be read; none after ``limit_s`` seconds. Raises Outdated."""
        end, pipes = time.monotonic() + limit_s, [self._connection, *self._open_heartbeats]
        while poll is not None and (left_s := end - time.monotonic()) > POLL_S:
            poll()
            if ready := wait(pipes, POLL_S):
                return ready
            limit_s = left_s
        return wait(pipes, limit_s)

    def _hear(self, hear: Callable[[Any], None]) -> None:
        try:
            hear(receive(self._heartbeats, (Heartbeat, Result)))
        except (EOFError, OSError):  # it closed this pipe; the other one says how it ended
            self._open_heartbeats = []

    def kill(self) -> None:
        """End the process at once, from any thread; what waits for it gets WorkerDied."""
        self._process.kill()

    def _exit_reason(self) -> str:
        code = self._exit_code(EXIT_LIMIT_S)
        if code is None:
            self._process.kill()
            return "the worker process closed its pipe without ending, and was ended"
        if code == CONTEXT_LOST:
            return "the CUDA context was lost"
        return f"the worker process {how_it_ended(code)}"

    def request_exit(self) -> None:
        """Send that no more messages come; does not wait for the process to end."""
        if self._process.is_alive():
            with suppress(OSError):  # it ended on its own a moment ago
                self._connection.send_bytes(b"")

    def close(self, wait_s: float = 30.0) -> None:
        """Let the process finish for ``wait_s`` seconds, then kill it and wait until it is gone."""
        if wait_s:
            self.request_exit()
            self._exit_code(wait_s)
        if self._process.is_alive():
            self._process.kill()
            self._exit_code(GONE_LIMIT_S)
        kill_group(self._process.pid)
        self._connection.close()
        self._heartbeats.close()
        self._worker_output.close()

    def _exit_code(self, wait_s: float) -> int | None:
        """None if the process has not ended by then. Not Process.join: it waits without limit for a process that closed
        all its files but did not end.
        """
        end = time.monotonic() + wait_s
        while (code := self._process.exitcode) is None and time.monotonic() < end:
            time.sleep(0.005)
        return code


def how_it_ended(code: int) -> str:
    """An exit code as multiprocessing has it, in words."""
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"


def _signal_name(number: int) -> str:
    """The signal's name; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
