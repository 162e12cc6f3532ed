"""`bench.py list`: every variant with the checks it waives, every check with its meaning, at any width."""

import json
import re

from spec_decode_bench import bench
from spec_decode_bench.harness.checks import NAMES, WAIVABLE
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.report.listing import defined

CATALOG = discover()


def listed(capsys, *options):
    assert bench.main(["list", "--device", "cpu", *options]) == 0
    return capsys.readouterr().out


def test_json_says_for_every_variant_and_check_whether_it_is_waived(capsys):
    catalog = json.loads(listed(capsys, "--json"))
    assert [check["name"] for check in catalog["checks"]] == list(NAMES)
    assert {check["name"] for check in catalog["checks"] if check["waivable"]} == set(WAIVABLE)
    rows = {f"{row['operator']}/{row['variant']}": row for row in catalog["variants"]}
    assert set(rows) == {variant.id for variant in CATALOG.variants}
    for variant in CATALOG.variants:
        waived = {name: "waived" if name in variant.waives else "required" for name in NAMES}
        assert (rows[variant.id]["checks"], rows[variant.id]["defect"]) == (waived, variant.defect)
    unavailable = [rows[f"decode_native/{name}"]["unavailable"] for name in ("flat_view", "cuda_fused")]
    assert unavailable == [None, "needs a GPU"]
    axes = next(operator["axes"] for operator in catalog["operators"] if operator["name"] == "decode_native")
    assert (axes["batch_size"]["default"], axes["max_decode_len"]["default"]) == ("32", None)  # it follows from next_n
    assert catalog["unavailable_files"] == {}


def test_an_operator_is_defined_by_its_own_module():
    """decode_step has the classes of decode_flatten."""
    text = {name: "\n".join(defined(operator)) for name, operator in CATALOG.operators.items()}
    assert len(set(text.values())) == len(text)
    assert "decode_path: flatten" in text["decode_step"]
    assert "decode_path: flatten" not in text["decode_flatten"]


def test_an_operator_is_listed_with_its_tensors(capsys):
    out = listed(capsys, "decode_native")
    assert re.search(r"^x\.seq_lens +int32 +\[batch_size\] ", out, re.MULTILINE)
    assert re.search(r"^out\.context_lens +int32 +\[batch_size, max_decode_len\] +view of buffer", out, re.MULTILINE)


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
