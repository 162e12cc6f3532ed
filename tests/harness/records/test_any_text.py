"""Whatever text stands in a record: it is compared, merged, shown and drawn, and nothing of it becomes live."""

import io
import json
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from spec_decode_bench.cli.run_report import print_run
from spec_decode_bench.harness.records.file import lines_of, read_run, write_run
from spec_decode_bench.harness.records.merge import merge
from spec_decode_bench.harness.records.schema import Run, Segment
from spec_decode_bench.harness.report.console import PrintableConsole
from spec_decode_bench.harness.report.table import markdown
from spec_decode_bench.harness.report.tables import result_tables
from spec_decode_bench.harness.wording import printable
from spec_decode_bench.plots import draw_all
from spec_decode_bench.regression.comparison import Rule, compare
from spec_decode_bench.regression.comparison_report import (
    comparison_console,
    comparison_html,
    comparison_json,
    comparison_markdown,
)
from spec_decode_bench.regression.plots.regression import draw
from tests import factory
from tests.tier import few, full

#: What terminals, Markdown, XML and matplotlib take for more than text.
LIVE = (
    "\x1b[31m",
    "\r",
    "\x0b",
    "\x85",
    "\u2028",
    "\u202e",
    "\ufffe",
    "$x_{$",
    "|",
    "`",
    "<b>",
    "@me",
    "\n# h",
)
#: Fields that tables, pages and plots show.
SHOWN = (
    "baseline",
    "commit",
    "detail",
    "driver",
    "gpu",
    "message",
    "name",
    "notes",
    "operator",
    "point",
    "processor",
    "torch",
    "variant",
    "why",
)


@cache
def sound() -> list[dict]:
    """The lines of a small GPU run and a segment of it, as plain values."""
    run = factory.sweep_run(batch_sizes=(1, 8))
    cells = [replace(cell, metrics=short(cell.metrics)) for cell in run.cells]
    cells[-1] = replace(cells[-1], process=1)
    cells += [
        factory.cell("decode_native", "flat_view", {"batch_size": size}, status=status, reason="why")
        for size, status in ((9, "failed"), (10, "skipped"))
    ]
    header = replace(
        run.header,
        cells=tuple(cell.key for cell in cells),
        compiled={"a.cu": {"sm_90": "ok"}},
        config={**run.header.config, "measure": {"cache": "hot", "seed": None}, "sweep": [{"batch_size": [1, 8]}]},
    )
    segment = Segment(process=1, started=header.started, why="resumed", environment=header.environment)
    run = Run("sound", header, cells, segments=[segment])
    return [json.loads(msgspec.json.encode(line)) for line in lines_of(run)]


def short(metrics):
    few = {name: getattr(metrics, name)[:6] for name in ("host_us", "eager_us")}
    graph_us = {copies: times[:6] for copies, times in metrics.graph_us.items()}
    return replace(metrics, **few, graph_us=graph_us)


def lively(value, text, name=""):
    """Part of a record with ``text`` behind every text that is shown."""
    if isinstance(value, dict):
        return {key: lively(inner, text, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [lively(inner, text, name) for inner in value]
    return value + text if name in SHOWN and isinstance(value, str) else value


def read(lines, path) -> Run:
    content = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(factory.resealed(content.encode()))
    return read_run(path)


def rendered_safely(text: str) -> None:
    """Nothing of a record becomes a tag, a link, an image or a heading of its own."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
    assert not kinds & {"link_open", "image", "code_block", "fence", "blockquote_open", "em_open", "s_open", "hr"}
    html = {child.content for token in tokens for child in token.children or () if child.type == "html_inline"}
    assert html <= {"<br>", "<!-- -->"}


def processes(run: Run) -> list[Run]:
    """As if three processes had given the same samples."""
    return [factory.with_header(run, started=f"2026-01-0{i}") for i in (1, 2, 3)]


def without_folds(text: str) -> str:
    for tag in ("<details>", "</details>", "<summary>", "</summary>"):
        text = text.replace(tag, "")
    return text


def page_safely(text: str) -> None:
    """Nothing of a record becomes an element of the page."""
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, _: tags.append(tag)
    parser.feed(text)
    parser.close()
    assert set(tags) <= {"html", "head", "meta", "style", "body", "pre", "code", "span"}


@pytest.mark.parametrize("text", few(["".join(LIVE), *LIVE], 4), ids=ascii)
def test_any_text_is_shown_as_text(text, tmp_path):
    run = read([lively(line, text) for line in sound()], tmp_path / "run.jsonl")
    screen = PrintableConsole(file=io.StringIO(), width=100)
    print_run(screen, run)
    rendered_safely(markdown(result_tables(run)))
    comparison = compare(processes(run), processes(run), Rule(any_config=True))
    comparison_console(comparison, screen)
    rendered_safely(without_folds(comparison_markdown(comparison)))
    page_safely(comparison_html(comparison))
    json.loads(comparison_json(comparison))
    assert all(printable(line) == line for line in screen.file.getvalue().split("\n"))
    write_run(merge([run]), tmp_path / "again.jsonl")
    assert read_run(tmp_path / "again.jsonl").cells == run.cells


@full
def test_a_record_with_any_text_is_drawn(tmp_path):
    run = read([lively(line, "".join(LIVE)) for line in sound()], tmp_path / "run.jsonl")
    other = read(sound(), tmp_path / "other.jsonl")
    paths = draw_all([run, other], tmp_path)
    paths += draw(compare([run], [run]), tmp_path / "regression")
    assert len(paths) > 6
    for path in paths:
        if path.suffix == ".svg":
            ElementTree.parse(path)
