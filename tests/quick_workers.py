"""Processes of a tool that spawns them are forked in tests, from the server of the workers: it has loaded torch, which
is most of the processor time of such a test.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from spec_decode_bench.harness.session import fork_server


class _Forking:
    """What workers use of ``multiprocessing``."""

    def __init__(self) -> None:
        self.Pipe, self.Semaphore = fork_server.CONTEXT.Pipe, fork_server.CONTEXT.Semaphore

    def get_context(self, method: str) -> _Forking:
        assert method == "spawn"
        return self

    def Process(self, target: Callable, args: tuple, **more: Any) -> multiprocessing.Process:
        fork_server.start()
        return fork_server.CONTEXT.Process(target=_in_worker, args=(dict(os.environ), target, args), **more)


def _in_worker(environment: Mapping[str, str], target: Callable, args: tuple) -> None:
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by a process that is spawned
    target(*args)


FORKING = _Forking()
