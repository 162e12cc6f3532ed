"""The documents: measured parts are those of the records, links lead somewhere, the example runs."""

import re
import shlex
from pathlib import Path

import pytest

from spec_decode_bench import bench
from spec_decode_bench.harness.report import overview
from tests.cli.test_cli import call
from tests.tier import full
from tools import splice

ROOT = Path(__file__).parents[1]
DOCUMENTS = splice.documents()
EXAMPLE = ROOT / "examples" / "my_decode_native.py"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(path):
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@full
def test_splicing_changes_nothing(capsys):
    assert splice.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    broken = []
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        file = path.parent / target if target else path
        if "://" not in link and (not file.exists() or (anchor and anchor not in anchors(file))):
            broken.append(link)
    assert broken == []


COMMAND = re.compile(r"^(?: *|PYTHONPATH=\S+ |\.venv/bin/)python bench\.py (\S[^`\n]*)$", re.MULTILINE)
SHOWN = [*DOCUMENTS, ROOT / ".github" / "workflows" / "gate.yml"]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_commands_shown_are_understood(path):
    """Lines that are a whole command: their flags exist."""
    for shown in COMMAND.findall(path.read_text(encoding="utf-8").replace("\\\n", " ")):
        words = shlex.split(shown.split(" || ")[0].split(" > ")[0], comments=True)
        words = words if words[0] in bench.commands() or words[0].startswith("-") else ["run", *words]
        if "--help" not in words:
            bench.parser().parse_args(words)


def test_the_readme_is_one_page_and_its_example_a_variant():
    """Verified as its first line is run, without the times."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 160
    assert "<!-- splice:source examples/my_decode_native.py -->" in text
    only = ["--only", "decode_native/mine/*", "--variants", EXAMPLE, "--device", "cpu"]
    code, out, err = call("verify", ROOT / "configs" / "smoke.yaml", *only, "--no-array")
    assert code == 0, out + err
    assert "decode_native/mine" in out


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("<!-- splice:sumary -->\n<!-- /splice -->", "did you mean summary?"),
        ("<!-- splice:loop nvidia-h200/mtp1x -->\n<!-- /splice -->", "results/reference/nvidia-h200/mtp1x.jsonl"),
        ("<!-- splice:source bench.py:nothing -->\n<!-- /splice -->", "nothing"),
        ("<!-- splice:pairs -->\n<!-- splice:records -->\n<!-- /splice -->", "'pairs' has no <!-- /splice -->"),
    ],
)
def test_a_block_that_cannot_be_written_is_one_sentence(block, error, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{block}\n")
    monkeypatch.setattr(splice, "documents", lambda: [page])
    assert splice.main([]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: page.md")
    assert error in err
    assert err.count("\n") == 1
    assert page.read_text() == f"# Page\n\n{block}\n"


def test_an_outdated_block_is_reported_and_rewritten(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    outdated = "before\n<!-- splice:source harness/errors.py:UsageError -->\noutdated\n<!-- /splice -->\nafter\n"
    page.write_text(outdated)
    monkeypatch.setattr(splice, "documents", lambda: [page])
    assert splice.main(["--check"]) == 1
    assert page.read_text() == outdated
    assert splice.main([]) == 0
    assert "class UsageError(Exception):" in page.read_text()
    assert page.read_text().startswith("before\n<!-- splice:source")
    assert page.read_text().endswith("<!-- /splice -->\nafter\n")
    assert splice.main(["--check"]) == 0


@full
def test_the_readme_compares_with_an_engine_where_it_has_a_kernel():
    shown, timed = set(), set()
    for name in ("upstream", "upstream_step"):
        cells = splice.record(f"{splice.H200}/{name}").cells
        timed |= {cell.operator for cell in cells if cell.metrics and overview.is_engine(cell)}
    for operator, name, point, _ in splice.SUMMARY:
        (row,) = overview.rows_at([splice.record(f"{splice.H200}/{name}")], point, operator)
        shown |= {operator} if overview.is_engine(overview.before_and_fused(row)[0]) else set()
    assert {operator for operator, *_ in splice.SUMMARY} & timed <= shown


NAMED = re.compile(r"`((?:harness|plots|regression|decode_loop|profiler|cli|tools|baselines|kernels)/[\w/.]+\.\w+)`")


def test_files_named_by_the_architecture_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert [name for name in NAMED.findall(text) if not (ROOT / name).is_file()] == []
