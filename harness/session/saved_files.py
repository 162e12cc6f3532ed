"""Tells when files are saved. Their status is looked at, as editors replace a file by renaming another one, and network
file systems tell nobody.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from spec_decode_bench.harness.session.worker import Outdated

#: Seconds between two looks while nothing else is done; a save counts once two looks in turn see the same.
LOOK_S = 0.05
#: A file that is gone so long is not about to be replaced.
GONE_S = 1.0

#: Of a file; None where there is none.
Status = tuple[int, int, int] | None


class SavedFiles:
    """Files as they were when the last save was seen."""

    def __init__(self, files: Iterable[str]) -> None:
        self._seen = {file: _status(file) for file in files}

    def add(self, files: Iterable[str], read_ns: int) -> None:
        """Also these, which were read after ``read_ns`` (by time.time_ns): one that was saved since is seen as such."""
        for file in set(files) - set(self._seen):
            status = _status(file)
            self._seen[file] = status if status is not None and status[0] < read_ns else None

    def check(self) -> None:
        """Raises Outdated where a file was saved."""
        if any(_status(file) != status for file, status in self._seen.items()):
            raise Outdated

    def wait(self) -> tuple[float, list[str]]:
        """Wait for a save; when it was seen first, by time.monotonic, and the files."""
        before, now, seen_s = self._seen, self._look(), None
        while True:
            changed = [file for file, status in now.items() if status != before[file]]
            seen_s = None if not changed else seen_s or time.monotonic()
            time.sleep(LOOK_S)
            last, now = now, self._look()
            gone = any(now[file] is None for file in changed)
            if changed and now == last and (not gone or time.monotonic() - seen_s > GONE_S):
                self._seen = now
                return seen_s, changed

    def _look(self) -> dict[str, Status]:
        return {file: _status(file) for file in self._seen}


def _status(file: str) -> Status:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
