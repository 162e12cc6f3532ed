"""Wording that several modules share: text that can be shown anywhere, the nearest valid name, an error in one line."""

from __future__ import annotations

import difflib
import shutil
import sys
import sysconfig
import traceback
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from spec_decode_bench.harness.import_by_content import OPERATORS, PACKAGES, ROOT

#: Folders of code that is neither a user's nor an operator's: the suite's, Python's library, installed packages.
_LIBRARIES = (
    *(ROOT / name for name in PACKAGES if name not in OPERATORS),
    *{Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
)
#: Python packages whose projects spell their name otherwise.
_PROJECTS = {"vllm": "vLLM", "sglang": "SGLang", "deep_gemm": "DeepGEMM", "flash_mla": "FlashMLA"}
#: Characters of an error's message that a record keeps.
LONGEST_LINE = 500


#: The command that `pip install .` adds.
INSTALLED = "spec-decode-bench"


def program() -> list[str]:
    """The words that this program was called by: those of a clone, or the installed command."""
    if Path(sys.argv[0]).stem == INSTALLED:
        return [INSTALLED if shutil.which(INSTALLED) else sys.argv[0]]
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return words if Path(words[-1]).name == "bench.py" else ["python", "bench.py"]


def project(package: str) -> str:
    """The name of a package in a title: ``vLLM`` of ``vllm``."""
    return _PROJECTS.get(package, package)


def did_you_mean(name: str, valid: Sequence[str]) -> str:
    """``; did you mean X?`` where something is close, else ``; valid are A, B, C``. Empty where nothing is valid."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; valid are {', '.join(valid)}" if valid else ""


def printable(text: str) -> str:
    """The text on one line, with an escape such as ``\\n``, ``\\x1b`` or ``\\udcff`` for every character that cannot be
    seen: control characters, line separators, marks of direction, lone surrogates, unassigned code points. Twice is
    once.

    Names, values and messages of others (YAML, flags, records, variants) pass through it before they are stored or
    shown: else they could move a terminal's cursor, end a line of a table, or be what UTF-8 and XML cannot hold.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or unicodedata.category(one) == "Zs" else one.encode("unicode_escape").decode()
        for one in text
    )


def counted(number: int, noun: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def significant(value: float, digits: int = 3) -> str:
    """``digits`` significant digits without an exponent: 1.50, 37.8, 478.

    Below 1 as many decimals as 1 has, so 0.0321 is 0.03; from 10**digits on all digits before the point.
    """
    _, _, exponent = f"{value:.{digits - 1}e}".partition("e")  # empty for NaN
    return f"{value:.{max(digits - 1 - max(int(exponent or 0), 0), 0)}f}"


def signed(value: float, form: str | None = None) -> str:
    """A difference with its sign, the minus as typeset: ``+15.3``, ``−2.00``. form: of a format, such as ``.1f``; None
    for three significant digits.
    """
    text = f"{value:+{form}}" if form else f"{'+' if value >= 0 else '-'}{significant(abs(value))}"
    return text.replace("-", "−")


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
