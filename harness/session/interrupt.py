"""Ctrl-C, and the signals with which a terminal, a scheduler or ``kill`` ends a command: all interrupt it alike.

Also ends the processes that a command has started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from spec_decode_bench.harness.exit_codes import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Signals that come so soon after one are the same interrupt; another one would interrupt the clean-up.
AGAIN_S = 0.5
_last_s = float("-inf")


def _exit(*_) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _interrupt(*_) -> None:
    global _last_s
    before_s, _last_s = _last_s, time.monotonic()
    if _last_s - before_s > AGAIN_S:
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


def end_groups(leaders: Sequence[subprocess.Popen], limit_s: float) -> None:
    """End processes that lead a process group each, with their children. They get ``limit_s`` seconds to write down
    what they have; a second interrupt ends them at once.
    """
    for leader in leaders:
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGTERM)
    for leader in leaders:
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            leader.wait(limit_s)
        kill_group(leader.pid)
        leader.wait()


def kill_group(leader: int) -> None:
    """Kill what is left of a process group."""
    with suppress(OSError):  # nothing is
        os.killpg(leader, signal.SIGKILL)


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
