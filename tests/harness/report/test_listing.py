"""`bench.py list`: every variant with the checks it waives, every check with its meaning, at any width."""

import itertools
import json

import pytest

import bench
from harness.checks import CHECKS, NAMES, WAIVABLE
from harness.discover import discover

CATALOG = discover()


def listed(capsys, *options):
    assert bench.main(["list", "--device", "cpu", *options]) == 0
    return capsys.readouterr().out


def test_json_says_for_every_variant_and_check_whether_it_is_waived(capsys):
    catalog = json.loads(listed(capsys, "--json"))
    assert [check["name"] for check in catalog["checks"]] == list(NAMES)
    assert {check["name"] for check in catalog["checks"] if check["waivable"]} == set(WAIVABLE)
    rows = {f"{row['operator']}/{row['variant']}": row["checks"] for row in catalog["variants"]}
    assert set(rows) == {variant.id for variant in CATALOG.variants}
    for variant in CATALOG.variants:
        assert rows[variant.id] == {name: "waived" if name in variant.waives else "required" for name in NAMES}
    assert [name for name, state in rows["mla_tile_schedule/host_loop"].items() if state == "waived"] == list(WAIVABLE)


def check_rows(out):
    """Operator -> variant -> what its table of checks says, from left to right."""
    found, operator = {}, None
    for line in out.splitlines():
        if (name := line.partition(":")[0]) in CATALOG.operators:
            operator = name
        words = line.split()
        if operator and {"required", "waived"} & set(words[1:2]):
            found.setdefault(operator, {})[words[0]] = words[1:]
    return found


@pytest.mark.parametrize("width", [None, 60, 80, 120])
def test_every_check_is_a_column_or_one_of_the_others(width, capsys, monkeypatch):
    """Without COLUMNS as in a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    out = listed(capsys)
    assert max(map(len, out.splitlines())) <= (width or 100)
    found = check_rows(out)
    assert list(found) == list(CATALOG.operators)
    for operator, rows in found.items():
        healthy = [variant for variant in CATALOG.of(operator) if variant.defect is None]
        assert list(rows) == [variant.name for variant in healthy]
        for variant in healthy:
            states = ["waived" if name in variant.waives else "required" for name in WAIVABLE]
            assert rows[variant.name] == [*states, "required"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_check_is_explained(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = itertools.dropwhile(lambda line: not line.startswith("checks: "), listed(capsys).splitlines())
    table = list(lines)[3:]
    first_words = [line.split()[0] for line in table if line[:1].strip()]
    assert first_words == list(NAMES)
    text = " ".join(" ".join(table).split())
    assert text.count(" yes ") == len(WAIVABLE)
    assert len(CHECKS) == len(first_words)
