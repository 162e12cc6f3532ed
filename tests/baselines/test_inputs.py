"""What the inputs of every operator have in common, on random batches: an invariant holds wherever there is what it
names. The variants of an operator agree with each other also where its inputs are illegal.
"""

from inspect import signature

import pytest
import torch

from spec_decode_bench.baselines.workloads.axes import num_padding_requests
from spec_decode_bench.baselines.workloads.decode_batch import UNUSED_BLOCK_ID
from spec_decode_bench.baselines.workloads.request_slots import UNUSED, group_tables
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.points import LARGEST
from tests.baselines.random_batches import each_batch

CATALOG = discover()
#: Where it is not 0: as a captured graph's buffer was filled, or whatever an engine left there (None).
LENGTH_OF_PADDING = {"chain_step": 1, "dcp_lengths": None}
BOUNDARIES = ("query_start_loc", "query_start_loc_cpu", "cu_num_logits", "cu_seq_lens")


def shapes_do_not_depend_on_the_seed(point, x, again):
    one, other = ({n: getattr(v, "shape", v) for n, v in vars(inputs).items()} for inputs in (x, again))
    assert one == other


def boundaries_ascend_from_zero(x):
    for starts in filter(lambda one: one is not None, map(vars(x).get, BOUNDARIES)):
        assert starts.dtype == torch.int32
        assert int(starts[0]) == 0
        assert bool((starts.diff() >= 0).all())


def the_host_counts_all_tokens(point, x, query_start_loc):
    for count in (vars(x)[name] for name in ("num_tokens", "num_decode_tokens") if name in vars(x)):
        assert int(query_start_loc[-1]) <= count
        assert count <= point.get("max_num_batched_tokens", count) or point.get("decode_path") == "native"


def a_context_holds_the_tokens_of_its_step(point, seq_lens, query_start_loc):
    query = query_start_loc.diff()[: len(seq_lens)]
    longest = min(point.get("max_model_len", LARGEST), point.get("table_columns", LARGEST) * point.get("block_size", 1))
    assert bool(((query == 0) == (seq_lens == 0)).all())
    assert bool((seq_lens >= query.clamp(max=longest)).all())
    assert 0 <= int(seq_lens.min()) <= int(seq_lens.max()) <= longest


def padding_has_no_length(point, operator, seq_lens):
    length = LENGTH_OF_PADDING.get(operator.name, 0)
    if "padding" in point and length is not None:
        assert bool((seq_lens[len(seq_lens) - num_padding_requests(point) :] == length).all())
        assert bool((seq_lens[: len(seq_lens) - num_padding_requests(point)] > 0).all())


def slots_are_distinct(point, idx_mapping):
    real = idx_mapping[idx_mapping >= 0]
    assert len(real.unique()) == len(real)
    assert all(-1 <= slot < point.max_num_seqs for slot in idx_mapping.tolist())


def a_context_is_what_was_computed_and_the_step(point, idx_mapping, seq_lens, num_computed_tokens, query_start_loc):
    if point.get("phase") == "after_sampling":
        return  # of mamba_state_copy, where accepted tokens are counted already
    real = idx_mapping >= 0
    computed = num_computed_tokens[idx_mapping[real]]
    assert bool((computed >= 0).all())
    assert torch.equal(computed + query_start_loc.diff()[: len(real)][real], seq_lens[real])


def blocks_are_owned_by_one_request(block_table):
    """Of each group."""
    for table in block_table.reshape(-1, *block_table.shape[-2:]):
        owned = table[(table > 0) & (table < UNUSED_BLOCK_ID)]
        assert len(owned.unique()) == len(owned)


def blocks_of_a_group_are_owned_by_one_slot(point, tables):
    for table in group_tables(point, tables):
        owned = table[(table > 0) & (table < UNUSED)]
        assert len(owned.unique()) == len(owned)


def no_more_is_accepted_than_was_drafted(point, num_accepted_tokens, seq_lens):
    drafts = point.get("num_speculative_blocks", point.get("next_n", 1) - 1)
    if len(num_accepted_tokens) == len(seq_lens):
        accepted = num_accepted_tokens[seq_lens > 0]
        assert bool(((accepted >= 1) & (accepted <= 1 + drafts)).all())


def some_token_of_a_row_is_not_rejected(num_rejected, seq_lens):
    assert bool((num_rejected >= 0).all())
    assert bool((num_rejected < seq_lens.clamp(min=1)).all())


INVARIANTS = [
    *(shapes_do_not_depend_on_the_seed, boundaries_ascend_from_zero, the_host_counts_all_tokens),
    *(a_context_holds_the_tokens_of_its_step, padding_has_no_length, slots_are_distinct),
    *(a_context_is_what_was_computed_and_the_step, blocks_are_owned_by_one_request),
    *(blocks_of_a_group_are_owned_by_one_slot, no_more_is_accepted_than_was_drafted),
    some_token_of_a_row_is_not_rejected,
]


@pytest.mark.parametrize("operator", CATALOG.operators.values(), ids=lambda o: o.name)
def test_inputs_are_legal(operator):
    @each_batch(operator, 200)
    def check(point, x):
        known = {name: value for name, value in vars(x).items() if value is not None}
        known |= {"point": point, "operator": operator, "x": x, "again": operator.make_inputs(point, 77)}
        for invariant in INVARIANTS:
            names = signature(invariant).parameters
            if names.keys() <= known.keys():
                invariant(*(known[name] for name in names))

    check()
