"""Ctrl-C while modules are imported: exit at once. Nothing is lost yet, and an import interrupted halfway may turn
KeyboardInterrupt into another exception.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from harness.exit_codes import INTERRUPTED


def _exit(*_) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def exit_on_ctrl_c() -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
