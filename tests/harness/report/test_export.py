"""The table of `export`: a row for each metric of each cell, whatever the cell is."""

import csv
import io

from msgspec.structs import replace

from spec_decode_bench.harness.analysis.stats import interval
from spec_decode_bench.harness.checks import Difference
from spec_decode_bench.harness.report.export import OUTCOME, table
from tests import factory
from tests.cli.test_cli import call


def example():
    cells = [
        factory.cell("decode_native", "cuda_fused", {"batch_size": 8, "context_len": "uniform(1;9)"}, 1.5),
        factory.cell(
            "decode_native", "wrong", {"batch_size": 8, "context_len": 4096}, status="mismatch", reason="a,\nb"
        ),
        factory.cell("other", "op_chain", {"batch_size": 8, "status": 2}, 3.0),
    ]
    return factory.run(factory.gpu_environment(), cells)


def test_a_row_for_each_figure_of_each_cell():
    run = example()
    columns = table([run])
    assert len({len(values) for values in columns.values()}) == 1
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    metrics = ["gpu_us", "host_us", "eager_us"]
    assert [(row["variant"], row["metric"]) for row in rows] == [
        *(("cuda_fused", metric) for metric in metrics),
        ("wrong", None),
        *(("op_chain", metric) for metric in metrics),
    ]
    time = interval(run.cells[0], "gpu_us")
    assert (rows[0]["median_us"], rows[0]["low_us"], rows[0]["high_us"]) == (time.median, time.low, time.high)
    assert (rows[0]["samples"], rows[0]["launches"], rows[0]["gpu"]) == (20, 1, "NVIDIA H200")
    assert (rows[3]["status"], rows[3]["median_us"]) == ("mismatch", None)
    assert "a," in rows[3]["reason"]


def test_axes_are_columns_of_one_type():
    columns = table([example()])
    assert columns["batch_size"] == [8] * 7
    assert columns["context_len"][:4] == ["uniform(1;9)"] * 3 + ["4096"]
    assert columns["context_len"][4:] == [None] * 3
    assert columns["axis_status"] == [None] * 4 + [2] * 3  # its name is that of another column
    assert set(columns["status"]) == {"passed", "mismatch"}
    assert list(columns)[-len(OUTCOME) :] == list(OUTCOME)


def test_a_failure_has_check_tensor_and_index():
    wrong = factory.cell("decode_native", "wrong", {"batch_size": 8}, status="mismatch", reason="differs")
    difference = Difference(tensor="buffer", index=(2, 1), expected=1, got=2, wrong=1)
    finding = replace(wrong.finding, check="exact", difference=difference)
    columns = table([factory.run(factory.gpu_environment(), [replace(wrong, finding=finding)])])
    assert [columns[name] for name in ("check", "tensor", "index")] == [["exact"], ["buffer"], ["2 1"]]


def test_the_command(tmp_path):
    folder = tmp_path / "runs"
    for number in (1, 2):
        factory.write(example(), folder / f"run{number}.jsonl")
    code, out, err = call("export", folder)
    assert (code, err) == (0, "")
    assert len(list(csv.reader(io.StringIO(out)))) == 15
    assert call("export", folder, "--out", tmp_path / "cells.csv")[:2] == (0, "")
    assert (tmp_path / "cells.csv").read_text() == out
    assert "cannot write to" in call("export", folder, "--out", tmp_path / "no" / "cells.csv")[2]


def test_no_record_is_overwritten(tmp_path):
    factory.write(example(), tmp_path / "run.jsonl")
    before = (tmp_path / "run.jsonl").read_bytes()
    code, out, err = call("export", tmp_path / "run.jsonl", "--out", tmp_path / "run.jsonl")
    assert (code, out) == (2, "")
    assert "does not overwrite" in err
    assert (tmp_path / "run.jsonl").read_bytes() == before
