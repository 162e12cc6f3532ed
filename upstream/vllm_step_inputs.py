"""step_inputs of vLLM 0.33: the kernels that the model runner and its rejection sampler launch, and the functions
around them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import triton

from spec_decode_bench.baselines.step_inputs.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.upstream._vllm import INPUT_BATCH, REJECTION, Definitions, needs, with_kernels

BATCH = Definitions(
    INPUT_BATCH,
    *with_kernels("expand_idx_mapping", "prepare_prefill_inputs", "prepare_pos_seq_lens"),
    *with_kernels("combine_sampled_and_draft_tokens"),
)
SAMPLER = Definitions(REJECTION, *with_kernels("gather_draft_sampled"))
NEEDS = needs(BATCH, SAMPLER)
#: Tokens or logit rows that a program takes at a time, as vLLM launches its kernels.
BLOCK_SIZE = 1024


def _skip(point: Point) -> str | None:
    return None if point.next_n - 1 + point.new_tokens else "a step without logit rows is not one of vLLM's"


@variant("step_inputs", requires=NEEDS, skip=_skip)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernels: five launches, four where the host knows of no row in its prompt."""
    rows, width = len(x.idx_mapping), triton.next_power_of_2(point.next_n - 1 + point.new_tokens)
    look_ahead, prompts = triton.next_power_of_2(point.look_ahead), point.prompt_rows == "some"
    kernels, gather, gather_grid = BATCH(), SAMPLER()._gather_draft_sampled_kernel, (cdiv(x.num_logits, BLOCK_SIZE),)

    def launch() -> None:
        kernels._expand_idx_mapping_kernel[(rows,)](
            x.idx_mapping,
            out.expanded_idx_mapping,
            out.expanded_local_pos,
            x.cu_num_logits,
            BLOCK_SIZE=width,
        )
        if prompts:
            kernels._prepare_prefill_inputs_kernel[(rows,)](
                out.input_ids,
                out.next_prefill_tokens,
                out.next_prefill_tokens.stride(0),
                point.look_ahead,
                x.idx_mapping,
                x.query_start_loc,
                x.all_token_ids,
                x.all_token_ids.stride(0),
                x.prompt_lens,
                x.num_computed_tokens,
                BLOCK_SIZE=BLOCK_SIZE,
                LOOKAHEAD_BLOCK=look_ahead,
            )
        kernels._prepare_pos_seq_lens_kernel[(rows + 1,)](
            out.positions,
            out.seq_lens,
            x.idx_mapping,
            x.query_start_loc,
            x.num_computed_tokens,
            point.max_num_seqs,
            BLOCK_SIZE=BLOCK_SIZE,
        )
        kernels._combine_sampled_and_draft_tokens_kernel[(rows,)](
            out.input_ids,
            x.idx_mapping,
            x.last_sampled_tokens,
            x.query_start_loc,
            out.seq_lens,
            x.prompt_lens,
            x.draft_tokens,
            x.draft_tokens.stride(0),
            x.cu_num_logits,
            out.logits_indices,
            BLOCK_SIZE=width,
            NUM_NEW_SAMPLED_TOKENS=point.new_tokens,
        )
        gather[gather_grid](
            out.draft_sampled,
            out.logit_positions,
            out.input_ids,
            out.positions,
            out.logits_indices,
            out.expanded_idx_mapping,
            out.expanded_local_pos,
            x.prompt_lens,
            x.num_logits,
            BLOCK_SIZE=BLOCK_SIZE,
        )

    return launch


@variant("step_inputs", requires=NEEDS, skip=_skip, waives="no_alloc")
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's functions, which allocate what is by logit row; the copies into persistent buffers are not timed."""
    prepare, gather, prompts = BATCH(), SAMPLER().gather_draft_sampled, point.prompt_rows == "some"
    longest, made = point.next_n - 1 + point.new_tokens, SimpleNamespace()

    def calls() -> None:
        made.expanded_idx_mapping, made.expanded_local_pos = prepare.expand_idx_mapping(
            x.idx_mapping, x.num_logits, x.cu_num_logits, longest
        )
        if prompts:
            prepare.prepare_prefill_inputs(
                out.input_ids,
                out.next_prefill_tokens,
                x.idx_mapping,
                x.query_start_loc,
                x.all_token_ids,
                x.prompt_lens,
                x.num_computed_tokens,
            )
        prepare.prepare_pos_seq_lens(
            x.idx_mapping, x.query_start_loc, x.num_computed_tokens, out.positions, out.seq_lens
        )
        made.logits_indices = prepare.combine_sampled_and_draft_tokens(
            out.input_ids,
            x.idx_mapping,
            x.last_sampled_tokens,
            x.query_start_loc,
            out.seq_lens,
            x.prompt_lens,
            x.draft_tokens,
            x.cu_num_logits,
            x.num_logits,
            point.new_tokens,
        )
        made.draft_sampled, made.logit_positions = gather(
            out.input_ids,
            out.positions,
            made.logits_indices,
            made.expanded_idx_mapping,
            made.expanded_local_pos,
            x.prompt_lens,
        )

    def hand_on() -> None:
        for name, tensor in vars(made).items():
            getattr(out, name)[: x.num_logits].copy_(tensor)

    return EngineLaunch(calls, own(hand_on))
