"""--baseline and baseline: what ratios, deltas and pictures refer to."""

from pathlib import Path

import pytest

from spec_decode_bench import bench
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import RecordError
from spec_decode_bench.harness.records.select import with_baseline
from tests.cli.test_cli import call

YAML = "name: one\noperators: [decode_native]\nvariants: [chain_clamp, flat_view]\nsweep: [{batch_size: 3}]\n"


@pytest.fixture(autouse=True)
def in_a_folder_with_a_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text(YAML)


def test_ratios_refer_to_it():
    arguments = ["one.yaml", "--device", "cpu", "--out", "out", "--no-plots", "--baseline", "flat_view"]
    assert bench.main(arguments) == 0
    recorded, table = read_run("out/run.jsonl"), Path("out/table.md").read_text(encoding="utf-8")
    assert {cell.baseline for cell in recorded.cells} == {"flat_view"}
    assert "times faster than flat" in table
    assert recorded.header.config["baseline"] == "flat_view"
    again = with_baseline([recorded], "chain_clamp")
    assert {cell.baseline for cell in again[0].cells} == {"chain_clamp"}
    with pytest.raises(RecordError, match="no variant in these records has this name; did you mean flat_view"):
        with_baseline([recorded], "flat_veiw")


def test_an_unknown_one_is_refused():
    code, _, err = call("one.yaml", "--device", "cpu", "--baseline", "flat_veiw", "--plan")
    assert code == 2
    assert "--baseline flat_veiw: unknown variant 'flat_veiw'; did you mean flat_view?" in err
