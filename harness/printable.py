"""Text that can be shown anywhere."""

from __future__ import annotations

import unicodedata


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
