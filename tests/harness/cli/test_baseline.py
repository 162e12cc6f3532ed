"""--baseline and baseline: what ratios, deltas and pictures refer to."""

import pytest

import bench
from harness.records.baseline import with_baseline
from harness.records.file import read_run
from harness.records.schema import RecordError
from tests.harness.cli.test_verification import call

YAML = "name: one\noperators: [decode_native]\nvariants: [chain_clamp, flat_view]\nsweep: [{batch_size: 3}]\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def one(*flags, yaml=""):
        (tmp_path / "one.yaml").write_text(YAML + yaml)
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        arguments = ["one.yaml", "--device", "cpu", "--out", str(out), "--no-plots", *flags]
        assert bench.main(arguments) == 0
        return read_run(out / "run.jsonl"), (out / "table.md").read_text(encoding="utf-8")

    return one


def test_ratios_refer_to_it(run):
    recorded, table = run("--baseline", "flat_view")
    assert {cell.baseline for cell in recorded.cells} == {"flat_view"}
    assert "times faster than flat" in table
    assert recorded.header.config["baseline"] == "flat_view"
    recorded, _ = run(yaml="baseline: {decode_native: flat_view}\n")
    assert {cell.baseline for cell in recorded.cells} == {"flat_view"}
    recorded, _ = run()
    again = with_baseline([recorded], "flat_view")
    assert {cell.baseline for cell in recorded.cells} == {"chain_clamp"}
    assert {cell.baseline for cell in again[0].cells} == {"flat_view"}
    with pytest.raises(RecordError, match="no variant of these records has this name; did you mean flat_view"):
        with_baseline([recorded], "flat_veiw")


def test_one_that_is_not_timed_is_named(run):
    _, table = run("--baseline", "flat_view", "--only", "decode_native/chain_clamp")
    assert "no ratios: the baseline flat" in table
    assert "no ratios" not in run("--baseline", "flat_view")[1]
    assert "no ratios" not in run("--only", "decode_native/flat_view")[1]


def test_an_unknown_one_is_refused(run, tmp_path):
    (tmp_path / "one.yaml").write_text(YAML)
    code, _, err = call("one.yaml", "--device", "cpu", "--baseline", "flat_veiw", "--plan")
    assert code == 2
    assert "--baseline flat_veiw: no variant of this run is called 'flat_veiw'; did you mean flat_view?" in err
