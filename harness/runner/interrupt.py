"""Ctrl-C while modules are loading: leave at once. Nothing is lost yet, and an import that is interrupted halfway may
turn KeyboardInterrupt into an error of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from harness.exit_codes import INTERRUPTED


def _leave(*_) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def leave_on_ctrl_c() -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
