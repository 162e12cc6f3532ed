"""Whether processes that a test did not start itself have ended."""

from __future__ import annotations

import os
import time
from pathlib import Path


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
