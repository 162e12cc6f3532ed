"""Sentences that several modules owe a user: the nearest valid name, an error in one line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def did_you_mean(name: str, valid: Sequence[str]) -> str:
    """``; did you mean X?`` where something is close, else ``; valid are A, B, C``. Empty where nothing is valid."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; valid are {', '.join(valid)}" if valid else ""


def first_line(error: BaseException) -> str:
    """``Type: first line of the message``, for a record or a message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"
