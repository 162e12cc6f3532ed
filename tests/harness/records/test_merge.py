"""Merging shards: pieces that do not belong together are refused, a merged run names what is missing."""

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.records.merge import merge, missing_shards
from spec_decode_bench.harness.records.schema import RecordError, Run, Segment
from spec_decode_bench.harness.report.tables import result_tables
from tests import factory


def piece(shard: str | None, sizes, seed=0, environment=None, **header) -> Run:
    cells = [factory.cell("o", name, {"n": n}, gpu=1.0) for n in sizes for name in ("op_chain", "fused")]
    run = factory.run(environment or factory.gpu_environment(), cells, seed=seed, shard=shard, **header)
    calibration = factory.calibration(np.random.default_rng(sum(sizes)))
    run = factory.with_header(run, calibration=calibration, cells=tuple(cell.key for cell in cells))
    return replace(run, path=f"{shard}.jsonl")


def test_every_piece_keeps_its_calibration_and_its_segments():
    pieces = [piece(f"{i}/3", [i, i + 3]) for i in (1, 2, 3)]
    pieces[1] = factory.with_header(pieces[1], uncalibrated=("off by 80 ns",), seconds={"start": 2.5})
    later = Segment(process=1, started="", why="resumed", environment=factory.gpu_environment())
    pieces[2] = replace(pieces[2], segments=[later], cells=[replace(one, process=1) for one in pieces[2].cells])
    merged = merge(pieces)
    assert [cell.key for cell in merged.cells] == [cell.key for part in pieces for cell in part.cells]
    calibration = {cell.key: part.calibration_of(cell) for part in pieces for cell in part.cells}
    assert all(merged.calibration_of(cell) == calibration[cell.key] for cell in merged.cells)
    assert merged.uncalibrated == ("off by 80 ns",)
    of_segments = [(part.process, part.why, part.seconds) for part in merged.segments]
    assert of_segments == [(1, "shard 2/3", {"start": 2.5}), (2, "shard 3/3", {}), (3, "resumed", {})]
    assert [cell.process for cell in merged.cells] == [0] * 4 + [1] * 4 + [3] * 4
    assert merged.header.shard is None


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            piece("2/2", [2], seed=1),
            "1/2.jsonl has seed 0, 2/2.jsonl has 1; only shards of one sweep, on one kind of machine",
        ),
        (piece("2/2", [2], sources={"k.cu": "b"}), "has k.cu a, 2/2.jsonl has b"),
        (piece("2/2", [1]), "both hold o/op_chain/n=1"),
        (piece("2/3", [2]), "shards of sweeps cut into 2 and 3 parts"),
    ],
    ids=["seed", "sources", "duplicate", "cut"],
)
def test_pieces_that_do_not_belong_together_are_refused(other, sentence):
    with pytest.raises(RecordError) as refused:
        merge([piece("1/2", [1], sources={"k.cu": "a", "other.cu": "c"}), other])
    assert sentence in str(refused.value)


def test_a_merged_run_is_shown_in_the_order_of_the_sweep():
    merged = merge([piece("2/2", [2, 4]), piece("1/2", [1, 3, 5])])
    assert [cell.axes["n"] for cell in merged.in_order] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert list(merged.header.cells) == [cell.key for cell in merged.in_order]
    assert [row[0].text for row in result_tables(merged)[0].rows] == ["1", "2", "3", "4", "5"]


def test_missing_pieces_are_named_also_after_a_first_merge():
    pieces = [piece("1/3", [1]), piece("3/3", [3])]
    assert missing_shards(pieces) == ["2/3"]
    first = merge(pieces)
    assert missing_shards([first]) == ["2/3"]
    assert missing_shards([first, piece("2/3", [2])]) == []
    assert merge([first, piece("2/3", [2])]).header.shard is None
    assert missing_shards([piece(None, [1])]) == []
