"""Tables of a run: what they claim is there, and no terminal or Markdown parser takes a value apart."""

import io
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from spec_decode_bench.harness.report.console import print_tables
from spec_decode_bench.harness.report.table import markdown
from spec_decode_bench.harness.report.tables import result_tables
from tests import factory

CPU = factory.cpu_environment()


def long_run(scale: float = 1.0):
    """Axis values longer than a column beside six variants, and numbers everywhere."""
    points = [
        {"batch_size": size, "max_decode_len": rows, "decode_len": form, "context_len": lengths, "token_padding": pad}
        for size in (1, 128)
        for rows, form, lengths, pad in (
            (3, "uniform", 2048, 0),
            (4, "uniform", "uniform(65536;131072)", 0),
            (4, "ragged", 2048, 16),
            (4, "uniform", 2048, 0),
        )
    ]
    times = {
        "op_chain": 31.4,
        "merged_chain": 24.4,
        "compiled_chain": 14.8,
        "triton_uniform": 2.79,
        "triton_fused": 1.34 * scale,
    }
    cells = [factory.cell("decode_flatten", name, axes, gpu) for axes in points for name, gpu in times.items()]
    return factory.run(factory.gpu_environment(), cells)


def shown(width: int, draw) -> str:
    console = Console(file=io.StringIO(), width=width)
    draw(console)
    return console.file.getvalue()


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,]\d+)*", text))


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 300])
def test_no_terminal_cuts_a_number_of_a_table(width):
    tables = result_tables(long_run())
    assert len(tables) == 2, "times, and what is modelled of them"
    text = shown(width, lambda console: print_tables(console, tables))
    assert max(map(len, text.splitlines())) <= width
    assert numbers(text) == numbers(shown(10_000, lambda console: print_tables(console, tables)))


# --- claims -----------------------------------------------------------------------------------------------------------


def cpu_table(times: dict[str, float | None], points: int = 2, **cell):
    cells = [
        factory.cell("decode_flatten", name, {"batch_size": 8 * (i + 1)}, cpu=cpu, **cell)
        for i in range(points)
        for name, cpu in times.items()
    ]
    (table,) = result_tables(factory.run(CPU, cells))
    return table


@pytest.mark.parametrize("points", [1, 2])
def test_a_table_without_a_time_promises_none(points):
    table = cpu_table({"triton_fused": None, "op_chain": None}, points)
    assert table.title == "decode_flatten: no CPU time"
    assert not any("fastest" in note or "Times" in note for note in table.notes)
    text = shown(100, lambda console: print_tables(console, [table]))
    assert ("batch" in text) == (points == 1)
    if points > 1:
        assert "triton_fused, all 2 points: passed" in table.notes
        assert "|" not in markdown([table])
    cells = [factory.cell("decode_flatten", name, {"batch_size": 8}) for name in ("op_chain", "cuda_fused")]
    (table,) = result_tables(factory.run(factory.gpu_environment(), cells))
    assert (table.title, table.heads[-2:]) == ("decode_flatten: no GPU time", ("op_chain", "cuda_fused"))


@pytest.mark.parametrize(
    ("times", "baseline", "star"),
    [
        ({"op_chain": 40.0, "merged_chain": 20.0}, True, True),
        ({"merged_chain": 20.0}, False, False),
        ({"merged_chain": 20.0, "compiled_chain": 10.0}, False, True),
    ],
)
def test_a_table_claims_a_baseline_and_a_fastest_variant_only_where_it_has_them(times, baseline, star):
    table = cpu_table(times)
    assert "not a GPU time" in table.title
    assert ("op_chain" in table.title) == ("times faster" in table.title) == baseline
    assert any(note.startswith("* fastest of its row") for note in table.notes) == star
    assert any("*" in entry.text for row in table.rows for entry in row) == star


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324])
@pytest.mark.parametrize("damaged", [0, 1])
def test_what_is_no_time_has_no_ratio(value, damaged):
    cells = [factory.cell("decode_flatten", name, {"batch_size": 8}, cpu=40.0) for name in ("op_chain", "merged_chain")]
    metrics = replace(cells[damaged].metrics, cpu_us=[value] * 20)
    cells[damaged] = replace(cells[damaged], metrics=metrics)
    (table,) = result_tables(factory.run(CPU, cells))
    (entries,) = table.rows
    assert not any("×" in entry.text for entry in entries)
    assert max(len(entry.text) for entry in entries) < 10
