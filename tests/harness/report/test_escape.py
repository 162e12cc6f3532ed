"""Markdown of foreign text: whatever it is, a renderer shows it as it was and nothing becomes live."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.report.escape import as_code, as_text
from tests.tier import examples

RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
LIVE = st.sampled_from(
    [*"\\`*_~[]<>|$&#!@-+=.)(: \n", "1. ", "# ", "- ", "---", "===", "&amp;", "<!--", "![a](b)", "[x]: y", "__a__"]
)
TEXT = st.lists(LIVE | st.text(st.characters(exclude_categories=()), max_size=4), max_size=10).map("".join)


def shown(markdown: str, code: bool) -> str:
    """What a reader sees of the first cell of a table, or of a paragraph of its own."""
    tokens = [token for token in RENDERER.parse(markdown) if token.type == "inline"]
    assert len(tokens) == 1, markdown
    texts = []
    for child in tokens[0].children:
        assert child.type in ("text", "text_special", "html_inline", *(("code_inline",) if code else ())), child
        assert child.type != "html_inline" or child.content == "<!-- -->"
        texts.append("" if child.type == "html_inline" else child.content)
    return "".join(texts)


def visible(text: str) -> str:
    """A renderer folds spaces at the ends."""
    return " ".join(text.split())


@settings(max_examples=examples(500), deadline=None)
@given(text=TEXT)
def test_a_value_is_shown_as_it_is(text):
    wanted = visible(printable(text.replace("\n", " ")).strip())
    if wanted:
        assert visible(shown(as_text(text), code=False)) == wanted
        row = RENDERER.parse(f"| a |\n|---|\n| {as_text(text)} |")
        cells = [token for token in row if token.type == "inline"]
        assert len(cells) == 2


@settings(max_examples=examples(300), deadline=None)
@given(text=TEXT)
def test_a_name_in_code_is_shown_as_it_is(text):
    if text.strip():
        head = RENDERER.parse(f"| {as_code(text)} | b |\n|---|---|\n| x | y |")
        inline = [token for token in head if token.type == "inline"]
        assert len(inline) == 4
        assert [child.type for child in inline[0].children] == ["code_inline"]


def test_no_value_is_linked_by_github():
    text = as_text("@me #1 https://x.org me@x.org www.x.org GH-1 o/r#1")
    assert not re.search(r"@\w|#\w|://|www\.|GH-\d", text)
