"""What the README says of the records and of the code: the figures of its tables, its counts."""

import re
from functools import cache
from pathlib import Path

import pytest

from harness.results import trust
from harness.results.record_file import read_run
from harness.results.stats import floor_us, interval
from tests.test_adversaries import GPU_REJECTIONS, REJECTIONS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Row of the first two tables -> the label of its point in mtp3, less the padding tokens that decode_flatten alone knows.
ROWS = {
    "B = 1": "batch_size=1,context_len=lognormal(4096;1)",
    "B = 128": "batch_size=128,context_len=lognormal(4096;1)",
    "B = 256": "batch_size=256,context_len=lognormal(4096;1)",
    "B = 128, 10 % padding": "batch_size=128,context_len=lognormal(4096;1),padding=0.1",
    "B = 128, ragged": "batch_size=128,decode_len=ragged,context_len=lognormal(4096;1)",
    "B = 256, 64–128K contexts": "batch_size=256,context_len=uniform(65536;131072)",
}


@cache
def recorded(name):
    return read_run(ROOT / "results" / "reference" / "nvidia-h200" / f"{name}.jsonl")


def boxes(line):
    return [box.strip() for box in line.strip().strip("|").split("|")]


def table(operator):
    """(variants, row -> boxes) of the table whose head begins with the operator."""
    lines = README[README.index(f"| `{operator}` |") :].split("\n\n", 1)[0].splitlines()
    return [head.strip("`") for head in boxes(lines[0])[1:]], {row[0]: row[1:] for row in map(boxes, lines[2:])}


def rounded_as(text, value):
    """The value with as many decimals as the text has."""
    return f"{value:.{len(text.partition('.')[2])}f}"


@pytest.mark.parametrize("operator", ["decode_flatten", "decode_native"])
def test_the_first_tables_hold_the_figures_of_the_record(operator):
    run, (variants, rows) = recorded("mtp3"), table(operator)
    assert set(rows) == set(ROWS)
    for row, shown in rows.items():
        labels = (ROWS[row], f"{ROWS[row]},token_padding=16")
        cells = {cell.variant: cell for cell in run.cells if cell.operator == operator and cell.point in labels}
        for variant, box in zip(variants, shown, strict=True):
            timed = variant == "floor" or cells[variant].status == "passed"
            assert timed == (box != "–"), (row, variant)
            if not timed:
                continue
            floor = floor_us(run.header.calibration, next(c for c in cells.values() if c.metrics).metrics.bytes_moved)
            expected = [floor]
            if variant != "floor":
                gpu, host = (interval(cells[variant], figure).median for figure in ("gpu_us", "host_us"))
                expected = [gpu, cells[variant].metrics.launches, host, gpu / floor]
            said = box.rstrip("×").split(" · ")
            assert said == [rounded_as(*pair) for pair in zip(said, expected, strict=True)], (row, variant)


def test_so_many_cells_agree():
    said = re.search(
        r"agree in (\d+) of (\d+)\s+timed cells of `mtp3`, in (\d+) of (\d+) of `full` without `seq_lens_update` and in (\d+) of (\d+) of",
        README,
    )
    counted = []
    for name in ("mtp3", "full", "mamba_copy"):
        run = recorded(name)
        found = [trust.estimates(c.metrics, run.calibration_of(c)) for c in run.cells if (name, c.operator) != ("full", "seq_lens_update")]
        counted += [sum(one.agree for one in found if one), sum(one is not None for one in found)]
    assert list(map(int, said.groups())) == counted


def test_counts_of_the_code(catalog):
    points = sorted(len(operator.hard_points) for operator in catalog.operators.values())
    assert f"{points[0]} to {points[-1]} for each operator" in README
    # One of those on a GPU may also be timed without a graph.
    assert f"holds {len(REJECTIONS) + len(GPU_REJECTIONS) + 1} cheating and broken variants" in README


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_is_named(path):
    assert f"`{path.stem}`" in README[README.index("| `configs/` |") : README.index("```yaml")]
