"""Errors that the user of a command can mend, the base of those that each part raises; an error in one line."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from spec_decode_bench.harness.import_by_content import OPERATORS, PACKAGES, ROOT
from spec_decode_bench.harness.printable import printable

#: Folders of code that is neither a user's nor an operator's: the suite's, Python's library, installed packages.
_LIBRARIES = (
    *(ROOT / name for name in PACKAGES if name not in OPERATORS),
    *{Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)
#: Characters of an error's message that a record keeps.
LONGEST_LINE = 500


class UsageError(Exception):
    """What was asked for cannot be done: flags, a configuration, a file, a device. The message says which one and why.
    A command ends with it as one sentence, and exit code 2.
    """


class CaptureError(UsageError):
    """A capture file cannot be written or read. The message starts with its path."""


def did_you_mean(name: str, valid: Sequence[str]) -> str:
    """``; did you mean X?`` where something is close, else ``; valid are A, B, C``. Empty where nothing is valid."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; valid are {', '.join(valid)}" if valid else ""


def first_line(error: BaseException) -> str:
    """``Type: first line of the message (mine.py, line 12)``; the message is cut at LONGEST_LINE characters.

    The location is the innermost frame outside of the harness and of libraries, if there is one. Never raises.
    """
    try:
        text = "".join(str(error).strip().splitlines()[:1]) or "no message"
    except Exception:  # a variant's exception may fail in its own __str__
        text = "its message cannot be read"
    if len(text) > LONGEST_LINE:
        text = text[: LONGEST_LINE - 1] + "…"
    return printable(f"{type(error).__name__}: {text}{_location(error)}")


def _location(error: BaseException) -> str:
    location = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_file() and not any(library in path.parents for library in _LIBRARIES):
            location = f" ({path.name}, line {line})"
    return location
