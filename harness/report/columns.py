"""How wide the columns of a terminal table are and where a text in them breaks: at spaces, else inside names, never
in a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, product
from string import ascii_uppercase

from harness.report.tables import Table

#: Spaces between columns.
GAP = 2
#: Where a word too long for its column may break: after a mark that stands between parts of it.
_PART = re.compile(r"(?<=[_=;(])|(?<=[/,])(?!\d)|(?<=[.-])(?=[A-Za-z])")
#: Where it may break if a part is too long, too.
_LETTER = re.compile(r"(?<![\d.,+-])|(?![\d.,])")


def words(text: str) -> list[str]:
    """What no break divides as long as there is room; a no-break space is no space."""
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
    """Characters for each column so that all together take at most ``room``: every word whole, else every part, else
    every number, else, where there is no room for these either, equal shares. What is left over goes to columns with
    longer lines, in turns.

    first: what the first column gets before the others grow.
    """
    most = [max(1, longest(texts, str.splitlines)) for texts in columns]
    for pieces in (words, parts, letters):
        found = [max(1, longest(texts, pieces)) for texts in columns]
        if sum(found) <= room:
            break
    else:
        found = [min(width, max(1, room // len(columns))) for width in found]
    found[0] += max(0, min(most[0], first, found[0] + room - sum(found)) - found[0])
    while sum(found) < room and found != most:
        for i in range(len(found)):
            found[i] += found[i] < most[i] and sum(found) < room
    return found


def broken(text: str, width: int) -> str:
    """The text with line breaks, no line longer than ``width``: at spaces, inside a word only where it is longer
    than a line.
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
    """With room for a line break between the axes of a point's label."""
    return re.sub(r",(?=\w+=)", ", ", text)


def room(width: int, columns: int, gap: int = GAP) -> int:
    """Characters for the texts of so many columns."""
    return width - (columns - 1) * gap


def column_head(name: str) -> str:
    return name.replace("_", "\n")


def box_width(table: Table, i: int) -> int:
    """Of the column of variant ``i``: its head and its boxes, a line of a box never broken."""
    boxes = [boxes[i] for _, boxes in table.rows]
    return longest(
        [column_head(table.variants[i]), *(text for box in boxes for text in (box.main, box.second))], str.splitlines
    )


def _heads_width(table: Table) -> int:
    return sum(max(1, longest([column_head(name)], words)) + GAP for name in table.axes)


def parted(table: Table, width: int) -> list[list[int]]:
    """Variants by the parts that a table is printed in, as few as hold them beside axes as narrow as their heads."""
    found: list[list[int]] = [[]]
    for i in range(len(table.variants)):
        needed = _heads_width(table) + sum(box_width(table, j) + GAP for j in (*found[-1], i)) - GAP
        if found[-1] and needed > width:
            found.append([])
        found[-1].append(i)
    return found


def initials(texts: Sequence[str], left: int) -> tuple[list[str], list[str]]:
    """(texts, notes) of a column: a text with a word longer than ``left`` characters is a letter, and a note says it
    in full.
    """
    too_long = dict.fromkeys(text for text in texts if longest([text], words) > left)
    names = dict(zip(too_long, _names(), strict=False))
    return [names.get(text, text) for text in texts], _notes(names)


def lettered(table: Table, width: int) -> tuple[list[tuple[str, ...]], list[str]]:
    """(axis texts row by row, notes): a word that is too long for its column is a letter there, and a note says it
    in full.
    """
    rows = [values for values, _ in table.rows]
    columns = [[column_head(name), *(row[i] for row in rows)] for i, name in enumerate(table.axes)]
    widest = max((sum(box_width(table, i) + GAP for i in part) for part in parted(table, width)), default=0)
    left = room(width - widest, len(columns))
    long: dict[str, str] = {}
    while sum(longest(texts, words) for texts in columns) > left:
        word = max((word for _, *texts in columns for text in texts for word in words(text)), key=len, default="")
        if len(word) <= 3:  # the heads alone are too long
            break
        long[word] = ""
        columns = [[head, *(_replaced(text, long) for text in texts)] for head, *texts in columns]
    used = dict.fromkeys(word for row in rows for text in row for word in words(text) if word in long)
    names = dict(zip(used, _names(), strict=False))
    return [tuple(_replaced(text, names) for text in row) for row in rows], _notes(names)


def _notes(names: Mapping[str, str]) -> list[str]:
    return [f"{name}: {text}" for text, name in names.items()]


def _replaced(text: str, by: Mapping[str, str]) -> str:
    return " ".join(by.get(word, word) for word in words(text))


def _names() -> Iterator[str]:
    """A, B, ... Z, AA, AB, ...: capitals, as reasons have small letters."""
    for length in count(1):
        yield from map("".join, product(ascii_uppercase, repeat=length))
