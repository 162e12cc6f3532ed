"""step_prologue, step_epilogue and draft_passes over thousands of steps against a plain Python engine.

A few hundred steps on a CPU; WHOLE_STEPS overrides the number, and on a GPU it is 10,000 for the fused variants, eager
and as replayed graphs.
"""

from __future__ import annotations

import os

import pytest

from tests.baselines.whole_step import prepared, run_step
from tests.baselines.whole_step_traffic import STATE_BLOCK, Engine, WrongStep
from tests.runnable import DEVICE, engines, healthy


def drive(names: tuple[str, str, str], steps: int, seed: int, graphs: bool = False) -> Engine:
    engine, device = prepared(names, seed, graphs)
    for number in range(steps):
        try:
            run_step(engine, device)
        except WrongStep as wrong:
            raise WrongStep(f"step {number}: {wrong}") from None
    return engine


def steps_of(on_cpu: int, on_gpu: int = 10_000) -> int:
    return int(os.environ.get("WHOLE_STEPS", on_gpu if DEVICE == "cuda" else on_cpu))


#: Of variants that all three operators have; of vLLM's where its files are there.
NAMES = [v.name for v in (*healthy("step_prologue"), *engines("step_prologue")) if v.name != "cuda_sequence"]


@pytest.mark.parametrize("name", NAMES)
def test_state_over_many_steps(name):
    """The interpreter takes a second for a few steps."""
    on_cpu = {"op_chain": 300, "vllm": 8, "vllm_call": 8}.get(name, 25)
    steps = steps_of(on_cpu, 10_000 if name.endswith("fused") else 500)
    engine = drive((name,) * 3, steps, seed=3)
    if steps >= 300:
        assert engine.names > 20
        assert {tokens for _, tokens in engine.states.values()} >= {STATE_BLOCK, 2 * STATE_BLOCK}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["triton_fused", "cuda_fused"])
def test_state_over_many_steps_in_graphs(name):
    """A graph per shape of a step, replayed where the shape comes again."""
    drive((name,) * 3, steps_of(0), seed=3, graphs=True)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "padding_rows_own_slot_0"),
        (0, "slots_of_the_first_group"),
        (0, "scheduler_block_size"),
        (1, "drafter_before_update"),
        (1, "rejected_tokens_kept"),
        (1, "states_before_update"),
        (1, "last_index_not_padded"),
        (2, "positions_not_gated"),
        (2, "tail_kept"),
    ],
)
def test_a_defect_does_not_survive_many_steps(number, name):
    names = ["op_chain"] * 3
    names[number] = name
    with pytest.raises((WrongStep, IndexError)):
        drive(tuple(names), 400, seed=3)
