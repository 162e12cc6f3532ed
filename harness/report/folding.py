"""Where a text too long for its column breaks: at spaces, else between the parts of a name, never inside a number that
fits.
"""

from __future__ import annotations

import re

#: Where a word too long for a line may break: after a mark between two parts of it.
_PART = re.compile(r"(?<=[_=;(])|(?<=[/,])(?!\d)|(?<=[.-])(?=[A-Za-z])")
#: Where a part that is still too long may break: between letters, never inside a number.
_LETTER = re.compile(r"(?<![\d.,+-])|(?![\d.,])")


def spaced(text: str) -> str:
    """The label of a point with spaces between its axes, where a line may break."""
    return re.sub(r",(?=\w+=)", ", ", text)


def longest_line(text: str) -> int:
    """Characters of the longest line; str.splitlines would split at more than line breaks."""
    return max(map(len, text.split("\n")))


def longest_word(text: str) -> int:
    """Characters of the longest word, of which a name has several between underscores."""
    return max(map(len, re.split(r"[ \n]|(?<=_)", text)))


def longest_part(text: str) -> int:
    """Characters of the longest part of a name; a no-break space joins."""
    return max(len(part) for word in re.split(r"[ \n]", text) for part in _PART.split(word))


def folded(text: str, width: int) -> str:
    """The text with line breaks, so that no line is longer than ``width``."""
    return "\n".join(folded_line for line in text.split("\n") for folded_line in _lines(line, width))


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
