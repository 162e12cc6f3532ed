"""Ctrl-C, and the signals with which a terminal, a scheduler or ``kill`` ends a command: all interrupt it alike."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from harness.exit_codes import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _exit(*_) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _interrupt(*_) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does. One that is ignored, as under nohup, stays so."""
    with _handled(_interrupt):
        yield


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Exit at once while modules are imported. Nothing is lost yet, and an import interrupted halfway may turn
    KeyboardInterrupt into another exception.
    """
    with _handled(_exit):
        yield


@contextmanager
def _handled(handler) -> Iterator[None]:
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, before in previous.items():
        if before != signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
