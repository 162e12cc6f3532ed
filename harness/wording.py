"""Words that several modules owe a user: the nearest valid name, an error in one line, a number without an exponent."""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

#: What is not a user's or an operator's own code: this suite's engine, Python's and all that is installed.
_LIBRARIES = (
    Path(__file__).parent,
    *{Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)
#: Characters of an error's message that a record keeps: enough for any sentence, not for a dump.
LONGEST_LINE = 500


def did_you_mean(name: str, valid: Sequence[str]) -> str:
    """``; did you mean X?`` where something is close, else ``; valid are A, B, C``. Empty where nothing is valid."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; valid are {', '.join(valid)}" if valid else ""


def counted(number: int, noun: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def significant(value: float, digits: int = 3) -> str:
    """So many significant digits without an exponent: 1.50, 37.8, 478. Below 1 the decimals of 1, from 10**digits on
    all digits.
    """
    _, _, exponent = f"{value:.{digits - 1}e}".partition("e")  # none of NaN
    return f"{value:.{max(digits - 1 - max(int(exponent or 0), 0), 0)}f}"


def first_line(error: BaseException) -> str:
    """``Type: first line of the message (mine.py, line 12)``, for a record or a message; the message is cut after
    LONGEST_LINE characters. The place is the innermost one that is neither this suite's nor a library's, if there is
    one. Never raises.
    """
    try:
        text = "".join(str(error).strip().splitlines()[:1]) or "no message"
    except Exception:  # a variant's exception may fail in its own __str__
        text = "its message cannot be read"
    return f"{type(error).__name__}: {text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + '…'}{_raised_at(error)}"


def _raised_at(error: BaseException) -> str:
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_file() and not any(library in path.parents for library in _LIBRARIES):
            place = f" ({path.name}, line {line})"
    return place
