"""Standard streams as a command line needs them: whoever reads may go away, the encoding may be anything, a disk may
be full.
"""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

#: What an OSError of standard output names as its file.
NAME = "standard output"


class Output:
    """A text stream whose reader may go away, as in `| head -1`: what is left to say is dropped, and the command goes
    on to its end and its own exit code. Any other OSError says that it is of standard output and of no file.

    forgiven: errors after which nothing more is written; of standard error all, as there is nowhere left to tell of them.
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
        """From now on nothing is written: what is buffered must not fail once more when the interpreter ends."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare() -> None:
    """Put Output in the place of both streams. They speak UTF-8 where the locale knows fewer signs than the tables
    need: a wrong one on screen is better than a run without its table.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - a parent may have closed it, e.g. `>&-`
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8")
    sys.stdout, sys.stderr = Output(sys.stdout), Output(sys.stderr, OSError)
