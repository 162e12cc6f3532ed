"""Markdown of foreign text: whatever it is, a renderer shows it as it was and nothing becomes live."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.report.table import as_code, as_text
from tests.tier import examples

RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
LIVE = st.sampled_from(
    [*"\\`*_~[]<>|$&#!@-+=.)(: \n", "1. ", "# ", "- ", "---", "===", "&amp;", "<!--", "![a](b)", "[x]: y", "__a__"]
)
TEXT = st.lists(LIVE | st.text(st.characters(exclude_categories=()), max_size=4), max_size=10).map("".join)


def shown(markdown: str) -> str:
    """What a reader sees of a paragraph."""
    (paragraph,) = [token for token in RENDERER.parse(markdown) if token.type == "inline"]
    for child in paragraph.children:
        assert child.type in ("text", "text_special", "html_inline"), child
        assert child.type != "html_inline" or child.content == "<!-- -->"
    return "".join(child.content for child in paragraph.children if child.type != "html_inline")


def visible(text: str) -> str:
    """A renderer folds spaces at the ends."""
    return " ".join(text.split())


@settings(max_examples=examples(500), deadline=None)
@given(text=TEXT)
def test_a_value_is_shown_as_it_is(text):
    wanted = visible(printable(text.replace("\n", " ")).strip())
    for column, code in ((as_text(text), False), *([(as_code(text), True)] if text.strip() else [])):
        row = [token for token in RENDERER.parse(f"| {column} | b |\n|---|---|\n| x | y |") if token.type == "inline"]
        assert len(row) == 4
        if code:
            assert [child.type for child in row[0].children] == ["code_inline"]
        elif wanted:
            assert visible(shown(column)) == wanted


def test_no_value_is_linked_by_github():
    text = as_text("@me #1 https://x.org me@x.org www.x.org GH-1 o/r#1")
    assert not re.search(r"@\w|#\w|://|www\.|GH-\d", text)
