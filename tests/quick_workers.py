"""Worker processes of commands that a test calls in its own process are forked from a server that has loaded torch.

Loading torch is most of the processor time of such a test. Processes of a bench.py that a test starts as a user would
are spawned, as always. No module of the suite is loaded in the server, so each worker imports its own, and with the
environment of its start.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from harness.runner import import_probe, worker

LOADED = ["pytest", "torch", "numpy", "scipy.special", "cuda.core", "cuda.core.utils"]


class _Forking:
    """What workers use of ``multiprocessing``."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(LOADED)
        self.Pipe, self.Semaphore = self._context.Pipe, self._context.Semaphore

    def get_context(self, method: str) -> _Forking:
        assert method == "spawn"
        return self

    def Process(self, target: Callable, args: tuple, **more: Any) -> multiprocessing.Process:
        return self._context.Process(target=_in_worker, args=(dict(os.environ), os.getpid(), target, args), **more)


def _in_worker(environment: Mapping[str, str], starter: int, target: Callable, args: tuple) -> None:
    """starter: the process that asked for this one, whose parent is the server."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by a process that is spawned
    die_with_parent = worker.die_with_parent
    worker.die_with_parent = import_probe.die_with_parent = lambda parent: parent == starter or die_with_parent(parent)
    target(*args)


FORKING = _Forking()


def install() -> None:
    """Patch this process. Not on a GPU, whose driver does not survive a fork."""
    worker.multiprocessing = import_probe.multiprocessing = FORKING
