"""The process that owns the device. A variant can do anything to its process, so the parent never touches the
device.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

from harness import interpreter
from harness.runner.protocol import AuditReady, CheckRequest, Done, Job, Ready, Refused
from harness.runner.worker_output import WorkerOutput, redirect_output
from harness.wording import first_line

#: Exit status of a worker whose CUDA context a variant has destroyed.
CONTEXT_LOST = 70
#: Seconds a worker may take to import torch, bring the device up and calibrate.
START_LIMIT_S = 600.0
#: Seconds that a process which hung up may take to end.
EXIT_LIMIT_S = 10.0
#: Seconds that a process which was killed may take to vanish; the driver may have to wait for a kernel first.
GONE_LIMIT_S = 60.0


class WorkerDied(Exception):
    """The process ended, or had to be ended, without finishing its message."""


class WorkerSilent(WorkerDied):
    """The process said nothing for so long that it was ended."""


def _serve(connection: Connection, output: Connection, device: str, audit: bool, parent: int) -> None:
    """Body of the process. Ctrl-C is ignored here: the parent stops asking, and ends this process."""
    _die_with(parent)
    redirect_output(output)
    interpreter.choose(device)
    if audit:
        from harness.runner.auditor import Auditor as Owner
    else:
        from harness.runner.evaluator import Evaluator as Owner
    from harness.runner.measure import ContextLost

    try:
        job = connection.recv()
        try:
            owner = Owner(job)
            connection.send(owner.ready())
        except Exception as error:  # told to the parent as one line; there is nothing to clean up yet
            connection.send(Refused(first_line(error)))
            return
        while (message := connection.recv()) is not None:
            events = (
                owner.check_variant(message.operator, message.variant)
                if isinstance(message, CheckRequest)
                else owner.group(message)
            )
            for event in events:
                connection.send(event)
            connection.send(Done())
        owner.close()
    except ContextLost:
        connection.close()
        os._exit(CONTEXT_LOST)
    except (EOFError, BrokenPipeError):  # the parent is gone, and with it everybody who could use an answer
        os._exit(1)
    except SystemExit:
        raise
    except BaseException as error:  # a variant raised what is no Exception, or an answer that cannot be sent
        with suppress(OSError):
            connection.send(Refused(first_line(error)))
        connection.close()
        os._exit(1)


def _die_with(parent: int) -> None:
    """A worker whose parent was killed must not go on holding the GPU, whatever it is doing (Linux:
    PR_SET_PDEATHSIG).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


class Worker:
    """The parent's handle on one worker process. It starts at once; ``ready`` hands it the job and waits for its
    answer.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._worker_output = WorkerOutput(context)
        arguments = (theirs, self._worker_output.writer, job.device, job.audit, os.getpid())
        self._process = context.Process(target=_serve, args=arguments, name="device worker", daemon=True)
        # The child inherits this, so that a Ctrl-C while it is still importing is the parent's alone, too.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, previous)
        theirs.close()
        self._worker_output.listen()

    @cached_property
    def ready(self) -> Ready | AuditReady | Refused:
        """Raises WorkerDied."""
        try:
            self._connection.send(self._job)
        except OSError:
            raise WorkerDied(self._epitaph()) from None
        return self._receive(START_LIMIT_S, "it should have been ready by then")

    @property
    def process_id(self) -> int | None:
        return self._process.pid

    def ask(self, message: Any) -> Iterator[Any]:
        """Events of one message. Raises WorkerDied when the process ends, or is silent for too long, before Done."""
        try:
            self._connection.send(message)
        except OSError:
            raise WorkerDied(self._epitaph()) from None
        while not isinstance(event := self._receive(self._job.measure.timeout_s, "measure.timeout_s"), Done):
            if isinstance(event, Refused):
                raise WorkerDied(f"the worker process could not go on: {event.reason}")
            yield event

    def _receive(self, limit_s: float, limit: str) -> Any:
        try:
            heard = self._connection.poll(limit_s)
            if heard:
                return self._connection.recv()
        except (EOFError, OSError):
            raise WorkerDied(self._epitaph()) from None
        except Exception as error:  # a variant wrote into the pipe, or sent an object that only its own process knows
            self._process.kill()
            raise WorkerDied(
                f"the worker process sent what cannot be read ({first_line(error)}) and was ended"
            ) from None
        self._process.kill()
        raise WorkerSilent(f"no sign of life for {limit_s:g} s ({limit}); the worker process was ended")

    def _epitaph(self) -> str:
        code = self._exit_code(EXIT_LIMIT_S)
        if code is None:
            self._process.kill()
            return "the worker process hung up without ending, and was ended"
        if code == CONTEXT_LOST:
            return "the CUDA context was lost"
        return (
            f"the worker process ended with exit code {code}"
            if code >= 0
            else f"the worker process was killed by {_signal(-code)}"
        )

    def dismiss(self) -> None:
        """Tell the worker that nothing more will come; it ends while others are told the same."""
        if self._process.is_alive():
            with suppress(OSError):  # it ended on its own a moment ago
                self._connection.send(None)

    def close(self, wait_s: float = 30.0) -> None:
        """Let the worker finish (wait_s = 0: do not), then make sure it is gone."""
        if wait_s:
            self.dismiss()
            self._exit_code(wait_s)
        if self._process.is_alive():
            self._process.kill()
            self._exit_code(GONE_LIMIT_S)
        self._connection.close()
        self._worker_output.close()

    def _exit_code(self, wait_s: float) -> int | None:
        """Of the process once it has ended, None where it has not by then. Process.join waits without limit for a
        process that has closed all its files but not ended.
        """
        end = time.monotonic() + wait_s
        while (code := self._process.exitcode) is None and time.monotonic() < end:
            time.sleep(0.005)
        return code


def _signal(number: int) -> str:
    """Its name; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
