"""A worker without torch: the real process, pipe and signals, and an evaluator whose variants do what their names say.

``serve`` replaces harness.session.worker._serve, which it calls after replacing the evaluator.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
import time
from contextlib import suppress
from types import ModuleType

from spec_decode_bench.harness.records.schema import Cell, Environment, Status
from spec_decode_bench.harness.session import worker
from spec_decode_bench.harness.session.messages import Heartbeat, Ready
from tests import factory

_serve = worker._serve


class ContextLost(Exception):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


class Panic(BaseException):
    pass


class Evaluator:
    def __init__(self, job) -> None:
        self._start = job.variant_files[0] if job.variant_files else None

    def bring_up(self) -> Environment:
        if self._start == "raises on start":
            raise Unprintable
        if self._start == "dies on start":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._start == "hangs on start":
            time.sleep(60)
        return factory.cpu_environment()

    def ready(self) -> Ready:
        if self._start == "raises when it calibrates":
            raise Unprintable
        return Ready(factory.cpu_environment(), None, {})

    def close(self) -> None:
        pass

    def cells(self, task):
        for name in task.variants:
            yield Heartbeat(name, "verify")
            yield getattr(self, name)(task, name)

    def cell(self, task, name, **more) -> Cell:
        return Cell(
            operator=task.operator, variant=name, baseline="fine", point="p", axes={}, status=Status.PASSED, **more
        )

    fine = cell

    def segfaults(self, task, name):
        ctypes.string_at(0)

    def exits(self, task, name):
        sys.exit(3)

    def ends(self, task, name):
        os._exit(4)

    def hangs(self, task, name):
        time.sleep(600)

    def closes_its_pipe(self, task, name):
        """Closes every pipe and goes on."""
        os.closerange(3, 64)
        time.sleep(600)

    def loses_the_context(self, task, name):
        raise ContextLost

    def panics(self, task, name):
        raise Panic("at the disco")

    def returns_what_cannot_be_encoded(self, task, name):
        return object()

    def writes_into_the_pipe(self, task, name):
        for descriptor in range(3, 64):
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):  # the connection, not multiprocessing's other pipes
                    os.write(descriptor, b"\0\0\0\5junk!")
        time.sleep(600)

    def forks(self, task, name):
        """Both processes go on as the worker."""
        os.fork()
        return self.cell(task, name)

    def floods(self, task, name):
        print("first, through Python", flush=True)
        for thread in range(5000):
            os.write(2, f"kernel.cu:7: block: [0,0,0], thread: [{thread},0,0] Assertion failed.\n".encode())
        return self.cell(task, name)

    def dies_in_the_middle_of_a_line(self, task, name):
        os.write(1, b"about to")
        os.kill(os.getpid(), signal.SIGKILL)


def serve(connection, output, job) -> None:
    evaluator, measure = (
        ModuleType("spec_decode_bench.harness.session.evaluator"),
        ModuleType("spec_decode_bench.harness.session.measure"),
    )
    evaluator.Evaluator, measure.ContextLost = Evaluator, ContextLost
    sys.modules |= {
        "spec_decode_bench.harness.session.evaluator": evaluator,
        "spec_decode_bench.harness.session.measure": measure,
    }
    _serve(connection, output, job)
