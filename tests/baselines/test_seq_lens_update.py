"""seq_lens_update: worked examples, legal inputs, and a walk over many steps whose state the variants
carry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.seq_lens_update.operator import Inputs, operator
from spec_decode_bench.harness.contract import Point
from tests.baselines.random_batches import drawn, int32, legal_point, run_examples
from tests.runnable import DEVICE, healthy, on_device
from tests.tier import few

VARIANTS = healthy("seq_lens_update")
WALKERS = [v for v in VARIANTS if "no_sync" not in v.waives and not v.name.startswith("compiled")]


# --- worked examples --------------------------------------------------------------------------------------------------


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


# --- random steps -----------------------------------------------------------------------------------------------------


SMALL = {"next_n": 6, "max_model_len": 1000, "max_num_seqs": 40, "max_num_batched_tokens": 128}
random_steps = st.integers(0, 12).flatmap(
    lambda rows: st.fixed_dictionaries(
        {
            "batch_size": st.just(rows),
            "num_prev_reqs": st.one_of(st.just(rows), st.integers(0, 20)),
            "max_decode_len": st.integers(1, 6),
            "decode_len": st.sampled_from(["uniform", "ragged", "mixed"]),
            "context_len": st.one_of(st.integers(1, 1000), st.just({"uniform": [1, 1000]})),
            "churn": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
            "row_order": st.sampled_from(["kept", "permuted"]),
            "scheduling": st.sampled_from(["async", "sync"]),
            "acceptance": st.sampled_from([0.0, 0.3, 0.75, 1.0]),
            "prefills": st.integers(0, min(rows, 1)),
            "prefill_len": st.integers(1, 50),
        }
    )
)


@run_examples(200)
@given(axes=random_steps, seed=st.integers(0, 2**32 - 1))
def test_inputs_are_legal(axes, seed):
    point, x = drawn(operator, SMALL | axes, seed)
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


@run_examples(200)
@given(axes=random_steps, seed=st.integers(0, 2**32 - 1))
def test_the_bound_of_a_random_step(axes, seed):
    point, x = drawn(operator, SMALL | axes, seed)
    expected = operator.reference(point, x)
    slack = expected["seq_lens_cpu_upper_bound"].value - expected["seq_lens"].value
    drafts = [int(x.prev_drafts[p]) if p >= 0 else 0 for p in x.prev_pos]
    top = [0 if point.scheduling == "sync" else d for d in drafts]
    assert all(0 <= s <= d for s, d in zip(slack.tolist(), top, strict=False))
    assert not slack[point.batch_size :].any()
    assert int(expected["seq_lens_cpu_upper_bound"].value.max()) <= point.max_model_len


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "fused" in v.name], ids=lambda v: v.name)
def test_counts_by_slot_may_be_updated_in_place(variant):
    """As vLLM's second model runner does it; the worked example with its requests in slots 4, 0, 2."""
    point, x = worked_example()
    x = replace(
        x,
        prev_num_computed_tokens=int32(555, 9999, 100, 9999, 40),
        valid=int32(3, 9999, 3, 9999, 1),
        to_device=int32(4, 0, 2, 41, 512, 104, 0, 0, 3),
    )
    point = Point({**point, "state": "slots"})
    mine = on_device(x)
    out = on_device(operator.make_outputs(point), num_computed_tokens=mine.prev_num_computed_tokens)
    variant.setup(point, mine, out)()
    assert out.num_computed_tokens.tolist() == [512, 9999, 103, 9999, 41]
    assert int(out.num_accepted[2]) == 3
    assert out.seq_lens.tolist() == [42, 768, 107, 0, 0]
    assert out.positions[:261].tolist() == [41, *range(512, 768), *range(103, 107)]


# --- a walk over steps ------------------------------------------------------------------------------------------------


CAPACITY, CHUNK, STEPS = 16, 20, 150
TOKENS = CAPACITY * CHUNK


@dataclass(eq=False)
class Request:
    """The truth about one request; ``computed`` is what the device must arrive at by itself."""

    prompt: int
    computed: int = 0
    believed: int = 0  # the CPU's count for the next step
    prev_row: int = -1
    drafts: int = 0  # of the step that has run last
    scheduled: int = 0


class Engine:
    """A scheduler that is one step ahead of the device (async) or waits for it (sync), with requests coming and
    going.
    """

    def __init__(self, k: int, scheduling: str, seed: int) -> None:
        self.k, self.scheduling, self.rng = k, scheduling, np.random.default_rng(seed)
        self.rows: list[Request] = []
        self.waiting: list[Request] = []

    def schedule(self) -> list[int]:
        """Choose rows and their tokens; the drafts that each row of the previous step had."""
        prev_drafts = [request.drafts for request in self.rows]
        for row, request in enumerate(self.rows):
            request.prev_row = row
        resumed = self.waiting[:1]  # before this step's are preempted: their last outcome has to arrive first
        for request in [r for r in self.rows if self.rng.random() < 0.08]:
            self.rows[self.rows.index(request)] = self.rows[-1]  # condense: the last row fills the hole
            self.rows.pop()
            if self.rng.random() < 0.5:  # preempted: all its tokens are computed again
                self.waiting.append(Request(prompt=request.computed + 1))
        if len(self.rows) < CAPACITY and self.rng.random() < 0.5:
            self.waiting = self.waiting[len(resumed) :]
            self.rows += resumed or [Request(prompt=int(self.rng.integers(1, 60)))]
        if self.rng.random() < 0.3:
            self.rng.shuffle(self.rows)
        for request in self.rows:
            left = request.prompt - request.believed
            request.drafts = (
                0 if left > 0 else int(self.rng.choice([0, self.k, self.k, self.rng.integers(0, self.k + 1)]))
            )
            request.scheduled = min(left, CHUNK) if left > 0 else 1 + request.drafts
        return prev_drafts

    def run(self) -> list[int]:
        """What the step produces, by row; counts move on. A prompt's unfinished chunk produces nothing."""
        produced = []
        for request in self.rows:
            accepted = int((self.rng.random(request.drafts) < 0.6).cumprod().sum())
            done = request.computed + request.scheduled
            before, request.computed = request.computed, request.computed + 1 + accepted if request.drafts else done
            request.believed = before + request.scheduled if self.scheduling == "async" else request.computed
            produced.append(1 + accepted if request.drafts else int(done >= request.prompt))
        return produced


def step_inputs(engine: Engine, counts: torch.Tensor, valid: torch.Tensor, prev_drafts: list[int]) -> Inputs:
    scheduled = [r.scheduled for r in engine.rows]
    host = [*[r.prev_row for r in engine.rows], *[r.believed for r in engine.rows], *prev_drafts]
    start = np.append(0, np.cumsum(scheduled)).astype(np.int32)
    x = Inputs(valid, valid, torch.from_numpy(start), int32(*host), int32(*scheduled), int(start[-1]))
    return on_device(x, prev_num_computed_tokens=counts)


@pytest.mark.parametrize("scheduling", ["async", "sync"])
@pytest.mark.parametrize("k", few([1, 3, 5], 1))
@pytest.mark.parametrize("variant", WALKERS, ids=lambda v: v.name)
def test_a_walk_over_steps_keeps_the_counts_and_fills_the_slack(variant, k, scheduling):
    """The device's counts alone carry the state; the bound is off by 0 to k, each of them, and by nothing where it
    is exact.
    """
    point = operator.complete({"batch_size": 1, "max_num_seqs": CAPACITY, "max_num_batched_tokens": TOKENS})
    out = on_device(operator.make_outputs(point))
    counts, other = out.num_computed_tokens.fill_(-9), torch.full_like(out.num_computed_tokens, -9)
    out.num_accepted.fill_(-7)
    accepted = [-7] * CAPACITY
    engine, valid, seen = Engine(k, scheduling, seed=k), torch.full((CAPACITY,), -5, dtype=torch.int32), set()
    for _ in range(STEPS):
        prev_drafts = engine.schedule()
        counts, other = other, counts
        x = step_inputs(engine, other, valid, prev_drafts)
        variant.setup(point, x, replace(out, num_computed_tokens=counts))()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        rows = engine.rows
        tail = [0] * (CAPACITY - len(rows))
        lens, bound = out.seq_lens.tolist(), out.seq_lens_cpu_upper_bound.tolist()
        assert counts[: len(rows)].tolist() == [r.computed for r in rows]
        assert lens == [r.computed + r.scheduled for r in rows] + tail
        assert out.positions[: x.num_tokens].tolist() == [r.computed + j for r in rows for j in range(r.scheduled)]
        assert bound[len(rows) :] == tail
        for row, request in enumerate(rows):
            drafts = prev_drafts[request.prev_row] if request.prev_row >= 0 else 0
            if drafts:
                accepted[row] = int(valid[request.prev_row])
            slack = bound[row] - lens[row]
            assert 0 <= slack <= (drafts if scheduling == "async" else 0)
            seen.add(slack)
        assert out.num_accepted.tolist() == accepted
        produced = engine.run()
        valid = int32(*produced, *[-5] * (CAPACITY - len(produced)))
    assert seen == (set(range(k + 1)) if scheduling == "async" else {0})
