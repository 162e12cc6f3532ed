"""seq_lens_update: worked examples, legal inputs, the bound of the host. Decode loops carry its state over steps."""

from __future__ import annotations

from dataclasses import replace

import torch

from spec_decode_bench.baselines.seq_lens_update.operator import Inputs, operator
from spec_decode_bench.harness.contract import Point
from tests.baselines.random_batches import each_batch, int32, legal_point


def worked_example() -> tuple[Point, Inputs]:
    """k = 3. Rows now: C (was row 1), a new prefill, A (was row 0: 100 tokens, 2 of 3 drafts accepted). C drafted
    nothing.
    """
    point = legal_point(
        operator,
        {
            "batch_size": 3,
            "num_prev_reqs": 2,
            "max_num_seqs": 5,
            "max_num_batched_tokens": 300,
            "prefills": 1,
            "prefill_len": 256,
        },
    )
    x = Inputs(
        prev_num_computed_tokens=int32(100, 40, 9999, 9999, 9999),
        valid=int32(3, 1, 9999, 9999, 9999),
        query_start_loc=int32(0, 1, 257, 261),
        to_device=int32(1, -1, 0, 41, 512, 104, 3, 0),
        num_scheduled=int32(1, 256, 4),
        num_tokens=261,
    )
    return point, x


def test_worked_example():
    expected = operator.reference(*worked_example())
    assert expected["num_computed_tokens"].value[:3].tolist() == [41, 512, 103]
    assert expected["num_computed_tokens"].untouched.tolist() == [False] * 3 + [True] * 2
    assert expected["num_accepted"].value[2] == 3
    assert expected["num_accepted"].untouched.tolist() == [True, True, False, True, True]
    assert expected["seq_lens"].value.tolist() == [42, 768, 107, 0, 0]
    assert expected["seq_lens_cpu_upper_bound"].value.tolist() == [42, 768, 108, 0, 0]
    positions = expected["positions"]
    assert positions.value[:261].tolist() == [41, *range(512, 768), *range(103, 107)]
    assert positions.untouched.tolist() == [False] * 261 + [True] * 39


def test_worked_example_by_slot():
    """The same requests in slots 4, 0 and 2."""
    point, x = worked_example()
    by_slot = {"prev_num_computed_tokens": int32(555, 9999, 100, 9999, 40), "valid": int32(3, 9999, 3, 9999, 1)}
    x = replace(x, to_device=int32(4, 0, 2, 41, 512, 104, 0, 0, 3), **by_slot)
    expected = operator.reference(Point({**point, "state": "slots"}), x)
    counts = expected["num_computed_tokens"]
    assert counts.value[~counts.untouched].tolist() == [512, 103, 41]
    assert counts.untouched.tolist() == [False, True, False, True, False]
    assert int(expected["num_accepted"].value[2]) == 3
    assert expected["seq_lens"].value.tolist() == [42, 768, 107, 0, 0]
    assert expected["positions"].value[:261].tolist() == [41, *range(512, 768), *range(103, 107)]


@each_batch(operator, 200, state="rows")
def test_inputs_are_legal(point, x):
    p, drafts = x.prev_pos.tolist(), x.prev_drafts.tolist()
    survivors = [row for row in p if row >= 0]
    assert len(p) == len(x.num_computed_tokens_cpu) == len(x.num_scheduled) == point.batch_size
    assert len(drafts) == point.num_prev_reqs
    assert len(set(survivors)) == len(survivors)
    assert len(survivors) == min(point.batch_size - round(point.churn * point.batch_size), point.num_prev_reqs)
    assert all(-1 <= row < point.num_prev_reqs for row in p)
    assert all(0 <= d < point.next_n for d in drafts)
    assert all(d + 1 >= produced >= (1 if d else 0) for d, produced in zip(drafts, x.valid.tolist(), strict=False))
    assert torch.equal(torch.diff(x.query_start_loc), x.num_scheduled)
    assert int(x.query_start_loc[-1]) == x.num_tokens <= point.max_num_batched_tokens
    assert all(0 <= x.prev_num_computed_tokens[row] <= point.max_model_len for row in survivors)
    assert bool((x.num_computed_tokens_cpu >= 0).all())


@each_batch(operator, 200, state="rows")
def test_the_bound_of_a_random_step(point, x):
    expected = operator.reference(point, x)
    slack = expected["seq_lens_cpu_upper_bound"].value - expected["seq_lens"].value
    drafts = [int(x.prev_drafts[p]) if p >= 0 else 0 for p in x.prev_pos]
    top = [0 if point.scheduling == "sync" else d for d in drafts]
    assert all(0 <= s <= d for s, d in zip(slack.tolist(), top, strict=False))
    assert not slack[point.batch_size :].any()
    assert int(expected["seq_lens_cpu_upper_bound"].value.max()) <= point.max_model_len
