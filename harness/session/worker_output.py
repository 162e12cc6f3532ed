"""What a worker, its variants and their children print: passed on to standard error, and cut after MAX_LINES lines. A
device-side assert prints a line per thread, which would bury the tables.
"""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext

from spec_decode_bench.harness.printable import printable

#: Lines of one process that are passed on.
MAX_LINES = 50
#: Bytes of a line that are passed on; what has no line break is cut here.
MAX_LINE_BYTES = 4096
#: Seconds to wait for the rest when the process has ended. A child of it may live on and hold the pipe open.
DRAIN_S = 1.0


class WorkerOutput:
    """The parent's end of the pipe that replaces a worker's standard output and standard error.

    writer: the worker's end. Call ``listen`` after the process has started, ``close`` after it has ended.
    """

    def __init__(self, context: BaseContext) -> None:
        self._reader, self.writer = context.Pipe(duplex=False)
        self._lines = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._forward, name="worker output", daemon=True)

    def listen(self) -> None:
        self.writer.close()
        self._thread.start()

    def close(self) -> None:
        """Pass on the rest, and report how many lines were dropped."""
        self._thread.join(DRAIN_S)
        with self._lock:
            if self._lines > MAX_LINES:
                _print(f"… {self._lines - MAX_LINES} more lines of the worker process dropped")
            self._lines = 0

    def _forward(self) -> None:
        rest = b""
        with self._reader:
            while chunk := os.read(self._reader.fileno(), 65536):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                self._pass_on(lines)
        if rest:
            self._pass_on([rest])

    def _pass_on(self, lines: list[bytes]) -> None:
        with self._lock:
            for line in lines:
                self._lines += 1
                if self._lines <= MAX_LINES:
                    _print(line[:MAX_LINE_BYTES].decode("utf-8", "replace"))


def redirect_output(writer: Connection) -> None:
    """In the worker: from here on it and its children print into ``writer``, line by line."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    for descriptor in (1, 2):
        os.dup2(writer.fileno(), descriptor)
    writer.close()
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)


def _print(text: str) -> None:
    # sys.stderr is looked up each time: a live progress bar replaces it with a stream of its own.
    print(printable(text.rstrip("\r").expandtabs()), file=sys.stderr, flush=True)
