"""Standard output as a command line needs it: whoever reads it may go away, its encoding may be anything, its disk may be full."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

#: What an OSError of standard output names as its file.
NAME = "standard output"


class Output:
    """A text stream whose reader may go away, as in `| head -1`: what is left to say is dropped, and the command goes on to its
    end and its own exit code. Any other OSError says that it is of standard output and of no file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._try(self._stream.write, text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Any, *arguments: Any) -> Any:
        try:
            return act(*arguments)
        except BrokenPipeError:
            self.drop()
        except OSError as error:
            raise OSError(error.errno, error.strerror, NAME) from None

    def drop(self) -> None:
        """From now on nothing is written: what is buffered must not fail once more when the interpreter ends."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare() -> None:
    """Put Output in the place of sys.stdout. Both streams speak UTF-8 where the locale knows fewer signs than the tables need: a
    wrong one on screen is better than a run without its table."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - a parent may have closed it, e.g. `>&-`
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8")
    if not isinstance(sys.stdout, Output):
        sys.stdout = Output(sys.stdout)
