"""Sequences of steps: their contents differ enough that a graph which replays what its capture computed is rejected."""

import pytest
import torch

from spec_decode_bench.baselines.mamba_spec_metadata import operator as mamba_spec_metadata
from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.edge_cases import DeviceChecks, EdgeCaseChecks
from spec_decode_bench.harness.verify.equality import required
from spec_decode_bench.harness.verify.graph_replay import replay_sequence

CATALOG = discover()
#: The seed that verification uses, and two more.
SEEDS = (11, 0, 5)
#: In SAME_ON_ALL_SEEDS: every step on the flatten path, where a token has one row.
FLATTENED = "flattened"
#: Of gdn_split.
_IDLE = ("big-padded-idle-big", 2)
_NONE_PLAIN, _ALL_PLAIN = ({("mixed-speculative-plain-mixed", step), _IDLE} for step in (1, 2))
_OF_ONE_KIND = _NONE_PLAIN | _ALL_PLAIN
#: Operator -> buffer -> the steps, as (sequence, index), in which the buffer has the same contents on every seed.
SAME_ON_ALL_SEEDS = {
    "decode_flatten": {"decode_lens": FLATTENED},
    "decode_step": {
        "decode_lens": FLATTENED,
        # A dummy run: every length is 1.
        **{name: {("real-dummy-real", 1)} for name in ("lens", "schedule", "tile_scheduler_metadata", "num_splits")},
    },
    # No real request: all rows hold the padding values.
    "mamba_spec_metadata": {
        name: {("big-idle-big", 1)}
        for name in ("input_slots", "output_slots", "num_accepted_tokens", *mamba_spec_metadata.PER_REQUEST)
    },
    # No draft is verified, and every request has one token.
    "draft_budget": {name: {("all-none-some", 1)} for name in ("num_drafts", "cu_num_logits", "query_start_loc")},
    # All requests are of one kind, and an idle rank.
    "gdn_split": {
        "spec_mask": _OF_ONE_KIND,
        **dict.fromkeys(("spec_state_slots", "spec_accepted", "spec_query_start_loc"), _ALL_PLAIN),
        **dict.fromkeys(("plain_state_slots", "has_initial_state", "plain_query_start_loc"), _NONE_PLAIN),
        "spec_tokens": _NONE_PLAIN - {_IDLE},
        "plain_tokens": _ALL_PLAIN - {_IDLE},
    },
    # An idle rank: no token, no row.
    "compute_slot_mappings": {"slot_mappings": {("chunk-decode-idle-chunk", 2)}},
    "gather_block_tables": {"block_tables": {("big-padded-idle-big", 2)}},
    # An idle rank: no request has a length.
    "dcp_lengths": {"local_seq_lens": {("big-padded-idle-big", 2)}},
    # A dummy run: every length is 1 // 4 = 0.
    "paged_mqa_schedule": {"schedule": {("real-dummy-real", 1)}},
    # An idle rank: no request has a length.
    "seq_lens_update": {name: {("big-idle-big", 1)} for name in ("seq_lens", "seq_lens_cpu_upper_bound")},
    # A token per request, and an idle rank.
    "token_requests": {"requests": {("the target's tokens, then one per request", 1), ("big-padded-idle-big", 2)}},
}

#: Operator -> outputs that follow from the shapes of a step alone, in some steps or in all.
OF_SHAPES = {
    "block_draft_inputs": {"query_start_loc", "is_padding", "sample_indices"},
    "chain_step": {"extend_lens", "start_locs", "tree", "tree_mask"},
    "decode_flatten": {"indices"},
    "draft_inputs": {"query_start_loc", "current_draft_step"},
    "draft_passes": {"query_start_loc", "schedule"},
    "mamba_align_step": {"mask", "moves", "starts"},
    "step_epilogue": {"moves", "query_start_loc", "current_draft_step"},
    "step_inputs": {"expanded_local_pos", "logits_indices"},
    "step_prologue": {
        "decode_lens",
        "expanded_local_pos",
        "logits_indices",
        "mask",
        "moves",
        "num_splits",
        "schedule",
        "starts",
    },
    "window_tables": {"is_valid_token"},
}


def read(expected):
    """The elements that a consumer reads, flattened; -1 in place of the others."""
    return torch.where(required(expected), expected.value.long(), -1).flatten()


def same_on_all_contents(operator, name, number, seed):
    """Outputs of one step that are the same on the three contents which verification uses. Outputs of which nothing is
    read are left out.
    """
    point = operator.complete(operator.sequences[name][number])
    first, *others = [operator.reference(point, operator.make_inputs(point, seed + number + i)) for i in range(3)]
    used = [buffer for buffer in first if any(bool(required(one[buffer]).any()) for one in (first, *others))]
    of_shapes = OF_SHAPES.get(operator.name, set())
    same = lambda buffer: all(torch.equal(read(one[buffer]), read(first[buffer])) for one in others)  # noqa: E731
    return {buffer for buffer in used if buffer not in of_shapes and same(buffer)}


def excused(operator, name, number):
    flat = operator.complete(operator.sequences[name][number]).get("decode_path", "flatten") == "flatten"
    steps = SAME_ON_ALL_SEEDS.get(operator.name, {}).items()
    return {buffer for buffer, where in steps if (flat if where == FLATTENED else (name, number) in where)}


@pytest.mark.parametrize("operator", CATALOG.operators.values(), ids=lambda o: o.name)
def test_no_output_of_a_step_is_the_same_on_all_contents(operator):
    steps = [(name, number) for name, points in operator.sequences.items() for number in range(len(points))]
    for seed in SEEDS:
        same = {step: same_on_all_contents(operator, *step, seed) for step in steps}
        assert same == {step: excused(operator, *step) for step in steps}


def baked(operator, buffer):
    """A correct variant, and a capture whose graph writes to ``buffer`` what it held after the captured launch."""
    inner = next(v for v in CATALOG.of(operator.name) if v.name == CAPTURABLE.get(operator.name, operator.baseline))

    def setup(point, x, out):
        launch = inner.setup(point, x, out)

        def with_outputs():
            launch()

        with_outputs.frozen = getattr(out, buffer, None)
        return with_outputs

    def capture(launch):
        frozen, contents = launch.frozen, []
        if frozen is None:
            return launch
        for poison in (0x7F, 0x71):
            frozen.fill_(poison)
            launch()
            contents.append(frozen.clone())
        written = contents[0] == contents[1]

        def replay():
            launch()
            frozen[written] = contents[0][written]

        return replay

    return Variant(operator.name, "baked", setup, doc="", origin="tests", skip=inner.skip), capture


#: A chain that can be captured, for operators whose baseline decides on the host.
CAPTURABLE = {"mamba_state_copy": "masked_chain", "mla_tile_schedule": "fresh_copy"}


def buffers_of(operator):
    """Outputs on the device that change in each step of the first sequence."""
    name, points = next(iter(operator.sequences.items()))
    point = operator.complete(points[0])
    same = excused(operator, name, 0) | OF_SHAPES.get(operator.name, set())
    expected = operator.reference(point, operator.make_inputs(point, 0))
    return [b for b, e in expected.items() if b not in same and "cpu" not in b and bool(required(e).any())]


FIRST = [(operator, buffer) for operator in CATALOG.operators.values() for buffer in buffers_of(operator)]


@pytest.mark.parametrize(("operator", "buffer"), FIRST, ids=lambda v: getattr(v, "name", v))
def test_a_graph_that_replays_an_output_of_its_capture_is_rejected_in_the_first_sequence(operator, buffer):
    """Before a timed run only the first sequence's graphs are replayed."""
    variant, capture = baked(operator, buffer)
    points = [operator.complete(step) for step in next(iter(operator.sequences.values()))]
    with pytest.raises(Mismatch, match=buffer) as caught:
        replay_sequence(operator, variant, points, "cpu", 11, capture, set())
    assert caught.value.check == "graph_safe"


@pytest.mark.parametrize(("name", "buffer"), [("decode_step", "schedule"), ("seq_lens_update", "seq_lens")])
def test_every_sequence_rejects_it_and_the_first_one_before_a_timed_run(name, buffer):
    operator = CATALOG.operators[name]
    variant, capture = baked(operator, buffer)
    checks = DeviceChecks(lambda variant, launch: set(), capture)
    timed = {
        f.name: f.check
        for f in EdgeCaseChecks(operator, variant, "cpu", 11, thorough=False, on_device=checks)
        if f.status == "mismatch"
    }
    assert timed == {next(iter(operator.sequences)): "graph_safe"}
    for points in operator.sequences.values():
        with pytest.raises(Mismatch, match=buffer):
            replay_sequence(operator, variant, [operator.complete(step) for step in points], "cpu", 11, capture, set())
