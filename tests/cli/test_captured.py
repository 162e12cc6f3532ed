"""Captured inputs from the command line: planned, verified, timed, repeated alone, listed."""

import pytest

from spec_decode_bench.harness.records.file import read_record, read_run
from spec_decode_bench.harness.records.schema import Code, Status
from tests import captured
from tests.cli.test_cli import call

VARIANTS = ("chain_clamp", "flat_view")
AXES = {"batch_size": 3, "context_len": 100}
LEFT_OUT = (
    "warning: llama.capture: 1 of 3 entries left out: "
    "decode_native at step 60: max_decode_len (9) must not exceed next_n (4)"
)


@pytest.fixture
def config(tmp_path, monkeypatch, catalog):
    """Two entries of decode_native, the second one without its lengths, and one that breaks a rule."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    native = catalog.operators["decode_native"]
    entries = [captured.generated(native, 1, step, **AXES) for step in (10, 1200, 60)]
    entries[1][3].pop("seq_lens")
    entries[2][2]["max_decode_len"] = 9
    captured.write(tmp_path / "llama.capture", entries)
    path = tmp_path / "c.yaml"
    path.write_text(
        "name: c\noperators: [decode_native]\nvariants: [chain_clamp, flat_view]\nsweep: [{capture: llama.capture}]\n"
        "measure: {time_budget_s: 0.2, seed: 1}\n"
    )
    return path


def test_plan(config):
    code, out, err = call(config, "--plan")
    names = [f"decode_native/{v}/batch_size=3,context_len=100,capture=llama@{s}" for s in (10, 1200) for v in VARIANTS]
    assert (code, out.splitlines()) == (0, names)
    assert err.splitlines() == [LEFT_OUT, "2 points, 4 cells"]


def test_run(config, tmp_path):
    code, out, err = call(config, "--device", "cpu", "--out", tmp_path / "out", "--no-plots")
    assert (code, err.splitlines()[0]) == (0, LEFT_OUT)
    cells = {(cell.variant, cell.point[-10:]): cell for cell in read_run(tmp_path / "out" / "run.jsonl").cells}
    for variant in VARIANTS:
        timed, skipped = cells[variant, "e=llama@10"], cells[variant, "llama@1200"]
        assert (timed.status, timed.axes["capture"]["name"]) == (Status.PASSED, "llama@10")
        assert timed.metrics.cpu_us
        assert (skipped.status, skipped.reason.code) == (Status.SKIPPED, Code.CAPTURED)
    assert "the captured seq_lens is absent" in " ".join(out.split())


def test_verify_at_a_captured_point(config, tmp_path):
    key = "decode_native/flat_view/batch_size=3,context_len=100,capture=llama"
    code, out, _ = call("verify", config, "--device", "cpu", "--point", f"{key}@10", "--out", tmp_path / "out")
    assert code == 0
    assert "passed" in out
    (line,) = read_record(tmp_path / "out" / "run.jsonl").others
    assert line.found.name.endswith("capture=llama@10")
    code, _, err = call("verify", config, "--device", "cpu", "--point", f"{key}@1200")
    assert (code, "the captured seq_lens is absent" in err) == (2, True)
    code, _, err = call("verify", config, "--device", "cpu", "--point", f"{key}@11")
    assert (code, "not a captured point of this configuration; did you mean" in err) == (2, True)


def test_list(config):
    code, out, _ = call("list", "llama.capture", "--device", "cpu")
    assert code == 0
    text = " ".join(out.split())
    assert text.startswith("made-up, eagle with 3 drafts, in vLLM 0.0 ")
    assert "decode_native 10, 1200" in text
    assert "batch_size=3,context_len=100" in text
    assert LEFT_OUT.removeprefix("warning: ") in text


def test_list_of_a_missing_file(config):
    code, _, err = call("list", "lama.capture", "--device", "cpu")
    assert (code, err.startswith("error: lama.capture: cannot be read: No such file or directory")) == (2, True)
