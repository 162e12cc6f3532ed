"""How wide the columns of a terminal table are, and where a text in them breaks: at spaces, else inside names, never
inside a number.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence

from harness.report.tables import Table

#: Spaces between columns.
GAP = 2
#: Where a word too long for its column may break: after a mark between two parts of it.
_PART = re.compile(r"(?<=[_=;(])|(?<=[/,])(?!\d)|(?<=[.-])(?=[A-Za-z])")
#: Where a part that is still too long may break: between letters, never inside a number.
_LETTER = re.compile(r"(?<![\d.,+-])|(?![\d.,])")


def text_lines(text: str) -> list[str]:
    """At line breaks alone; str.splitlines would split at more characters than the pieces below."""
    return text.split("\n")


def words(text: str) -> list[str]:
    """The texts between spaces and line breaks; a no-break space joins."""
    return re.split(r"[ \n]+", text)


def parts(text: str) -> list[str]:
    return [part for word in words(text) for part in _PART.split(word)]


def letters(text: str) -> list[str]:
    """The finest pieces: letters, and numbers whole."""
    return [piece for word in words(text) for piece in _LETTER.split(word)]


def longest(texts: Iterable[str], pieces: Callable[[str], list[str]]) -> int:
    """Characters of the longest piece of all texts."""
    return max((len(piece) for text in texts for piece in pieces(text)), default=0)


def widths(columns: Sequence[Sequence[str]], room: int, first: int = 0) -> list[int]:
    """Characters for each column, at most ``room`` together.

    Every word stays whole if there is room, else every part of a word, else every number; else the columns get equal
    shares. What is left goes in turns to the columns with longer lines.

    first: width that the first column gets before the others grow.
    """
    most = [max(1, longest(texts, text_lines)) for texts in columns]
    for pieces in (words, parts, letters):
        given = [max(1, longest(texts, pieces)) for texts in columns]
        if sum(given) <= room:
            break
    else:
        given = [min(width, max(1, room // len(columns))) for width in given]
    given[0] += max(0, min(most[0], first, given[0] + room - sum(given)) - given[0])
    while sum(given) < room and any(map(operator.lt, given, most)):
        for i in range(len(given)):
            given[i] += given[i] < most[i] and sum(given) < room
    return given


def broken(text: str, width: int) -> str:
    """The text with line breaks, so that no line is longer than ``width``: at spaces, and inside a word only where it
    is longer than a line.
    """
    return "\n".join(piece for line in text.split("\n") for piece in _lines(line, width))


def _lines(line: str, width: int) -> list[str]:
    done = [""]
    for word in line.split(" "):
        joined = f"{done[-1]} {word}" if done[-1] else word
        if len(joined) <= width:
            done[-1] = joined
            continue
        done += [""] if done[-1] else []
        for piece in _pieces(word, width):
            if len(done[-1]) + len(piece) <= width:
                done[-1] += piece
            else:
                done += [piece] if done[-1] else []
                done[-1] = piece
    return done


def _pieces(word: str, width: int) -> list[str]:
    """The coarsest pieces of a word that fit."""
    pieces = []
    for part in [word] if len(word) <= width else _PART.split(word):
        for piece in [part] if len(part) <= width else _LETTER.split(part):
            pieces += [piece[i : i + width] for i in range(0, len(piece), width)]
    return pieces


def spaced(text: str) -> str:
    """The label of a point with spaces between its axes, where a line may break."""
    return re.sub(r",(?=\w+=)", ", ", text)


def room(width: int, columns: int, gap: int = GAP) -> int:
    """Characters left for the texts of so many columns."""
    return width - (columns - 1) * gap


def column_head(name: str) -> str:
    return name.replace("_", "\n")


def entry_width(table: Table, i: int) -> int:
    """Of the column of variant ``i``: of its head and its entries, whose lines are never broken."""
    entries = [entries[i] for _, entries in table.rows]
    lines = [line for entry in entries for line in (entry.main, entry.second)]
    return longest([column_head(table.variants[i]), *lines], text_lines)


def parted(table: Table, width: int) -> list[list[int]]:
    """Indices of the variants, by the parts that a table is printed in: as few parts as fit into ``width`` beside the
    axes.
    """
    axes = _least_axes_width(table)
    parts_of_table: list[list[int]] = [[]]
    for i in range(len(table.variants)):
        needed = axes + sum(entry_width(table, j) + GAP for j in (*parts_of_table[-1], i)) - GAP
        if parts_of_table[-1] and needed > width:
            parts_of_table.append([])
        parts_of_table[-1].append(i)
    return parts_of_table


def _least_axes_width(table: Table) -> int:
    """Of the axis columns with their gaps: every word of a head and every number of a value stays whole."""
    total = 0
    for i, name in enumerate(table.axes):
        values = [values[i] for values, _ in table.rows]
        total += max(1, longest([column_head(name)], words), longest(values, letters)) + GAP
    return total
