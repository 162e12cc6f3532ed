"""Whatever stands in a record: it is refused in one sentence, or read, compared, merged, shown and drawn."""

import copy
import io
import json
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from harness.analysis.compare import CompareError, Rule, compare, compare_variants
from harness.cli.run_report import print_run
from harness.records.file import lines_of, read_run, write_run
from harness.records.merge import merge, missing_shards
from harness.records.schema import RecordError, Run, Segment
from harness.report.comparison import comparison_console, comparison_html, comparison_json, comparison_markdown
from harness.report.console import PrintableConsole
from harness.report.table import markdown
from harness.report.tables import result_tables
from harness.wording import printable
from plots import draw_all
from plots.regression import draw
from tests import factory
from tests.tier import examples, full

CHECKS = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much)
SLOW = {"deadline": None, "suppress_health_check": CHECKS}
#: Also lone surrogates; and what terminals, Markdown, XML and matplotlib take for more than text.
LIVE = (
    "\x1b[31m",
    "\r",
    "\x0b",
    "\x85",
    "\u2028",
    "\u202e",
    "\udcff",
    "\ufffe",
    "$x_{$",
    "|",
    "`",
    "<b>",
    "@me",
    "\n# h",
)
TEXT = st.text(st.characters(exclude_categories=()), max_size=12) | st.lists(
    st.sampled_from(LIVE) | st.text(max_size=3), max_size=4
).map("".join)
NUMBER = (
    st.integers()
    | st.sampled_from((10**12, -(10**30), 2**53 + 1, 10**400))
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)


@cache
def sound() -> list[dict]:
    """The lines of a small GPU run and a segment of it, as plain values."""
    run = factory.sweep_run(batch_sizes=(1, 8))
    cells = [msgspec.structs.replace(cell, metrics=short(cell.metrics)) for cell in run.cells]
    header = msgspec.structs.replace(
        run.header,
        cells=tuple(cell.key for cell in cells),
        compiled={"a.cu": {"sm_90": "ok"}},
        config={**run.header.config, "measure": {"cache": "hot", "seed": None}, "sweep": [{"batch_size": [1, 8]}]},
        shard="1/2",
        sources={"harness/": "0" * 16},
        variants=tuple(dict.fromkeys(f"{cell.operator}/{cell.variant}" for cell in cells)),
    )
    segment = Segment(process=1, started=header.started, why="resumed", environment=header.environment)
    cells[-1] = msgspec.structs.replace(cells[-1], process=1)
    run = Run("sound", header, cells, segments=[segment])
    return [json.loads(msgspec.json.encode(line)) for line in lines_of(run)]


def short(metrics):
    few = {name: getattr(metrics, name)[:6] for name in ("host_us", "eager_us")}
    graph_us = {copies: times[:6] for copies, times in metrics.graph_us.items()}
    return msgspec.structs.replace(metrics, **few, graph_us=graph_us)


def places(value, path=()):
    """The path of every field and element, of long lists the first one."""
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for name, below in inner:
        yield (*path, name)
        yield from places(below, (*path, name))


PLACES = [(line, path) for line in (0, 1, 2, -2, -1) for path in places(sound()[line])]


def changed(mutations) -> list[dict]:
    lines = copy.deepcopy(sound())
    for (line, path), value in mutations:
        holder = lines[line]
        try:
            for name in path[:-1]:
                holder = holder[name]
            holder[path[-1]] = value
        except (KeyError, IndexError, TypeError):  # an earlier mutation replaced what was above it
            assume(False)
    return lines


def alike(place):
    """Values of the type that stands there, which reading is less likely to refuse, or any."""
    line, path = place
    old = sound()[line]
    for name in path:
        old = old[name]
    same = TEXT if isinstance(old, str) else NUMBER if isinstance(old, (int, float)) else VALUE
    return st.tuples(st.just(place), same | VALUE)


MUTATIONS = st.lists(st.sampled_from(PLACES).flatmap(alike), min_size=1, max_size=3).map(changed)


def written(lines, path, ascii_only: bool):
    content = "".join(json.dumps(line, ensure_ascii=ascii_only, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(factory.resealed(content.encode("utf-8", "surrogatepass")))
    return path


def read_or_refused(path):
    try:
        return read_run(path)
    except RecordError as error:
        sentence = str(error)
    assert str(path) in sentence
    assert printable(sentence) == sentence
    return None


def console() -> PrintableConsole:
    return PrintableConsole(file=io.StringIO(), width=100)


def shown_safely(text: str) -> None:
    assert all(printable(line) == line for line in text.split("\n"))


def rendered_safely(text: str) -> None:
    """Nothing of a record becomes a tag, a link, an image or a heading of its own."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
    assert not kinds & {"link_open", "image", "code_block", "fence", "blockquote_open", "em_open", "s_open", "hr"}
    html = {child.content for token in tokens for child in token.children or () if child.type == "html_inline"}
    assert html <= {"<br>", "<!-- -->"}


def processes(run: Run) -> list[Run]:
    """As if three processes had given the same samples."""
    return [
        msgspec.structs.replace(run, header=msgspec.structs.replace(run.header, started=f"2026-01-0{i}"))
        for i in (1, 2, 3)
    ]


def without_folds(text: str) -> str:
    for tag in ("<details>", "</details>", "<summary>", "</summary>"):
        text = text.replace(tag, "")
    return text


def refuse(name: str):
    raise AssertionError(f"{name} is not JSON")


def page_safely(text: str) -> None:
    """Nothing of a record becomes an element of the page."""
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, _: tags.append(tag)
    parser.feed(text)
    parser.close()
    assert set(tags) <= {"html", "head", "meta", "style", "body", "pre", "code", "span"}


@settings(max_examples=examples(50), **SLOW)
@given(lines=MUTATIONS, ascii_only=st.booleans())
def test_any_field_may_hold_anything(lines, ascii_only, tmp_path):
    run = read_or_refused(written(lines, tmp_path / "run.jsonl", ascii_only))
    if run is None:
        return
    other = read_run(written(sound(), tmp_path / "other.jsonl", ascii_only))
    screen = console()
    try:
        print_run(screen, run)
        rendered_safely(markdown(result_tables(run)))
    except RecordError:
        pass
    rule = Rule(any_config=True)
    for compared in (
        lambda: compare([run], [other], rule),
        lambda: compare(processes(other), processes(run), rule),
        lambda: compare(processes(run), processes(run), rule),
        lambda: compare_variants(processes(run), "cuda_fused", "op_chain", rule),
        lambda: compare_variants([run], "cuda_fused", "triton_fused", rule),
    ):
        try:
            comparison = compared()
        except CompareError as error:
            shown_safely(str(error))
            continue
        comparison_console(comparison, screen)
        rendered_safely(without_folds(comparison_markdown(comparison)))
        page_safely(comparison_html(comparison))
        json.loads(comparison_json(comparison), parse_constant=refuse)
    try:
        merged = merge([run, other])
        missing_shards([merged])
    except RecordError:
        pass
    shown_safely(screen.file.getvalue())
    (tmp_path / "again.jsonl").unlink(missing_ok=True)
    write_run(run, tmp_path / "again.jsonl")
    assert read_run(tmp_path / "again.jsonl").cells == run.cells


def lively(value, name=""):
    """Part of a record with LIVE behind every text that plots show. A lone surrogate would be refused."""
    if isinstance(value, dict):
        return {key: lively(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [lively(inner, name) for inner in value]
    shown = name in ("gpu", "driver", "commit", "processor", "operator", "variant", "point", "baseline", "reason")
    return value + "".join(LIVE).replace("\udcff", "") if shown and isinstance(value, str) else value


@full
def test_a_record_with_any_text_is_drawn(tmp_path):
    run = read_run(written([lively(line) for line in sound()], tmp_path / "run.jsonl", ascii_only=True))
    other = read_run(written(sound(), tmp_path / "other.jsonl", ascii_only=True))
    paths = draw_all([run, other], tmp_path)
    paths += draw(compare([run], [run]), tmp_path / "regression")
    assert len(paths) > 6
    for path in paths:
        if path.suffix == ".svg":
            ElementTree.parse(path)
