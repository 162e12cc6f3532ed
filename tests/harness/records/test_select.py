"""Globs over the cells of a record, and what filtering keeps."""

import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.records.schema import Segment, cell_key, split_key
from spec_decode_bench.harness.records.select import chosen, is_chosen
from tests import factory

CELL = replace(
    factory.cell("decode_native", "flat_view", {"batch_size": 8}, gpu=5.0), axes={"batch_size": 8, "padding": 0.0}
)


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ([], True),
        (["flat_view"], True),
        (["decode_native/*"], True),
        (["*batch_size=8"], True),
        (["*batch_size=8,padding=0"], True),
        (["*batch_size=1*"], False),
        (["flat"], False),
        (["!*/cuda*"], True),
        (["!flat*"], False),
        (["decode_native/*", "!flat*"], False),
        (["cuda*", "!triton*"], False),
    ],
)
def test_globs(only, expected):
    assert is_chosen(CELL, only) is expected


def test_a_filtered_run_keeps_the_calibration_of_every_cell():
    run = factory.sweep_run(batch_sizes=(1, 8))
    other = factory.calibration(factory.np.random.default_rng(7))
    more = {"environment": run.header.environment, "calibration": other}
    late = Segment(process=1, started="later", why="resumed", **more)
    cells = [replace(cell, process=int(i >= len(run.cells) // 2)) for i, cell in enumerate(run.cells)]
    run = replace(run, cells=cells, segments=[late])
    kept = chosen(run, ["*/cuda_fused"])
    assert {cell.variant for cell in kept.cells} == {"cuda_fused"}
    assert [kept.calibration_of(cell) for cell in kept.cells] == [run.calibration_of(cell) for cell in kept.cells]
    assert {id(kept.calibration_of(cell)) for cell in kept.cells} == {id(other), id(run.header.calibration)}


def test_the_key_of_a_cell_is_split_into_its_parts():
    parts = ("decode_native", "flat_view", "batch_size=8,file=a/b")
    assert split_key(cell_key(*parts)) == parts
