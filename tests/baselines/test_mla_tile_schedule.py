"""mla_tile_schedule: worked examples, properties of any schedule, the derivation of P."""

import pytest
import torch

from spec_decode_bench.baselines.mla_tile_schedule.operator import Inputs
from spec_decode_bench.baselines.mla_tile_schedule.operator import operator as tiles
from tests.baselines.random_batches import each_batch


def schedule(lengths, **axes):
    """The reference's rows of P parts and its B + 1 split counts, as lists."""
    point = tiles.complete({"batch_size": len(lengths), "context_len": 4, **axes})
    expected = tiles.reference(point, Inputs(torch.tensor(lengths, dtype=torch.int32)))
    rows = expected["tile_scheduler_metadata"].value[: point.num_sm_parts].tolist()
    return rows, expected["num_splits"].value[: len(lengths) + 1].tolist()


def test_worked_example_in_both_layouts():
    """All 30 blocks of the third part are inside request 3. The zero length costs one block but ends at block 0."""
    rows, num_splits = schedule([1000, 64, 0, 5000], num_sm_parts=4)
    assert rows == [
        [0, 2, 0, 0, 0, 0, 0, 0],
        [3, 3, 0, 30, 0, 1, 1, 0],
        [3, 3, 30, 60, 1, 1, 1, 0],
        [3, 3, 60, 79, 2, 1, 1, 0],
    ]
    assert num_splits == [0, 1, 2, 3, 6]
    rows, num_splits = schedule([1000, 64, 0, 5000], num_sm_parts=4, layout="old")
    assert [row[:5] for row in rows] == [
        [0, 0, 2, 0, 0],
        [3, 0, 3, 1856, 0],
        [3, 1856, 3, 3712, 1],
        [3, 3712, 3, 5000, 2],
    ]
    assert num_splits == [0, 1, 2, 3, 6]


def test_parts_without_work_start_past_the_last_request():
    rows, num_splits = schedule([64], num_heads_q=16, max_decode_len=1)
    assert len(rows) == 132
    assert rows[0] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert {row[0] for row in rows[1:]} == {1}
    assert num_splits == [0, 1]


def test_elements_that_the_reference_does_not_constrain():
    point = tiles.complete({"batch_size": 1, "num_sm_parts": 2, "num_sms": 3, "max_num_seqs": 2, "context_len": 64})
    expected = tiles.reference(point, Inputs(torch.tensor([64], dtype=torch.int32)))
    metadata = expected["tile_scheduler_metadata"]
    assert metadata.untouched[:, 0].tolist() == [False, False, True]
    assert metadata.dont_care[0].tolist() == [False] * 7 + [True]
    assert metadata.dont_care[1].tolist() == [False] + [True] * 7
    assert expected["num_splits"].untouched.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("heads", "parts"),
    [(128, {1: 66, 2: 33, 4: 16, 6: 11, 67: 1}), (16, {1: 132, 2: 132, 4: 132, 6: 66}), (64, {1: 132, 4: 33})],
)
def test_parts_follow_from_sms_heads_and_query_rows(heads, parts):
    for rows, expected in parts.items():
        assert tiles.complete({"num_heads_q": heads, "next_n": rows, "max_decode_len": rows}).num_sm_parts == expected


def blocks_of(length: int, layout: str) -> int:
    return -(-max(length, 1 if layout == "new" else 0) // 64)


@each_batch(tiles, 300)
def test_every_block_is_scheduled_once_and_no_part_exceeds_its_payload(point, x):
    lengths = x.seq_lens.tolist()
    rows, num_splits = schedule(lengths, **dict(point))
    new = point.layout == "new"
    blocks = [blocks_of(length, point.layout) for length in lengths]
    payload = -(-(sum(blocks) + len(blocks) * point.overhead) // point.num_sm_parts) + point.overhead
    pieces: list[list[tuple[int, int]]] = [[] for _ in lengths]
    following = (0, 0)
    for row in rows:
        if row[0] == len(lengths):
            assert following == (len(lengths), 0)
            continue
        begin, last = (row[0], row[2] if new else row[1] // 64), row[1] if new else row[2]
        assert begin == following
        # A finished request ends at its last block, 0 if its length is 0; in the old layout at its last token.
        finished = row[3] == (-(-lengths[last] // 64) if new else lengths[last])
        end = blocks[last] if finished else (row[3] if new else row[3] // 64)
        following = (last + 1, 0) if finished else (last, end)
        assert row[4] == len(pieces[begin[0]])
        cost = 0
        for request in range(begin[0], last + 1):
            piece = (begin[1] if request == begin[0] else 0, end if request == last else blocks[request])
            pieces[request].append(piece)
            cost += piece[1] - piece[0] + point.overhead
        assert cost <= payload
        if new:
            assert row[5] == (pieces[begin[0]][-1] != (0, blocks[begin[0]]))
            assert row[6] == (pieces[last][-1] != (0, blocks[last]))
    assert following == (len(lengths), 0)
    for request, of_request in enumerate(pieces):
        assert [piece[0] for piece in of_request] == [0, *(piece[1] for piece in of_request[:-1])]
        assert of_request[-1][1] == blocks[request]
        assert num_splits[request + 1] - num_splits[request] == len(of_request) >= 1
