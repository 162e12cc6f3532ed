"""post_update of vLLM 0.33: its kernels, which change the state of slots in place, and the functions around them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

from spec_decode_bench.baselines.post_update.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.request_slots import num_real
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.upstream._vllm import (
    HYBRID,
    INPUT_BATCH,
    Definitions,
    needs,
    state_of_rows,
    state_of_slots,
    with_kernels,
)

CODE = Definitions(INPUT_BATCH, *with_kernels("get_num_sampled_and_rejected", "post_update"))
STATES = Definitions(HYBRID, "_scatter_num_accepted_kernel")
NEEDS = needs(CODE, STATES)
LIMITS = {"*, rows beyond 2^31": "row offsets are 32-bit; rows of vLLM's sampler have k + 1 tokens"}


@triton.jit(do_not_specialize=["tokens_stride", "vocab_size"])
def copy_bins_kernel(
    idx_mapping, seq_lens, prompt_lens, num_sampled, tokens, source, target, tokens_stride, vocab_size
):
    """The penalty counts of the tokens that count."""
    b = tl.program_id(0)
    s = tl.load(idx_mapping + b)
    ends = (s >= 0) & (tl.load(seq_lens + b) >= tl.load(prompt_lens + tl.maximum(s, 0)))
    for i in range(tl.where(ends, tl.load(num_sampled + b), 0)):
        place = s * vocab_size + tl.load(tokens + b * tokens_stride + i)
        tl.store(target + place, tl.load(source + place))


def _state(point: Point, x: Inputs, out: Outputs) -> list[Callable[[], None] | None]:
    """What the kernels change: counts of the slots, and of the batch."""
    rows, names = num_real(point), ("num_computed_tokens", "total_len")
    state = [state_of_slots(x.idx_mapping, getattr(x, name), getattr(out, name)) for name in names]
    if x.output_bin_counts is not None and rows:
        counts = x.idx_mapping, x.seq_lens, x.prompt_lens, x.num_sampled
        sizes = x.sampled_tokens.stride(0), point.vocab_size
        state.append(
            own(
                fixed_launch(
                    copy_bins_kernel,
                    (rows,),
                    *counts,
                    x.sampled_tokens,
                    x.output_bin_counts,
                    out.output_bin_counts,
                    *sizes,
                )
            )
        )
    return [*state, state_of_rows(x.num_sampled[:rows], out.num_sampled)]


@variant("post_update", requires=NEEDS, known_failures=LIMITS)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's three kernels, in place; putting the state back is not timed."""
    kernels, scatter, rows = CODE(), STATES()._scatter_num_accepted_kernel, num_real(point)
    bins_stride = 0 if out.output_bin_counts is None else out.output_bin_counts.stride(0)
    drafts = 0 if x.new_drafts is None else x.new_drafts.shape[1]

    def launch() -> None:
        kernels._get_num_sampled_and_rejected_kernel[(rows,)](
            out.num_sampled,
            out.num_rejected,
            x.seq_lens,
            x.cu_num_logits,
            x.idx_mapping,
            x.prompt_lens,
        )
        kernels._post_update_kernel[(rows,)](
            x.idx_mapping,
            out.num_computed_tokens,
            out.last_sampled_tokens,
            out.output_bin_counts,
            bins_stride,
            x.sampled_tokens,
            x.sampled_tokens.stride(0),
            out.num_sampled,
            out.num_rejected,
            x.query_start_loc,
            out.all_token_ids,
            out.all_token_ids.stride(0),
            out.total_len,
            x.new_drafts,
            out.draft_tokens,
            drafts,
            num_warps=1,
        )
        scatter[(rows,)](x.idx_mapping, out.num_sampled, out.num_accepted_tokens)

    return EngineLaunch(*_state(point, x, out), launch)


@variant("post_update", requires=NEEDS, waives="no_alloc", known_failures=LIMITS)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's functions; putting the state back, and the copy of the fresh counts, are not timed."""
    calls, scatter, rows, made = CODE(), STATES()._scatter_num_accepted_kernel, num_real(point), SimpleNamespace()
    idx_mapping, sampled = x.idx_mapping[:rows], out.num_sampled[:rows]
    rejected: torch.Tensor = out.num_rejected[:rows]

    def launch() -> None:
        _, made.rejected = calls.get_num_sampled_and_rejected(
            sampled, x.seq_lens, x.cu_num_logits, idx_mapping, x.prompt_lens
        )
        calls.post_update(
            idx_mapping,
            out.num_computed_tokens,
            out.last_sampled_tokens,
            out.output_bin_counts,
            x.sampled_tokens,
            sampled,
            made.rejected,
            x.query_start_loc,
            out.all_token_ids,
            out.total_len,
            x.new_drafts,
            out.draft_tokens,
        )
        scatter[(rows,)](idx_mapping, sampled, out.num_accepted_tokens)

    return EngineLaunch(*_state(point, x, out), launch, own(lambda: rejected.copy_(made.rejected)))
