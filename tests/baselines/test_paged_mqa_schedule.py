"""paged_mqa_schedule: worked examples, properties of any schedule."""

from itertools import pairwise
from math import ceil

import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.paged_mqa_schedule.operator import Inputs, operator
from tests.baselines.random_batches import each_batch, run_examples


def rows(lens, **axes):
    """The reference's table for these lengths, one per request, as a list of (query, segment)."""
    point = operator.complete({"batch_size": len(lens), "lens_layout": "1d", **axes})
    table = operator.reference(point, Inputs(torch.tensor(lens, dtype=torch.int32)))["schedule"]
    assert table.untouched is None
    assert table.may_keep is None
    return [tuple(row) for row in table.value.tolist()]


EXAMPLE = [1000, 0, 300, 64]  # 4, 0, 2, 1 segments


def test_worked_example():
    assert rows(EXAMPLE, num_sms=4) == [(0, 0), (0, 2), (2, 0), (3, 0), (4, 0)]
    assert rows(EXAMPLE, num_sms=4, remainder="back") == [(0, 0), (0, 1), (0, 3), (2, 1), (4, 0)]


def test_two_atoms_repeat_the_segments_of_a_request():
    """14 units on 4 SMs: 4, 4, 3, 3."""
    assert rows(EXAMPLE, num_sms=4, next_n=4, atoms=2) == [(0, 0), (1, 0), (4, 0), (5, 1), (8, 0)]


def test_a_run_of_tokens_takes_a_segment_together():
    """Requests of 3, 1 and 2 tokens with 2, 1 and 3 segments: 6 + 1 + 6 units on 5 SMs, 3, 3, 3, 2, 2."""
    point = operator.complete({"batch_size": 2, "next_n": 3, "num_sms": 5, "indices": "yes"})
    lens, ids = [255, 256, 257, 9, 767, 768], [0, 0, 0, 4, 1, 1]
    x = Inputs(torch.tensor(lens, dtype=torch.int32), indices=torch.tensor(ids, dtype=torch.int32))
    right = [[0, 0], [0, 1], [3, 0], [4, 1], [4, 2], [6, 0]]
    assert operator.reference(point, x)["schedule"].value.tolist() == right


def test_the_last_column_is_the_length_of_the_request():
    point = operator.complete({"batch_size": 2, "next_n": 3, "atoms": 1, "num_sms": 1})
    x = Inputs(torch.tensor([[9999, 9999, 0], [0, 0, 257]], dtype=torch.int32))
    assert operator.reference(point, x)["schedule"].value.tolist() == [[1, 0], [2, 0]]


def test_atoms_follow_the_tokens_of_a_request():
    assert [operator.complete({"next_n": n}).atoms for n in (1, 2, 3, 4, 5, 6)] == [1, 1, 2, 2, 3, 3]
    assert operator.complete({"next_n": 4, "max_decode_len": 2}).atoms == 1
    assert operator.complete({"next_n": 4, "lens_layout": "1d"}).atoms == 1


def test_traffic_is_a_length_per_request_and_the_table():
    point = operator.complete({"batch_size": 128})
    assert operator.bytes_moved(point, operator.make_inputs(point, 0)) == 4 * (128 + 2 * 133)


def walk(table, segments, atoms):
    """The units of every SM as the consumer finds them: from its row to the next, skipping empty requests."""
    shares = []
    for (query, segment), end in pairwise(table):
        share = []
        while (query, segment) != end:
            if query >= len(segments) * atoms:
                raise AssertionError(f"an SM runs past the last query, looking for {end}")
            if segment < segments[query // atoms]:
                share.append((query, segment))
                segment += 1
            if segment >= segments[query // atoms] and (query, segment) != end:
                query, segment = query + 1, 0
                while query < len(segments) * atoms and segments[query // atoms] == 0:
                    query += 1
        shares.append(share)
    return shares


lengths = st.lists(
    st.one_of(st.just(0), st.integers(-5, 3000), st.sampled_from([255, 256, 257, 512, 20000])), min_size=1, max_size=40
)


@run_examples(100)
@given(lens=lengths, atoms=st.integers(1, 4), num_sms=st.integers(1, 148), remainder=st.sampled_from(["front", "back"]))
def test_every_unit_is_handled_exactly_once(lens, atoms, num_sms, remainder):
    table = rows(lens, atoms=atoms, next_n=4, num_sms=num_sms, remainder=remainder)
    segments = [ceil(max(length, 0) / 256) for length in lens]
    units = [(b * atoms + a, s) for b in range(len(lens)) for a in range(atoms) for s in range(segments[b])]
    shares = walk(table, segments, atoms)
    assert [unit for share in shares for unit in share] == units
    assert table == sorted(table)
    assert table[0] == (units[0] if units else (len(lens) * atoms, 0))
    assert table[-1] == (len(lens) * atoms, 0)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=remainder == "front")


@each_batch(operator, 200, indices="no")
def test_inputs_are_legal(point, x):
    lens = x.context_lens
    assert lens.dtype == torch.int32
    assert lens.is_contiguous()
    assert lens.shape == (
        (point.batch_size, point.max_decode_len) if point.lens_layout == "2d" else (point.batch_size,)
    )
    assert int(lens.min()) >= 0
    assert int(lens.max()) <= point.max_model_len // point.compress_ratio
    matrix = lens.view(point.batch_size, -1)
    assert bool((matrix.diff(dim=1) >= 0).all())
    if point.compress_ratio == 1:
        assert int((matrix[:, -1] == 0).sum()) == min(
            ceil(round(point.padding * point.batch_size, 6)), point.batch_size - 1
        )


@each_batch(operator, 200, indices="yes", lens_layout="1d")
def test_tokens_are_legal(point, x):
    """Ids of requests side by side in order, then one of its own for each padding token."""
    assert x.context_lens.shape == x.indices.shape == (point.batch_size * point.max_decode_len,)
    assert bool((x.indices.diff() >= 0).all())
    padding = x.indices >= point.batch_size
    assert not x.context_lens[padding].any()
    assert bool((x.indices[padding].diff() == 1).all())
    assert max(torch.unique(x.indices, return_counts=True)[1]) == point.max_decode_len
    same = x.indices.diff() == 0
    assert set((x.context_lens.diff()[same]).tolist()) <= {0, 1}
