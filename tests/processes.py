"""Programs in a process of their own, whether processes that a test did not start itself have ended, and signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_python(program: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A program in a new interpreter, in the checkout's folder."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def errors(err: str) -> str:
    """Standard error of a command without its lines of progress, which depend on how busy the machine is."""
    return "".join(line for line in err.splitlines(keepends=True) if not re.match(r"\d+ of \d+ after |.* …$", line))


@contextmanager
def listening(*numbers: int) -> Iterator[None]:
    """Signals with Python's own handlers: a shell has a command in its background ignore SIGINT, and nohup SIGHUP."""
    own = {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, own.get(number, signal.SIG_DFL)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def has_ended(pid: int, seconds: float = 10) -> bool:
    """Whether a process is gone, or dead and not yet collected, within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False
