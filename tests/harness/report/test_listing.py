"""`bench.py list`: every variant with the checks it waives, every check with its meaning, at any width."""

import itertools
import json
import re

import pytest

from spec_decode_bench import bench
from spec_decode_bench.harness.checks import CHECKS, NAMES, WAIVABLE
from spec_decode_bench.harness.discover import discover
from tests.tier import few

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


def test_an_operator_names_the_configurations_that_measure_it(capsys):
    assert "\nmeasured by full, k_gather, upstream, vllm\n" in listed(capsys, "k_quant_gather")


def check_rows(out):
    """Operator -> variant -> what its table of checks says, from left to right."""
    rows, operator = {}, None
    for line in out.splitlines():
        if (name := line.partition(":")[0]) in CATALOG.operators:
            operator = name
        words = line.split()
        if operator and {"required", "waived"} & set(words[1:2]):
            rows.setdefault(operator, {})[words[0]] = words[1:]
    return rows


@pytest.mark.parametrize("width", few([None, 60], 1))
def test_every_check_is_a_column_or_one_of_the_others_and_a_rule_names_an_axis_once(width, capsys, monkeypatch):
    """Without COLUMNS as in a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    tables = {}
    for name in CATALOG.operators:
        out = listed(capsys, name)
        assert max(map(len, out.splitlines())) <= (width or 100)
        tables |= check_rows(out)
        rules = out.partition("\nrules that every point must keep\n")[2].partition("\n\n")[0]
        assert not any(word == then for rule in rules.split("\n") for word, then in itertools.pairwise(rule.split()))
    assert list(tables) == list(CATALOG.operators)
    for operator, rows in tables.items():
        healthy = [variant for variant in CATALOG.of(operator) if variant.defect is None]
        assert list(rows) == [variant.name for variant in healthy]
        for variant in healthy:
            states = ["waived" if name in variant.waives else "required" for name in WAIVABLE]
            assert rows[variant.name] == [*states, "required"]


@pytest.mark.parametrize("width", [60, 120])
def test_every_check_is_explained(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = itertools.dropwhile(
        lambda line: not line.startswith("what the checks mean"), listed(capsys, "decode_native").splitlines()
    )
    table = list(lines)[3:]
    first_words = [line.split()[0] for line in table if line[:1].strip()]
    assert first_words == list(NAMES)
    text = " ".join(" ".join(table).split())
    assert text.count(" yes ") == len(WAIVABLE)
    assert len(CHECKS) == len(first_words)


def test_every_operator_is_listed_in_full(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = listed(capsys)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if re.match(r"[a-z_]+ +\d", line)] == list(CATALOG.operators)
    healthy = [variant for variant in CATALOG.of("decode_native") if variant.defect is None]
    assert re.search(rf"^decode_native +{len(healthy)} +\(B, L\) context lengths", out, re.MULTILINE)
    described = " ".join(line[33:].strip() for line in lines)
    assert all(operator.summary in described for operator in CATALOG.operators.values())
    assert re.search(r"variants unavailable, needs a GPU: .*cuda_fused", out)


def test_an_operator_is_listed_with_all_that_belongs_to_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = listed(capsys, "decode_native")
    operator = CATALOG.operators["decode_native"]
    for axis in operator.axes:
        assert re.search(rf"^{axis.name} .*{re.escape(axis.doc)}", out, re.MULTILINE)
    assert re.search(r"^max_decode_len +4 \* ", out, re.MULTILINE)  # follows from next_n
    assert re.search(r"^batch_size +32 +", out, re.MULTILINE)
    for case in operator.edge_cases:
        assert re.search(rf"^{re.escape(case.name)} ", out, re.MULTILINE)
    for name in operator.sequences:
        assert re.search(rf"^{re.escape(name)} ", out, re.MULTILINE)
    assert "\nmax_decode_len must not exceed next_n\n" in out
    assert "flat_view" in out
    assert "defect, never timed" in out
    assert "op_chain" not in out  # of other operators


def test_an_unknown_operator_is_named_with_the_nearest(capsys):
    assert bench.main(["list", "decode_nativ"]) == 2
    assert "did you mean decode_native?" in capsys.readouterr().err
