"""The covering array as a part of `verify`, which `sizes=` adds to; its flag and its budget."""

import re

import pytest

from spec_decode_bench.harness.verify import covering_array
from tests.cli.test_cli import call
from tests.tier import full

CONFIG = """\
name: one
operators: [decode_native]
variants: [VARIANT]
sweep: [{batch_size: 3}]
"""
#: Wrong for one size of batch only.
VARIANT = """\
from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.harness.contract import variant

@variant("decode_native", skip=chain_clamp.__variant__.skip, waives="no_alloc", sizes={"batch_size": (777,)})
def wrong_at_777(point, x, out):
    right = chain_clamp(point, x, out)
    def launch():
        right()
        if point.batch_size == 777:
            out.buffer[5] += 1
    return launch
"""


@pytest.fixture
def verify(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(covering_array, "MOST_BYTES", 1 << 16)  # whose reference is computed in a moment

    def run(variant, *arguments, text=VARIANT):
        (tmp_path / "one.yaml").write_text(CONFIG.replace("VARIANT", variant))
        (tmp_path / "mine.py").write_text(text)
        mine = ["--variants", tmp_path / "mine.py"] if variant == "wrong_at_777" else []
        return call("verify", tmp_path / "one.yaml", *mine, "--device", "cpu", "--seed", 5, *arguments)

    return run


def summary(out, name):
    """Cells of a variant's line in the last table."""
    return [line for line in out.splitlines() if line.startswith(f"decode_native/{name} ")][-1]


@full
def test_a_declared_size_is_tried_and_only_there(verify):
    code, out, _ = verify("wrong_at_777")
    assert code == 1
    assert "decode_native/wrong_at_777 at batch_size=777" in out
    code, out, _ = verify("wrong_at_777", "--no-array")
    assert code == 0
    assert "points of the array" not in out


def test_what_the_interpreter_has_no_time_for_is_counted(verify):
    code, out, _ = verify("triton_fused", "--set", "measure.interpreter_budget_s=0.2")
    assert code == 0
    assert "left out: interpreter budget (--set measure.interpreter_budget_s=SECONDS)" in out
    assert re.search(r"s: edge cases and sequences [\d.]+, points of the array [\d.]+", out)
    assert re.search(r"most for decode_native/triton_fused: [\d.]+ s", out)
    assert "left out" in summary(out, "triton_fused")
