"""Standard streams that survive a closed pipe, a locale without UTF-8, and a full disk."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

#: The file name in an OSError of standard output.
NAME = "standard output"


class Output:
    """A text stream whose reader may go away, as in `| head -1`: the rest of the output is dropped, and the command
    runs to its end and its own exit code. Any other OSError is raised with NAME as its file.

    forgiven: errors after which nothing more is written. For standard error every OSError, since there is nowhere left
    to report it.
    """

    def __init__(self, stream: TextIO, forgiven: type[OSError] = BrokenPipeError) -> None:
        self._stream, self._forgiven = stream, forgiven

    def write(self, text: str) -> int:
        return self._try(self._stream.write, text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Any, *arguments: Any) -> Any:
        try:
            return act(*arguments)
        except self._forgiven:
            self.drop()
        except OSError as error:
            raise OSError(error.errno, error.strerror, NAME) from None

    def drop(self) -> None:
        """Discard everything from now on, also what is buffered, which would fail again when the interpreter exits."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare() -> None:
    """Replace both streams by Output, in UTF-8: not every locale has the characters of the tables (µ, ×, ·), and a
    wrong character on screen is better than no table.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - a parent may have closed it, e.g. `>&-`
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # escapes for a path that is no UTF-8
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout, sys.stderr = Output(sys.stdout), Output(sys.stderr, OSError)
