"""decode_step: worked examples, its parts against their operators, properties of any step."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.decode_flatten import operator as decode_flatten
from spec_decode_bench.baselines.decode_native import operator as decode_native
from spec_decode_bench.baselines.decode_step.operator import Inputs, Outputs, operator, reference
from spec_decode_bench.baselines.mla_tile_schedule import operator as mla_tile_schedule
from spec_decode_bench.baselines.paged_mqa_schedule import operator as paged_mqa_schedule
from tests.baselines.random_batches import drawn, legal_point, run_examples


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


def test_token_padding_moves_the_end_of_the_schedule():
    """Its rows have no segments, but they are rows of the kernel's batch."""
    expected = example(token_padding=2)
    assert expected["schedule"].value.tolist() == [[0, 0], [1, 1], [2, 1], [3, 0], [6, 0]]
    assert expected["decode_lens"].value[:6].tolist() == [1] * 6


SMALL = {"next_n": 5, "max_model_len": 2500, "max_num_batched_tokens": 64, "max_num_seqs": 9}
BATCHES = st.fixed_dictionaries(
    {
        "decode_path": st.sampled_from(["flatten", "native"]),
        "batch_size": st.integers(1, 9),
        "max_decode_len": st.integers(1, 5),
        "decode_len": st.sampled_from(["uniform", "ragged", "mixed"]),
        "padding": st.sampled_from([0.0, 0.1, 0.5, 0.9]),
        "context_len": st.one_of(
            st.sampled_from([1, 255, 256, 257, 258, 260, 2500]),
            st.just({"uniform": [1, 2500]}),
            st.just({"mix": [[0.8, {"uniform": [1, 20]}], [0.2, 2400]]}),
        ),
        "token_padding": st.integers(0, 9),
        "host_lens": st.sampled_from(["exact", "stale"]),
        "block_size": st.sampled_from([16, 64]),
        "table_columns": st.integers(38, 160),
        "table_padding": st.integers(0, 10),
        # A Triton program makes 8 rows of the schedule. Mostly one program, because interpreting is slow.
        "num_sms": st.sampled_from([1, 2, 3, 4, 6, 7, 9, 20]),
        "num_heads_q": st.sampled_from([16, 64, 128]),
        "layout": st.sampled_from(["old", "new"]),
        "overhead": st.sampled_from([1, 3, 5]),
        "remainder": st.sampled_from(["front", "back"]),
    }
)


def same(one, other):
    """Whether two Expected demand the same."""

    def masks(expected):
        nothing = torch.zeros_like(expected.value, dtype=torch.bool)
        return [nothing if mask is None else mask for mask in (expected.untouched, expected.may_vary)]

    return torch.equal(one.value, other.value) and all(map(torch.equal, masks(one), masks(other)))


def part(single, point, **axes):
    """The step's point as one of a single operator."""
    return legal_point(single, {a.name: point[a.name] for a in single.axes if a.name in point} | axes)


@run_examples(150)
@given(axes=BATCHES, seed=st.integers(0, 2**32 - 1))
def test_the_parts_equal_the_references_of_the_operators(axes, seed):
    point, x = drawn(operator, SMALL | axes, seed)
    step = operator.reference(point, x)
    tiles = mla_tile_schedule.operator
    whole = tiles.reference(part(tiles, point), mla_tile_schedule.Inputs(x.seq_lens))
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


@run_examples(150)
@given(axes=BATCHES, seed=st.integers(0, 2**32 - 1))
def test_every_segment_that_the_launch_reads_is_handled_once(axes, seed):
    """The schedule numbers queries as the lengths do: a consumer walks over queries and segments in that order."""
    point, x = drawn(operator, SMALL | axes, seed)
    step, out = operator.reference(point, x), Outputs(*(e.value for e in operator.reference(point, x).values()))
    lens = operator.views(point, out)["lens"]
    if lens.dim() == 2:
        atoms = (lens.shape[1] + 1) // 2
        lens = lens[:, -1].repeat_interleave(atoms)  # all atoms of a request go over its whole length
    units = [[query, segment] for query, length in enumerate(lens.tolist()) for segment in range(-(-length // 256))]
    index = {tuple(unit): i for i, unit in enumerate([*units, [len(lens), 0]])}
    bounds = [index[tuple(row)] for row in step["schedule"].value.tolist()]
    shares = [end - begin for begin, end in pairwise(bounds)]
    assert (bounds[0], bounds[-1]) == (0, len(units))
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=point.remainder == "front")


@run_examples(60)
@given(axes=BATCHES, seed=st.integers(0, 2**32 - 1))
def test_full_rows_have_the_same_lengths_on_both_paths(axes, seed):
    """If every request has L tokens, (B, L) has the T flat lengths. The tile schedule never depends on the path."""
    full = {"decode_len": "uniform", "padding": 0.0, "token_padding": 0, "host_lens": "exact"}
    flat = legal_point(operator, SMALL | axes | full | {"decode_path": "flatten"})
    native = legal_point(operator, SMALL | axes | full | {"decode_path": "native"})
    x = operator.make_inputs(flat, seed)
    one, other = operator.reference(flat, x), operator.reference(native, x)
    tokens = x.num_decode_tokens
    assert torch.equal(one["lens"].value[:tokens], other["lens"].value[:tokens])
    assert all(same(one[name], other[name]) for name in ("tile_scheduler_metadata", "num_splits"))


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
