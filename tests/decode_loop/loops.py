"""Small loops for tests: their workloads, and stacks of PyTorch variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from spec_decode_bench.decode_loop.bindings import bindings_of
from spec_decode_bench.decode_loop.engine_state import EngineShape
from spec_decode_bench.decode_loop.expected import expect
from spec_decode_bench.decode_loop.loop import DecodeLoop, LoopMismatch, Settings, tables_of
from spec_decode_bench.decode_loop.state import Part
from spec_decode_bench.decode_loop.workload import Acceptance, Workload
from spec_decode_bench.harness.discover import Catalog, discover

CHAINS = {
    "seq_lens_update": "op_chain",
    "decode_flatten": "op_chain",
    "paged_mqa_schedule": "op_chain",
    "mla_tile_schedule": "fresh_copy",
}
ONE = {"seq_lens_update": "op_chain", "decode_step": "op_chain"}
MAMBA = {"mamba_spec_metadata": "op_chain"}


@cache
def catalog() -> Catalog:
    return discover()


def shape(**changes) -> EngineShape:
    values = {
        "batch_size": 4,
        "num_requests": 3,
        "next_n": 4,
        "context_len": {"uniform": [1, 500]},
        "decode_path": "flatten",
        "block_size": 16,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "num_heads_q": 128,
        "num_sms": 8,
        "mamba_block_size": 64,
        "num_layers": 3,
    }
    return EngineShape(**(values | changes))


def workload(seed: int = 0, of: EngineShape | None = None, **changes) -> Workload:
    of, rng = of or shape(), np.random.default_rng(seed)
    values = {
        "shape": of,
        "acceptance": Acceptance((round(0.8 * 2**32), round(0.6 * 2**32), round(0.5 * 2**32))[: of.num_drafts]),
        "prompts": rng.integers(1, 200, 2000),
        "outputs": rng.integers(1, 30, 2000),
        "seed": seed,
        "delay": 0,
        "steps_per_block": 7,
        "blocks": 2,
    }
    return Workload(**(values | changes))


def parts(of: EngineShape, stack: Mapping[str, str]) -> list[Part]:
    found, known = [], catalog()
    for name, variant in stack.items():
        operator, binding = known.operators[name], bindings_of(known)[name]
        found.append(Part(operator, known.find(name, variant), binding, operator.complete(binding.axes(of))))
    return found


def with_setup(stack: list[Part], operator: str, wrap) -> list[Part]:
    """A stack in which the launch of one operator is ``wrap(launch, x, out)``."""

    def changed(part: Part) -> Part:
        def setup(point, x, out):
            return wrap(part.variant.setup(point, x, out), x, out)

        return replace(part, variant=replace(part.variant, name="wrong", setup=setup))

    return [changed(part) if part.operator.name == operator else part for part in stack]


def followed(change):
    """For with_setup: the launch, and then ``change(x, out)``."""

    def wrap(launch, x, out):
        def wrong():
            launch()
            change(x, out)

        return wrong

    return wrap


def failure(work: Workload, right: list[Part], operator: str, wrap) -> str:
    """What the loop says of a stack with a wrong launch, after a right one was fine in the same loop."""
    loop = decode_loop(work, {"right": right, "wrong": with_setup(right, operator, wrap)})
    loop.block("right", 0)
    with pytest.raises(LoopMismatch) as found:
        loop.block("wrong", 0)
    assert loop.block("right", 1).itl_us
    return str(found.value)


def decode_loop(work: Workload, stacks: Mapping[str, list[Part]], **settings) -> DecodeLoop:
    first = next(iter(stacks.values()))
    values = {
        "device": "cpu",
        "model_step_us": 1.0,
        "host_step_us": 0.0,
        "is_async": bool(work.delay),
        "full_graph": False,
    }
    loop = DecodeLoop(work, list(expect(work, first)), Settings(**(values | settings)), tuple(tables_of(first, work)))
    for name, stack in stacks.items():
        loop.set_up(name, stack)
    return loop
