"""A capture as the trace of a decode loop: its requests, their contexts, and the tokens of its steps."""

import numpy as np
import pytest
import torch

from spec_decode_bench.baselines.workloads.captured_requests import captured_requests
from spec_decode_bench.baselines.workloads.context_lengths import draw_lengths, parse_lengths
from spec_decode_bench.decode_loop.configuration import AcceptLengths
from spec_decode_bench.decode_loop.planning import plan_loops
from spec_decode_bench.decode_loop.simulation import Simulation
from spec_decode_bench.decode_loop.workload import acceptance_of, make_workload
from spec_decode_bench.harness.config.load import ConfigError
from tests import captured
from tests.decode_loop.test_planning import LOOP, written

PREFILL = 500


def ints(*values, kind=torch.int32):
    return torch.tensor(values, dtype=kind)


def step(number, slots, computed, query, sampled, capacity=6):
    """What post_update finds in a step: slot -> computed tokens, query tokens and tokens that were produced."""
    by_slot = torch.full((capacity,), 2**30, dtype=torch.int32)
    for slot, tokens in zip(slots, computed, strict=True):
        by_slot[slot] = tokens
    fields = {
        "idx_mapping": ints(*slots, -1, kind=torch.int64),
        "query_start_loc": torch.cat([ints(0), ints(*query, 0).cumsum(0).int()]),
        "num_computed_tokens": by_slot,
        "num_sampled": ints(*sampled, 9),
    }
    return number, "post_update", {"batch_size": len(slots) + 1}, fields


#: The request in slot 2 ends, and slot 5 goes to another one, whose prompt is still being computed in step 20.
STEPS = [
    step(10, [5, 2], [100, 900], [4, 4], [3, 1]),
    step(20, [5, 2, 0], [130, 930, 40], [4, 4, PREFILL], [4, 2, 1]),
    step(30, [0, 5], [540, 60], [4, 4], [2, 2]),
]


@pytest.fixture
def file(tmp_path):
    return captured.write(tmp_path / "made.capture", STEPS)


def test_requests_keep_their_slot_and_do_not_shrink(file):
    found = captured_requests(file)
    assert found.prompts.tolist() == [100, 900, 540, 60]
    assert found.outputs.tolist() == [31, 31, 1, 1]
    assert found.running.tolist() == [False, False, True, True]
    assert found.counts == (3, 1, 4, 2, 2, 2)


def test_without_slots_rows_are_requests(tmp_path):
    """decode_flatten: lengths of the step, its own tokens included."""
    steps = [
        (number, "decode_flatten", {}, {"seq_lens": ints(*lens), "query_start_loc": ints(0, 4, 8, 8)})
        for number, lens in ((1, (104, 54, 0)), (9, (124, 44, 0)))
    ]
    # A drafter's pass in the same step.
    steps.insert(1, (1, "decode_flatten", {}, {"seq_lens": ints(1, 1, 1), "query_start_loc": ints(0, 1, 2, 3)}))
    found = captured_requests(captured.write(tmp_path / "made.capture", steps))
    assert (found.prompts.tolist(), found.running.tolist()) == ([100, 50, 40], [True, False, True])
    assert found.counts == ()


def test_context_len_draws_from_a_capture(file):
    drawn = draw_lengths(parse_lengths({"trace": file}), 1000, np.random.default_rng(1))
    assert set(drawn) == {*range(101, 132), *range(901, 932), 541, 61}


@pytest.fixture
def loops(tmp_path, catalog, file):
    def loops(**changes):
        section = {**LOOP, "concurrency": 2, "prompt_len": ..., "output_len": ..., "trace": file, **changes}
        return plan_loops(written(tmp_path, section), catalog)

    return loops


def test_a_loop_begins_where_the_capture_began(loops):
    item = loops(concurrency=3)[0]
    work = make_workload(item, 3)
    assert work.prompts[:6].tolist() == [100, 900, 540, 60, 100, 900]
    assert work.outputs[:2].tolist() == [31, 31]
    assert work.outputs[2] >= item.config.blocks * item.config.steps * item.shape.next_n
    assert Simulation(work).block()[0].computed == [100, 900, 540]


def test_its_steps_give_as_many_tokens_as_those_of_the_capture(loops):
    item = loops()[0]
    assert set(acceptance_of(item.config, 4).lengths) == {1, 2, 3, 4}
    produced = [count for step in Simulation(make_workload(item, 3)).block() for count in step.counts]
    assert set(produced) <= {1, 2, 3, 4}


def test_acceptance_that_is_given_counts(loops):
    assert loops(acceptance=0.5)[0].config.acceptance == 0.5
    assert loops(acceptance={"accept_lengths": [2]})[0].config.acceptance == AcceptLengths(accept_lengths=[2])


def test_a_capture_without_counts_needs_an_acceptance(loops, tmp_path):
    fields = {"seq_lens": ints(104), "query_start_loc": ints(0, 4)}
    silent = captured.write(tmp_path / "silent.capture", [(1, "decode_flatten", {}, fields)])
    with pytest.raises(ConfigError, match=r"loop.yaml:\d+: decode_loop.trace: .*does not tell accepted drafts; give"):
        loops(trace=silent)
    assert loops(trace=silent, acceptance=0.5)


def test_more_tokens_than_a_step_of_the_loop_has(loops):
    with pytest.raises(ConfigError, match=r"an accept length of 4 exceeds next_n \(2\)"):
        loops(next_n=2)


@pytest.mark.parametrize("entries", [[], [(1, "paged_mqa_schedule", {}, {"context_lens": ints(4)})]])
def test_a_capture_without_decodes_is_refused(loops, tmp_path, entries):
    empty = captured.write(tmp_path / "empty.capture", entries)
    with pytest.raises(ConfigError, match=r"decode_loop.trace: the capture .*empty.capture holds no decode"):
        loops(trace=empty)
