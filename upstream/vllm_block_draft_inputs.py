"""block_draft_inputs of vLLM 0.33: the kernel of its DFlash and DSpark speculators, and the function around it, once
for each KV cache group of the drafter.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import triton

from spec_decode_bench.baselines.block_draft_inputs.operator import Inputs, Outputs, query_tokens
from spec_decode_bench.baselines.compute_slot_mappings.operator import rank_of
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import group_block_sizes, group_tables, longest_row
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.upstream._vllm import Definitions, with_kernels

#: Slot of a token without one, and most tokens that a program takes at a time, as vLLM launches its kernel.
PAD, BLOCK_SIZE = -1, 256
LOCAL_SLOT = Definitions("v1/worker/gpu/cp_utils.py", "cp_local_slot")
CODE = Definitions(
    "v1/worker/gpu/spec_decode/dflash/speculator.py",
    *with_kernels("prepare_dflash_inputs"),
    given=lambda: vars(LOCAL_SLOT()) | {"PAD_SLOT_ID": PAD},
)
#: With an argument of the kernel that a supported version has.
NEEDS = (f"{CODE.need}#out_is_padding_ptr", LOCAL_SLOT.need)
LIMITS = {
    "a row of 37 tokens where the host knows of 4": "the grid covers the longest row that the host knows of",
    **dict.fromkeys(
        ("past the model's range and the tables", "past one table, inside another", "contexts past the tables"),
        "the column of a position past the table is clamped, so that it gets a slot of the row's last block",
    ),
}


def past_the_tables(point: Point, x: Inputs) -> bool:
    """Whether a row has a position past a group's table."""
    starts, furthest = x.query_start_loc.tolist(), 0
    for b, rejected in enumerate(x.num_rejected.tolist()):
        kept = x.target_positions[starts[b] : starts[b + 1] - rejected]
        furthest = max(furthest, int(kept.max()), int(kept[-1]) + query_tokens(point))
    return furthest >= int((x.widths * x.block_sizes).min()) * point.cp_size


@variant("block_draft_inputs", requires=NEEDS, known_failures=LIMITS, fails_on=past_the_tables)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernel, once for each group."""
    kernel, tables = CODE()._prepare_dflash_inputs_kernel, group_tables(point, x.block_tables)
    sizes, longest = group_block_sizes(point), longest_row(point) + query_tokens(point)
    block = min(BLOCK_SIZE, triton.next_power_of_2(longest))
    grid = (point.batch_size, cdiv(longest, block))

    def launch() -> None:
        for g, table in enumerate(tables):
            kernel[grid](
                out.input_ids,
                out.positions,
                out.is_padding,
                out.query_start_loc,
                out.seq_lens,
                out.slot_mappings[g],
                out.context_positions,
                out.context_slot_mappings[g],
                out.sample_indices,
                out.sample_pos,
                out.sample_idx_mapping,
                out.temperature,
                out.seeds,
                x.target_positions,
                x.query_start_loc,
                x.idx_mapping,
                x.last_sampled_tokens,
                x.next_prefill_tokens,
                x.num_sampled,
                x.num_rejected,
                x.temperature,
                x.seeds,
                table,
                table.stride(0),
                x.mask_token_id,
                sizes[g],
                query_tokens(point),
                point.next_n - 1,
                point.max_num_seqs,
                point.max_num_batched_tokens,
                point.max_model_len,
                rank_of(point),
                SAMPLE_FROM_ANCHOR=point.sample_from_anchor == "yes",
                PAD_SLOT_ID=PAD,
                CP_SIZE=point.cp_size,
                CP_INTERLEAVE=point.cp_interleave,
                BLOCK_SIZE=block,
            )

    return launch


@variant("block_draft_inputs", requires=NEEDS, known_failures=LIMITS, fails_on=past_the_tables)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's prepare_dflash_inputs, once for each group, as the speculator calls it."""
    call, tables, sizes = CODE().prepare_dflash_inputs, group_tables(point, x.block_tables), group_block_sizes(point)
    buffers = SimpleNamespace(
        input_ids=out.input_ids,
        positions=out.positions,
        is_padding=out.is_padding,
        query_start_loc=out.query_start_loc,
        seq_lens=out.seq_lens,
    )
    target = SimpleNamespace(
        num_reqs=point.batch_size,
        num_scheduled_tokens=np.full(point.batch_size, longest_row(point), dtype=np.int32),
        positions=x.target_positions,
        query_start_loc=x.query_start_loc,
        idx_mapping=x.idx_mapping,
    )
    samples = out.sample_indices, out.sample_pos, out.sample_idx_mapping, out.temperature, out.seeds
    counts = x.num_sampled, x.num_rejected, x.last_sampled_tokens, x.next_prefill_tokens, x.temperature, x.seeds
    ranks = rank_of(point), point.cp_size, point.cp_interleave
    block = x.mask_token_id, query_tokens(point), point.next_n - 1
    capacity = point.max_num_seqs, point.max_num_batched_tokens, point.max_model_len
    anchor = point.sample_from_anchor == "yes"

    def launch() -> None:
        for g, table in enumerate(tables):
            slots, context = out.slot_mappings[g], (out.context_positions, out.context_slot_mappings[g])
            call(
                buffers,
                slots,
                *context,
                *samples,
                target,
                *counts,
                table,
                sizes[g],
                *ranks,
                *block,
                *capacity,
                anchor,
                point.batch_size,
            )

    return launch
