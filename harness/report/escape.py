"""Markdown in which names, values and messages of a record are text and nothing else. The only place that escapes."""

from __future__ import annotations

import re

from spec_decode_bench.harness.printable import printable

#: What is markup wherever it stands: code, emphasis, strike-through, links, HTML, entities, cells, formulas.
_MARKUP = re.compile(r"[\\`*~\[<|$]|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_])")
#: What begins a heading, a list, a quotation or an underline at the start of a line.
_AT_START = re.compile(r"^(?:[=>]|[-+](?=\s|$)|-(?=-)|#(?!\w)|\d+(?=[.)](?:\s|$)))")
#: What GitHub turns into a link although it is no markup, in two halves: mentions, numbers of issues, addresses.
_LINKED = re.compile(r"(@|#|\bGH-)(?=\w)|(:)(?=//)|(\bwww)(?=\.)", re.IGNORECASE)


def as_text(value: str) -> str:
    """On one line of GitHub's Markdown, in a table too."""
    text = _MARKUP.sub(r"\\\g<0>", printable(" ".join(value.split("\n"))).strip())
    text = _AT_START.sub(lambda start: f"{start[0]}\\" if start[0].isdigit() else f"\\{start[0]}", text)
    return _LINKED.sub(r"\g<0><!-- -->", text)


def as_code(value: str) -> str:
    """As a code span, outside of a table or as the head of a column."""
    text = printable(value).replace("|", r"\|")
    longest = max(map(len, re.findall("`+", text)), default=0)
    pad = " " if longest else ""
    return f"{'`' * (longest + 1)}{pad}{text}{pad}{'`' * (longest + 1)}" if text.strip() else ""
