"""mamba_state_gather: the state slots that a Mamba layer reads and writes in a step (cache mode all).

    input_slots[b, j]  = state_indices[b, prev_step[b] + j]         j = 0 .. k
    output_slots[b, j] = state_indices[b, last_scheduled[b] + j]

with the block_idx_* columns that mamba_spec_metadata computed. vLLM 0.22 does this in every layer (40 in Nemotron-3
Super) although the result is the same in all of them: the baseline runs once per layer, the other variants once per
step.

Input and output are two tensors even where their contents are equal: the layer reads slot num_accepted - 1 of the
first and writes all slots of the second. Padding requests have rows of NULL slots and columns 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import mamba_steps as mamba
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point

NUM_LAYERS = Axis(
    "num_layers",
    axes.whole(1),
    40,
    "Mamba layers of one KV cache group; a variant that runs once per step ignores it",
    largest=129,
)


@dataclass(frozen=True)
class Inputs:
    state_indices: torch.Tensor  # [B, W] int32, stride(0) >= W
    block_idx_last_scheduled_token: torch.Tensor  # [B] int32
    block_idx_last_scheduled_token_prev_step: torch.Tensor  # [B] int32
    block_idx_last_computed_token: (
        torch.Tensor
    )  # [B] int32; equals prev_step unless the previous step fell back a block


@dataclass(frozen=True)
class Outputs:
    input_slots: torch.Tensor  # [max_num_seqs, 1 + k] int32
    output_slots: torch.Tensor  # [max_num_seqs, 1 + k] int32


def make_inputs(point: Point, seed: int) -> Inputs:
    step, size = mamba.make_step(point, seed), point.mamba_block_size
    computed = (step.seq_lens - torch.diff(step.query_start_loc)).tolist()
    last_computed = [mamba.last_block(tokens, size) for tokens in computed]
    prev_step = [
        anchor if anchor >= 0 else column for anchor, column in zip(step.anchors.tolist(), last_computed, strict=True)
    ]
    return Inputs(
        state_indices=mamba.make_state_table(point, step, seed),
        block_idx_last_scheduled_token=int32([mamba.last_block(n, size) for n in step.seq_lens.tolist()]),
        block_idx_last_scheduled_token_prev_step=int32(prev_step),
        block_idx_last_computed_token=int32(last_computed),
    )


def make_outputs(point: Point) -> Outputs:
    shape = (point.max_num_seqs, mamba.slots_per_step(point))
    return Outputs(torch.empty(shape, dtype=torch.int32), torch.empty(shape, dtype=torch.int32))


def views(point: Point, out: Outputs) -> Mapping[str, torch.Tensor]:
    return {"input_slots": out.input_slots[: point.batch_size], "output_slots": out.output_slots[: point.batch_size]}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    slots, capacity = mamba.slots_per_step(point), point.max_num_seqs
    untouched = (torch.arange(capacity) >= point.batch_size)[:, None].expand(capacity, slots)

    def gathered(first: torch.Tensor) -> Expected:
        value = torch.zeros(capacity, slots, dtype=torch.int32)
        for b, column in enumerate(first.tolist()):
            for j in range(slots):
                value[b, j] = x.state_indices[b, column + j]
        return Expected(value, untouched)

    return {
        "input_slots": gathered(x.block_idx_last_scheduled_token_prev_step),
        "output_slots": gathered(x.block_idx_last_scheduled_token),
    }


def bytes_moved(point: Point, x: Inputs) -> int:
    """Per request: two columns and the table entries of two windows read, 2 (1 + k) slots written. Once per step."""
    slots, previous = mamba.slots_per_step(point), x.block_idx_last_scheduled_token_prev_step.tolist()
    windows = zip(previous, x.block_idx_last_scheduled_token.tolist(), strict=True)
    entries = sum(mamba.distinct_entries(first, second, slots) for first, second in windows)
    return 4 * (point.batch_size * (2 + 2 * slots) + entries)


input_bytes = mamba.table_bytes


operator = Operator.of_module(
    __name__,
    summary="state slots of a speculative decode step, gathered in every Mamba layer or once for all of them",
    axes=(*mamba.DECODE_STEP, mamba.MAX_NUM_SEQS, axes.TABLE_PADDING, NUM_LAYERS),
    indices={"input_slots": ("b", "j"), "output_slots": ("b", "j")},
    baseline="per_layer_chain",
    rules=(*mamba.RULES, axes.SEQS_FIT),
    redundant=axes.same_batch_elsewhere,
)
