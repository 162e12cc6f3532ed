"""The enumeration of all checks: whatever rejects a variant is listed there, and documented."""

import ast
import re
from pathlib import Path

import pytest

from spec_decode_bench.harness.checks import CHECKS, NAMES, WAIVABLE, Mismatch

ROOT = Path(__file__).parents[2]


def rejecting_names(path):
    """First arguments of Mismatch(...), and what stands behind "check" in the fields of a Finding."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Mismatch":
            found = node.args[:1]
        elif isinstance(node, ast.Call) and re.search(r"(^F|\.f)inding$", ast.unparse(node.func)):
            found = [keyword.value for keyword in node.keywords if keyword.arg == "check"]
        elif isinstance(node, ast.Dict):
            found = [value for key, value in zip(node.keys, node.values, strict=True) if is_text(key, "check")]
        yield from (one.value for one in found if isinstance(one, ast.Constant))


def is_text(node, text):
    return isinstance(node, ast.Constant) and node.value == text


def test_every_check_of_the_harness_is_listed_and_every_listed_one_is_made():
    used = {name for path in (ROOT / "harness").rglob("*.py") for name in rejecting_names(path)}
    assert used == set(NAMES)


def test_names_differ_and_only_checks_on_a_device_can_be_waived():
    assert len(set(NAMES)) == len(CHECKS)
    assert set(WAIVABLE) == {"no_alloc", "no_sync", "graph_safe"}
    assert all(check.device == "cuda" for check in CHECKS if check.waivable)


def test_a_mismatch_names_a_listed_check():
    mismatch = Mismatch("exact", "out[0] expected 1, got 2")
    assert (mismatch.check, mismatch.message) == ("exact", "out[0] expected 1, got 2")
    assert str(mismatch) == "exact: out[0] expected 1, got 2"
    with pytest.raises(ValueError, match="'exakt' is not listed"):
        Mismatch("exakt", "")


def test_the_document_lists_exactly_these_checks():
    text = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8").partition("\n## One launch")[0]
    documented = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert documented == list(NAMES)
