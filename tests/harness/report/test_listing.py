"""`bench.py list`: every variant with the checks it waives, every check with its meaning, at any width."""

import json
import re

from spec_decode_bench import bench
from spec_decode_bench.harness.checks import NAMES, WAIVABLE
from spec_decode_bench.harness.discover import discover

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
