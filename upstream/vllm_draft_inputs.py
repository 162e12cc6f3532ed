"""draft_inputs of vLLM 0.33: the kernels of the autoregressive speculator, of which those of the second and further
passes change positions, lengths and sampling keys in place, and the functions around them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

from spec_decode_bench.baselines.draft_inputs.operator import Inputs, Outputs
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.upstream._vllm import SPECULATOR, Definitions, needs, state_of_rows, with_kernels

CODE = Definitions(SPECULATOR, *with_kernels("prepare_prefill_inputs", "prepare_decode_inputs", "update_draft_inputs"))
NEEDS = needs(CODE)
#: Tokens or values that a program takes at a time, as vLLM launches its kernels.
BLOCK_SIZE = 1024


def _fails_on(point: Point, x: Inputs) -> bool:
    """A length is advanced before it is clamped, and wraps around at the largest int32."""
    return point.max_model_len == 2**31 - 1


def first_pass(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    kernel, grid = CODE()._prepare_prefill_inputs_kernel, (len(x.seq_lens),)

    def launch() -> None:
        kernel[grid](
            out.last_token_indices,
            out.current_draft_step,
            out.input_ids,
            out.positions,
            out.query_start_loc,
            out.seq_lens,
            x.target_input_ids,
            x.target_positions,
            x.idx_mapping,
            x.last_sampled_tokens,
            x.next_prefill_tokens,
            x.num_sampled,
            x.num_rejected,
            x.query_start_loc,
            x.seq_lens,
            point.max_num_seqs,
            BLOCK_SIZE=BLOCK_SIZE,
        )

    return launch


def second_pass(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Over positions and sampling keys in ``out``, which become those of the pass."""
    kernel, grid = CODE()._prepare_decode_inputs_kernel, (len(x.seq_lens) + 1,)

    def launch() -> None:
        kernel[grid](
            x.draft_tokens,
            x.draft_tokens.stride(0),
            x.seq_lens,
            x.num_rejected,
            out.input_ids,
            out.positions,
            out.sample_src_positions,
            out.query_start_loc,
            out.seq_lens,
            point.max_model_len,
            point.max_num_seqs,
            BLOCK_SIZE=BLOCK_SIZE,
            ADVANCE_DRAFT_POSITIONS=point.advance == "yes",
        )

    return launch


def later_pass(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Over positions, lengths and sampling keys in ``out``."""
    kernel, grid = CODE()._update_draft_inputs_kernel, (len(x.seq_lens),)

    def launch() -> None:
        kernel[grid](
            out.draft_tokens,
            out.draft_tokens.stride(0),
            out.hidden_states,
            out.hidden_states.stride(0),
            out.input_ids,
            out.positions,
            out.sample_src_positions,
            out.seq_lens,
            x.sampled,
            x.current_draft_step,
            x.hidden_states_before,
            x.hidden_states_before.stride(0),
            x.hidden_states_before.shape[1],
            point.max_model_len,
            point.next_n - 1,
            BLOCK_SIZE=BLOCK_SIZE,
            ADVANCE_DRAFT_POSITIONS=point.advance == "yes",
        )

    return launch


@triton.jit(do_not_specialize=["last"])
def copy_rows_kernel(step, pos_before, src_before, lens_before, pos, src, lens, last):
    """What a pass advances; nothing after the last one."""
    b = tl.program_id(0)
    if tl.load(step) < last:
        tl.store(pos + b, tl.load(pos_before + b))
        tl.store(src + b, tl.load(src_before + b))
        tl.store(lens + b, tl.load(lens_before + b))


def _state(point: Point, x: Inputs, out: Outputs) -> list[Callable[[], None] | None]:
    """What a pass changes in place."""
    rows = len(x.seq_lens)
    if point.draft_pass == "first":
        return []
    if point.draft_pass == "second":
        keys = out.sample_src_positions[:rows]
        return [
            state_of_rows(x.positions_before, out.positions),
            own(lambda: torch.add(x.positions_before, 1, out=keys)),
        ]
    before, after = (
        (x.positions_before, x.sample_src_positions_before, x.seq_lens_before),
        (out.positions, out.sample_src_positions, out.seq_lens),
    )
    return [own(fixed_launch(copy_rows_kernel, (rows,), x.current_draft_step, *before, *after, point.next_n - 2))]


def _buffers(out: Outputs) -> SimpleNamespace:
    return SimpleNamespace(
        input_ids=out.input_ids, positions=out.positions, query_start_loc=out.query_start_loc, seq_lens=out.seq_lens
    )


def first_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    call, buffers = CODE().prepare_prefill_inputs, _buffers(out)
    target = SimpleNamespace(
        num_reqs=len(x.seq_lens),
        input_ids=x.target_input_ids,
        positions=x.target_positions,
        idx_mapping=x.idx_mapping,
        query_start_loc=x.query_start_loc,
        seq_lens=x.seq_lens,
    )
    counts = x.num_sampled, x.num_rejected, x.last_sampled_tokens, x.next_prefill_tokens
    return lambda: call(out.last_token_indices, out.current_draft_step, buffers, target, *counts, point.max_num_seqs)


def second_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    call, buffers, advance = CODE().prepare_decode_inputs, _buffers(out), point.advance == "yes"
    sizes = point.max_model_len, point.max_num_seqs
    return lambda: call(
        x.draft_tokens[:, 0], x.seq_lens, x.num_rejected, buffers, out.sample_src_positions, *sizes, advance
    )


def later_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    call, buffers, advance = CODE().update_draft_inputs, _buffers(out), point.advance == "yes"
    tensors = x.sampled, x.current_draft_step, x.hidden_states_before, out.draft_tokens, out.hidden_states
    sizes = len(x.seq_lens), point.max_model_len, point.next_n - 1
    return lambda: call(*tensors, buffers, out.sample_src_positions, *sizes, advance)


@variant("draft_inputs", requires=NEEDS, fails_on=_fails_on)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernel of the pass, in place but for the first; putting the state back is not timed."""
    made = {"first": first_pass, "second": second_pass, "later": later_pass}[point.draft_pass]
    return EngineLaunch(*_state(point, x, out), made(point, x, out))


@variant("draft_inputs", requires=NEEDS, fails_on=_fails_on)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's function of the pass; putting the state back is not timed."""
    made = {"first": first_call, "second": second_call, "later": later_call}[point.draft_pass]
    return EngineLaunch(*_state(point, x, out), made(point, x, out))
