"""A worker without torch: the real process, pipe and signals around a session that does what its variants are called.

``serve`` stands in for harness.runner.worker._serve, which it calls after putting the session in its place.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
import threading
import time
from contextlib import suppress
from types import ModuleType

from harness.records.schema import Cell
from harness.runner import worker
from harness.runner.protocol import Begin, Ready
from tests import factory

_serve = worker._serve


class ContextLost(Exception):
    pass


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Panic(BaseException):
    pass


class OnlyHere(Exception):
    """Neither its class nor its lock can be pickled."""

    def __init__(self) -> None:
        super().__init__("only here", threading.Lock())


class Evaluator:
    def __init__(self, job) -> None:
        self._start = job.variant_files[0] if job.variant_files else None

    def ready(self) -> Ready:
        if self._start == "raises on start":
            raise Speechless
        if self._start == "dies on start":
            os.kill(os.getpid(), signal.SIGKILL)
        return Ready(factory.cpu_environment(), None, {})

    def close(self) -> None:
        pass

    def group(self, task):
        for name in task.variants:
            yield Begin(name, "verify")
            yield getattr(self, name)(task, name)

    def cell(self, task, name, **more) -> Cell:
        return Cell(operator=task.operator, variant=name, baseline="fine", point="p", axes={}, status="passed", **more)

    fine = cell

    def segfaults(self, task, name):
        ctypes.string_at(0)

    def is_killed_by_a_signal_without_a_name(self, task, name):
        os.kill(os.getpid(), signal.SIGRTMIN + 3)

    def exits(self, task, name):
        sys.exit(3)

    def ends(self, task, name):
        os._exit(4)

    def hangs(self, task, name):
        time.sleep(600)

    def hangs_up(self, task, name):
        """Closes every pipe and stays."""
        os.closerange(3, 64)
        time.sleep(600)

    def loses_the_context(self, task, name):
        raise ContextLost

    def panics(self, task, name):
        raise Panic("at the disco")

    def says_what_cannot_be_sent(self, task, name):
        return OnlyHere()

    def writes_into_the_pipe(self, task, name):
        for descriptor in range(3, 64):
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):  # the connection, not multiprocessing's other pipes
                    os.write(descriptor, b"\0\0\0\5junk!")
        time.sleep(600)

    def says_much(self, task, name):
        return self.cell(task, name, reason="x" * 50_000_000)

    def floods(self, task, name):
        for thread in range(5000):
            os.write(2, f"kernel.cu:7: block: [0,0,0], thread: [{thread},0,0] Assertion failed.\n".encode())
        print("once, through Python")
        return self.cell(task, name)

    def dies_in_the_middle_of_a_line(self, task, name):
        os.write(1, b"about to")
        os.kill(os.getpid(), signal.SIGKILL)


def serve(connection, output, device, audit, parent) -> None:
    session, measuring = ModuleType("harness.runner.evaluator"), ModuleType("harness.runner.measure")
    session.Evaluator, measuring.ContextLost = Evaluator, ContextLost
    sys.modules |= {"harness.runner.evaluator": session, "harness.runner.measure": measuring}
    _serve(connection, output, "none", audit, parent)
