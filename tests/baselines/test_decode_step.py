"""decode_step: worked examples, its parts against their operators."""

import pytest
import torch

from spec_decode_bench.baselines.dcp_lengths.operator import held_of
from spec_decode_bench.baselines.decode_flatten import operator as decode_flatten
from spec_decode_bench.baselines.decode_native import operator as decode_native
from spec_decode_bench.baselines.decode_step.operator import Inputs, operator, reference
from spec_decode_bench.baselines.mla_tile_schedule import operator as mla_tile_schedule
from spec_decode_bench.baselines.paged_mqa_schedule import operator as paged_mqa_schedule
from spec_decode_bench.baselines.workloads.decode_batch import int32
from tests.baselines.random_batches import each_batch, legal_point


def example(**axes):
    """The reference for requests of 258, 0 and 64 tokens with 3, 0 and 1 tokens of this step, on 4 SMs and 2 parts."""
    start = torch.tensor([0, 3, 3, 4], dtype=torch.int32)
    x = Inputs(
        seq_lens=torch.tensor([258, 0, 64], dtype=torch.int32),
        query_start_loc=start,
        block_table=torch.arange(1, 16, dtype=torch.int32).view(3, 5),
        query_start_loc_cpu=start,
        num_decode_tokens=4 + axes.get("token_padding", 0),
    )
    fixed = {
        "batch_size": 3,
        "next_n": 4,
        "max_decode_len": 3,
        "max_model_len": 320,
        "context_len": 300,
        "max_num_batched_tokens": 12,
    }
    return reference(legal_point(operator, fixed | {"num_sms": 4, "num_sm_parts": 2, "max_num_seqs": 4} | axes), x)


def test_worked_example_flattened():
    """The four tokens have contexts of 256, 257, 258 and 64 tokens: 1, 2, 2 and 1 segments."""
    expected = example()
    assert expected["lens"].value.tolist() == [256, 257, 258, 64] + [0] * 8
    assert expected["block_table"].value[:4].tolist() == [[1, 2, 3, 4, 5]] * 3 + [[11, 12, 13, 14, 15]]
    assert expected["schedule"].value.tolist() == [[0, 0], [1, 1], [2, 1], [3, 0], [4, 0]]


def test_worked_example_native():
    """Requests of 2, 0 and 1 segments, two atoms each. Rows are end-aligned: the first lengths of a short row belong to
    no token of this step.
    """
    expected = example(decode_path="native")
    assert expected["lens"].value[:9].tolist() == [256, 257, 258, 0, 0, 0, 62, 63, 64]
    assert expected["decode_lens"].value[:3].tolist() == [3, 0, 1]
    assert expected["schedule"].value.tolist() == [[0, 0], [1, 0], [4, 0], [5, 0], [6, 0]]
    assert bool(expected["block_table"].untouched.all())
    assert [int(expected[name].untouched.sum()) for name in ("lens", "decode_lens")] == [12 - 9, 12 - 3]


@pytest.mark.parametrize("path", ["flatten", "native"])
def test_worked_example_of_the_tiles(path):
    """5, 1 and 1 blocks, overhead 5 each: 11 per part. The first part ends with the request without tokens."""
    expected = example(decode_path=path)
    assert expected["tile_scheduler_metadata"].value[:2, :7].tolist() == [[0, 1, 0, 0, 0, 0, 0], [2, 2, 0, 1, 0, 0, 0]]
    assert expected["num_splits"].value[:4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("path", ["flatten", "native"])
def test_worked_example_on_the_last_of_two_ranks(path):
    """It has every second block of 64: 128 of 256, 257 and 258 tokens, none of 64. The tiles have 2, 1 and 1 blocks."""
    expected = example(decode_path=path, cp_size=2, cp_rank="last", cp_interleave=64, num_sms=2)
    tiles = expected["tile_scheduler_metadata"].value[:2, :7].tolist()
    assert tiles == [[0, 1, 0, 0, 0, 0, 0], [2, 2, 0, 0, 0, 0, 0]]
    if path == "flatten":
        assert expected["lens"].value.tolist() == [128, 128, 128, 0] + [0] * 8
        assert expected["schedule"].value.tolist() == [[0, 0], [2, 0], [4, 0]]
    else:
        assert expected["lens"].value[:9].tolist() == [128, 128, 128, 0, 0, 0, 0, 0, 0]
        assert expected["schedule"].value.tolist() == [[0, 0], [1, 0], [6, 0]]


def test_ranks_gather_their_heads():
    """4 tokens of 128 heads are 8 CTAs; on each of two ranks that share the contexts they are 16."""
    assert [operator.complete({"cp_size": size}).num_sm_parts for size in (1, 2)] == [132 // 8, 132 // 16]


def test_token_padding_moves_the_end_of_the_schedule():
    """Its rows have no segments, but they are rows of the kernel's batch."""
    expected = example(token_padding=2)
    assert expected["schedule"].value.tolist() == [[0, 0], [1, 1], [2, 1], [3, 0], [6, 0]]
    assert expected["decode_lens"].value[:6].tolist() == [1] * 6


def same(one, other):
    """Whether two Expected demand the same."""

    def masks(expected):
        nothing = torch.zeros_like(expected.value, dtype=torch.bool)
        return [nothing if mask is None else mask for mask in (expected.untouched, expected.may_vary)]

    return torch.equal(one.value, other.value) and all(map(torch.equal, masks(one), masks(other)))


def part(single, point, **axes):
    """The step's point as one of a single operator."""
    return legal_point(single, {a.name: point[a.name] for a in single.axes if a.name in point} | axes)


@each_batch(operator, 150)
def test_the_parts_equal_the_references_of_the_operators(point, x):
    step = operator.reference(point, x)
    tiles, local = mla_tile_schedule.operator, int32([held_of(point)(length) for length in x.seq_lens.tolist()])
    whole = tiles.reference(part(tiles, point), mla_tile_schedule.Inputs(local))
    if point.decode_path == "flatten":
        single = decode_flatten.operator
        whole |= single.reference(part(single, point), x)
        queries, atoms = step["lens"].value[: x.num_decode_tokens], {"atoms": 1, "lens_layout": "1d"}
    else:
        single, decode_lens = decode_native.operator, torch.diff(x.query_start_loc)
        whole["lens"] = single.reference(part(single, point), decode_native.Inputs(x.seq_lens, decode_lens))["buffer"]
        assert torch.equal(step["decode_lens"].value[: point.batch_size], decode_lens)
        queries, atoms = step["lens"].value[: point.batch_size * point.max_decode_len].view(point.batch_size, -1), {}
    schedule = paged_mqa_schedule.operator
    at = part(schedule, point, batch_size=len(queries), padding=0.0, **atoms)
    whole |= schedule.reference(at, paged_mqa_schedule.Inputs(queries))
    assert [name for name, expected in whole.items() if not same(step[name], expected)] == []


def test_traffic_counts_every_input_once():
    """B = 1, 64 tokens of context: one block per token, the tables, and the capacity that is cleared."""
    at = {
        "batch_size": 1,
        "next_n": 2,
        "context_len": 64,
        "num_sms": 4,
        "num_sm_parts": 1,
        "max_num_batched_tokens": 16,
    }
    tables = 2 * 5 + 7 + 2
    flat, native = operator.complete(at), operator.complete(at | {"decode_path": "native"})
    assert operator.bytes_moved(flat, operator.make_inputs(flat, 0)) == 4 * (3 + 1 + 2 + 16 + 2 + tables)
    assert operator.bytes_moved(native, operator.make_inputs(native, 0)) == 4 * (3 + 2 + 1 + tables)
