"""What the README says of the records and of the code: the figures of its tables, its counts."""

import re
from functools import cache
from pathlib import Path

import pytest

from harness.analysis import estimators
from harness.analysis.stats import floor_us, interval
from harness.records.file import read_run
from tests.adversaries.test_adversaries import GPU_REJECTIONS, REJECTIONS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: However its lines are broken.
TEXT = " ".join(README.split())
#: Row of the first two tables -> the label of its point in mtp3, less the padding tokens that decode_flatten alone
#: knows.
ROWS = {
    "B = 1": "batch_size=1,context_len=lognormal(4096;1)",
    "B = 128": "batch_size=128,context_len=lognormal(4096;1)",
    "B = 256": "batch_size=256,context_len=lognormal(4096;1)",
    "B = 128, 10 % padding": "batch_size=128,context_len=lognormal(4096;1),padding=0.1",
    "B = 128, ragged": "batch_size=128,decode_len=ragged,context_len=lognormal(4096;1)",
    "B = 256, 64–128K contexts": "batch_size=256,context_len=uniform(65536;131072)",
}

_STEP = "context_len=uniform(4096;8192)"
#: Row of the table of the other operators -> the label of its point in full, or in mamba_copy.
OTHERS = {
    "`decode_step`, flatten, B = 128": f"batch_size=128,{_STEP}",
    "`decode_step`, flatten, B = 128, 10 % padding": f"batch_size=128,{_STEP},padding=0.1",
    "`decode_step`, native, B = 128": f"batch_size=128,{_STEP},decode_path=native",
    "`decode_step`, flatten, 132 parts, B = 1024": f"batch_size=1024,{_STEP},num_heads_q=16",
    "`paged_mqa_schedule`, B = 128": f"batch_size=128,{_STEP}",
    "`paged_mqa_schedule`, B = 1024": f"batch_size=1024,{_STEP}",
    "`mla_tile_schedule`, 16 parts, B = 128": f"batch_size=128,{_STEP}",
    "`mla_tile_schedule`, 16 parts, B = 1024": f"batch_size=1024,{_STEP}",
    "`mla_tile_schedule`, 132 parts, B = 1024": f"batch_size=1024,{_STEP},num_heads_q=16",
    "`k_quant_gather`, 32K tokens, B = 128": "batch_size=128",
    "`k_quant_gather`, 128K tokens, B = 256": "batch_size=256,chunk_tokens=131072",
    "`k_quant_gather`, 512K tokens, B = 1024": "batch_size=1024,chunk_tokens=524288",
    "`mamba_spec_metadata`, B = 128": f"batch_size=128,{_STEP}",
    "`mamba_state_gather`, 40 layers, B = 128": f"batch_size=128,{_STEP}",
    "`mamba_state_copy`, 4 layers, B = 128, 13 requests cross": "batch_size=128,context_len=lognormal(8192;1),crossing=0.1,num_layers=4",
    "`seq_lens_update`, B = 128": f"batch_size=128,{_STEP}",
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


@pytest.mark.parametrize("row", OTHERS)
def test_the_table_of_the_other_operators_holds_the_figures_of_the_records(row):
    operator = row.split("`")[1]
    run = recorded("mamba_copy" if operator == "mamba_state_copy" else "full")
    cells = {cell.variant: cell for cell in run.cells if (cell.operator, cell.point) == (operator, OTHERS[row])}
    # The baseline of the copies decides on the host, so it has no GPU time.
    chain = "masked_chain" if operator == "mamba_state_copy" else next(iter(cells.values())).baseline
    *shown, floor = boxes(README[README.index(f"| {row} |") :].splitlines()[0])[1:]
    for variant, box in zip((chain, "triton_fused", "cuda_fused"), shown, strict=True):
        gpu, host, launches = re.match(r"([\d.]+) · (\d+)(?: \((\d+))?", box).groups(default="1")
        metrics, host_us = cells[variant].metrics, interval(cells[variant], "host_us").median
        assert gpu == rounded_as(gpu, interval(cells[variant], "gpu_us").median), variant
        assert int(host) == (round(host_us) if host_us < 1000 else round(host_us, -1)), variant
        assert int(launches) == metrics.launches, variant
    assert floor == rounded_as(floor, floor_us(run.header.calibration, cells["cuda_fused"].metrics.bytes_moved))


def test_so_many_cells_agree():
    said = re.search(
        r"agree in (\d+) of (\d+) timed cells of `mtp3`, in (\d+) of (\d+) of `full` without `seq_lens_update` and in (\d+) of (\d+) of",
        TEXT,
    )
    counted = []
    for name in ("mtp3", "full", "mamba_copy"):
        run = recorded(name)
        found = [
            estimators.estimates(c.metrics, run.calibration_of(c))
            for c in run.cells
            if (name, c.operator) != ("full", "seq_lens_update")
        ]
        counted += [sum(one.agree for one in found if one), sum(one is not None for one in found)]
    assert list(map(int, said.groups())) == counted


def test_counts_of_the_code(catalog):
    points = sorted(len(operator.hard_points) for operator in catalog.operators.values())
    assert f"{points[0]} to {points[-1]} for each operator" in TEXT
    # One of those on a GPU may also be timed without a graph.
    assert f"holds {len(REJECTIONS) + len(GPU_REJECTIONS) + 1} cheating and broken variants" in TEXT


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_is_named(path):
    assert f"`{path.stem}`" in README[README.index("| `configs/` |") : README.index("```yaml")]
