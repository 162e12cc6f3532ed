"""What a worker, its variants and their children print: passed on to standard error, where it can spoil no table, and
of lines that differ in numbers alone only the first few. One kernel with a device-side assert prints thousands.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext

#: So many lines of one kind are passed on.
MOST_ALIKE = 10
#: Kinds of lines that are told apart; later ones count as one kind.
MOST_KINDS = 1000
#: Bytes of a line that is passed on; what never ends is cut here.
LONGEST = 4096
#: Seconds to wait for what is still on its way. A child of the worker may live on and hold the pipe open.
DRAIN_S = 1.0


class WorkerOutput:
    """The parent's end of a pipe that takes the place of a worker's standard output and standard error.

    writer: what the worker's process is to be given; ``listen`` once it has started, ``close`` once it is gone.
    """

    def __init__(self, context: BaseContext) -> None:
        self._reader, self.writer = context.Pipe(duplex=False)
        self._alike: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._pass_on, name="worker's output", daemon=True)

    def listen(self) -> None:
        self.writer.close()
        self._thread.start()

    def close(self) -> None:
        """Pass on what is left, and say how much was not."""
        self._thread.join(DRAIN_S)
        with self._lock:
            for kind, count in self._alike.items():
                if count > MOST_ALIKE:
                    _say(f"… {count - MOST_ALIKE} more lines like: {self._first[kind]}")
            self._alike.clear()

    def _pass_on(self) -> None:
        rest = b""
        with self._reader:
            while piece := os.read(self._reader.fileno(), 65536):
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > LONGEST:
                    lines, rest = [*lines, rest], b""
                with self._lock:
                    for line in lines:
                        self._hear(line)
        if rest:
            with self._lock:
                self._hear(rest)

    def _hear(self, line: bytes) -> None:
        text = line[:LONGEST].decode("utf-8", "replace").rstrip("\r")
        kind = re.sub(r"\d+", "#", text)
        if kind not in self._alike and len(self._alike) >= MOST_KINDS:
            kind = "others"
        self._alike[kind] += 1
        self._first.setdefault(kind, text)
        if self._alike[kind] <= MOST_ALIKE:
            _say(text)


def redirect_output(writer: Connection) -> None:
    """In the worker: from here on all that it and its children print goes into ``writer``, a line as soon as it
    ends.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    for descriptor in (1, 2):
        os.dup2(writer.fileno(), descriptor)
    writer.close()
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)


def _say(text: str) -> None:
    # Looked up anew each time: a live progress bar puts its own stream in the place of this one.
    print(text, file=sys.stderr, flush=True)
