"""mamba_state_gather: the state slots that a Mamba layer reads and writes in a step (cache mode all).

    input_slots[b, j]  = state_indices[b, prev_step[b] + j]         j = 0 .. k
    output_slots[b, j] = state_indices[b, last_scheduled[b] + j]

with the block_idx_* columns of mamba_spec_metadata. vLLM 0.22 does this in every layer (40 in Nemotron-3 Super)
although the result is the same in all of them: the baseline runs once per layer, the other variants once per step.

Input and output are two tensors even where their contents are equal: the layer reads slot num_accepted - 1 of the
first and writes all slots of the second. Padding requests have rows of NULL slots and columns 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spec_decode_bench.baselines.mamba_state_gather.cases import EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import mamba_steps as mamba
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point
from spec_decode_bench.harness.tensors import I32, Tensors, field

NUM_LAYERS = Axis(
    "num_layers",
    axes.whole(1),
    40,
    "Mamba layers of one KV cache group; a variant that runs once per step ignores it",
    largest=129,
)


class Inputs(Tensors):
    state_indices: I32["batch_size", mamba.table_columns] = field(strided=mamba.table_stride)
    block_idx_last_scheduled_token: I32["batch_size"]
    block_idx_last_scheduled_token_prev_step: I32["batch_size"]
    # equals prev_step unless the previous step fell back a block
    block_idx_last_computed_token: I32["batch_size"]


class Outputs(Tensors):
    input_slots: I32["max_num_seqs", "num_speculative_blocks + 1"] = field(read="batch_size")
    output_slots: I32["max_num_seqs", "num_speculative_blocks + 1"] = field(read="batch_size")


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


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


operator = Operator(
    name="mamba_state_gather",
    summary="state slots of a speculative decode step, gathered in every Mamba layer or once for all of them",
    axes=(*mamba.DECODE_STEP, mamba.MAX_NUM_SEQS, axes.TABLE_PADDING, NUM_LAYERS),
    indices={"input_slots": ("b", "j"), "output_slots": ("b", "j")},
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="per_layer_chain",
    rules=(*mamba.RULES, axes.SEQS_FIT),
    redundant=axes.same_batch_elsewhere,
)
