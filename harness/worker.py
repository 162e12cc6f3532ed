"""The process that owns the device. A variant can do anything to its process, so the parent never touches the device."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from harness.protocol import Done, Job, Proof, Ready, Refused

#: Exit status of a worker whose CUDA context a variant has destroyed.
CONTEXT_LOST = 70


#: Seconds without any event after which a variant counts as hanging. torch.compile and the interpreter need minutes.
ANSWER_LIMIT_S = 600.0


class WorkerDied(Exception):
    """The process ended without finishing its message."""


def _serve(connection: Connection, device: str) -> None:
    """Body of the process. Ctrl-C is ignored here: the parent stops asking, and ends this process."""
    if device == "cpu":
        from harness import interpreter

        interpreter.enable()
    from harness.session import ContextLost, Session
    from harness.wording import first_line

    try:
        session = Session(connection.recv())
        connection.send(session.ready())
    except Exception as error:  # told to the parent as one line; it has nothing to clean up yet
        connection.send(Refused(first_line(error)))
        return
    while (message := connection.recv()) is not None:
        events = session.prove(message.operator, message.variant) if isinstance(message, Proof) else session.group(message)
        try:
            for event in events:
                connection.send(event)
        except ContextLost:
            connection.close()
            os._exit(CONTEXT_LOST)
        connection.send(Done())
    session.close()


class Worker:
    """The parent's handle on one worker process."""

    def __init__(self, job: Job) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, job.device), name="device worker", daemon=True)
        # The child inherits this, so that a Ctrl-C while it is still importing is the parent's alone, too.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, previous)
        theirs.close()
        self._connection.send(job)
        self.ready: Ready | Refused = self._receive()

    def ask(self, message: Any) -> Iterator[Any]:
        """Events of one message. Raises WorkerDied when the process ends before Done."""
        try:
            self._connection.send(message)
        except OSError:
            raise WorkerDied(self._epitaph()) from None
        while not isinstance(event := self._receive(), Done):
            yield event

    def _receive(self) -> Any:
        try:
            if not self._connection.poll(ANSWER_LIMIT_S):
                self._process.kill()
                raise WorkerDied(f"no answer within {ANSWER_LIMIT_S:g} s; the worker process was ended")
            return self._connection.recv()
        except (EOFError, OSError):
            raise WorkerDied(self._epitaph()) from None

    def _epitaph(self) -> str:
        self._process.join(timeout=10)
        code = self._process.exitcode
        if code == CONTEXT_LOST:
            return "the CUDA context was lost"
        if code is not None and code < 0:
            return f"the worker process was killed by {signal.Signals(-code).name}"
        return f"the worker process ended with exit code {code}"

    def close(self, wait_s: float = 30.0) -> None:
        """Let the worker finish (wait_s = 0: do not), then make sure it is gone."""
        if wait_s and self._process.is_alive():
            try:
                self._connection.send(None)
                self._process.join(timeout=wait_s)
            except OSError:
                pass  # it ended on its own a moment ago
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()
