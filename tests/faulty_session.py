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

from spec_decode_bench.harness.config.work_items import Result
from spec_decode_bench.harness.records.schema import Environment, Finding, Metrics, Place, Status
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
    lost = False

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

    def ready(self, timed) -> Ready:
        if self._start == "raises when it calibrates":
            raise Unprintable
        return Ready(factory.cpu_environment(), None, {})

    def close(self) -> None:
        pass

    def check(self, request) -> list[Result]:
        (name,) = request.variants
        self.tell(Heartbeat((name,)))
        finding = Finding(status=Status.PASSED, place=Place.POINT, name=request.label)
        checked = Result(operator=request.operator, variant=name, finding=finding)
        self.tell(checked)
        return [getattr(self, name)(checked)]

    def time(self, task) -> list[Result]:
        self.tell(Heartbeat(task.variants))
        finding, metrics = task.where.finding(Status.PASSED), Metrics(bytes_moved=1, rounds=3)
        of = task.operator
        return [Result(operator=of, variant=name, finding=finding, metrics=metrics) for name in task.variants]

    def fine(self, checked):
        return checked

    def segfaults(self, checked):
        ctypes.string_at(0)

    def exits(self, checked):
        sys.exit(3)

    def ends(self, checked):
        os._exit(4)

    def hangs(self, checked):
        time.sleep(600)

    def closes_its_pipe(self, checked):
        """Closes every pipe and goes on."""
        os.closerange(3, 64)
        time.sleep(600)

    def loses_the_context(self, checked):
        raise ContextLost

    def panics(self, checked):
        raise Panic("at the disco")

    def returns_what_cannot_be_encoded(self, checked):
        return object()

    def writes_into_the_pipe(self, checked):
        for descriptor in range(3, 64):
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):  # the connection, not multiprocessing's other pipes
                    os.write(descriptor, b"\0\0\0\5junk!")
        time.sleep(600)

    def forks(self, checked):
        """Both processes go on as the worker."""
        os.fork()
        return checked

    def floods(self, checked):
        print("first, through Python", flush=True)
        for thread in range(5000):
            os.write(2, f"kernel.cu:7: block: [0,0,0], thread: [{thread},0,0] Assertion failed.\n".encode())
        return checked

    def dies_in_the_middle_of_a_line(self, checked):
        os.write(1, b"about to")
        os.kill(os.getpid(), signal.SIGKILL)


def serve(connection, heartbeats, output, job) -> None:
    evaluator, sampling = (
        ModuleType("spec_decode_bench.harness.session.evaluator"),
        ModuleType("spec_decode_bench.harness.session.sampling"),
    )
    evaluator.Evaluator, sampling.ContextLost = Evaluator, ContextLost
    sys.modules |= {
        "spec_decode_bench.harness.session.evaluator": evaluator,
        "spec_decode_bench.harness.session.sampling": sampling,
    }
    _serve(connection, heartbeats, output, job)
