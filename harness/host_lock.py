"""Locks between the processes of this user on this machine: the workers of a run on several GPUs measure host time one
after the other, and the workers of one GPU do not need most of its memory at the same time.

A lock ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

#: Seconds to wait for the lock, far more than a sample takes: who holds it for longer hangs, and must not take the
#: others with it.
LIMIT_S = 5.0
POLL_S = 2e-5

Lock = Callable[[], AbstractContextManager]


@cache
def lock_of(wanted: bool) -> Lock:
    """Makes the lock of this process, or a context manager that does nothing."""
    return HostLock(Path(tempfile.gettempdir())) if wanted else nullcontext


class HostLock:
    """Calling it gives a context manager that holds the lock, or goes without it after ``limit_s`` seconds. For one
    thread of a process.
    """

    def __init__(self, folder: Path, limit_s: float = LIMIT_S, of: str = "host-times", poll_s: float = POLL_S) -> None:
        path = folder / f"spec-decode-bench-{of}-{os.getuid()}.lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._limit_s, self._poll_s = limit_s, poll_s

    @contextmanager
    def __call__(self) -> Iterator[bool]:
        """Yields whether the lock is held."""
        held = self._acquired()
        try:
            yield held
        finally:
            if held:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _acquired(self) -> bool:
        end = time.monotonic() + self._limit_s
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > end:
                    return False
                time.sleep(self._poll_s)
