"""Calls git."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Without the lock of the index, so that a commit made at the same time does not fail. Raises OSError and
    SubprocessError where git cannot be run.
    """
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", timeout=limit_s)
