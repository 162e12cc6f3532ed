"""mamba_align_step of vLLM 0.33: the kernels of a hybrid's model state and what its GDN builder stages, and the methods
around them.

vLLM decides which states move inside the kernels that move them. Here these run over a state without bytes, and a
kernel of the suite, which is not timed, writes the table of moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from spec_decode_bench.baselines.mamba_align_step.operator import Inputs, Outputs, table_columns
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import decode_lens, num_real
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.upstream._vllm import HYBRID, MAMBA, Definitions, addresses, needs, state_of_slots
from spec_decode_bench.upstream.vllm import ALIGN, ROWS

CONTEXT, STATE = "MambaSpecDecodeGPUContext", "MambaHybridModelState"
ATTENTION, TORCH_UTILS = "v1/worker/gpu/attn_utils.py", "utils/torch_utils.py"
GDN, COMMON, SPLIT = (f"v1/attention/{name}.py" for name in ("backends/gdn_attn", "backend", "backends/utils"))
GDN_METHODS = ("build", "update_block_table", "_stage_spec_decode", "_stage_decode")
CODE = Definitions(
    MAMBA,
    "_memcpy_u64_tiled",
    "_copy_mamba_state_block",
    "precopy_mamba_align_fused_kernel",
    "postprocess_mamba_fused_kernel",
    "preprocess_mamba_align_fused_kernel",
    ALIGN,
    "_TEMPORAL_TILES",
    f"{CONTEXT}.compute_aligned_state_indices",
    f"{CONTEXT}.run_fused_precopy",
    f"{CONTEXT}.run_fused_postprocess_align",
    given=lambda: {"is_conv_state_dim_first": lambda: False},
)
STAGING = Definitions(TORCH_UTILS, "async_tensor_h2d", given=lambda: {"PIN_MEMORY": torch.cuda.is_available()})
NULL_BLOCK = Definitions(SPLIT, "NULL_BLOCK_ID")
GDN_CODE = Definitions(
    GDN,
    "GDNAttentionMetadata",
    *(f"GDNAttentionMetadataBuilder.{name}" for name in GDN_METHODS),
    given=lambda: {"dataclass": dataclass, "replace": replace} | vars(NULL_BLOCK()) | vars(STAGING()),
)
METADATA = Definitions(COMMON, "CommonAttentionMetadata", given=lambda: {"dataclass": dataclass, "replace": replace})
BUILD = Definitions(ATTENTION, "build_attn_metadata", given=lambda: {"MambaSpec": StateSpec} | vars(METADATA()))
MODEL_STATE = Definitions(
    HYBRID,
    "MambaHybridAttnMetadata",
    f"{STATE}.preprocess_state",
    f"{STATE}.prepare_attn",
    given=lambda: _used_by_model_state(),
)
NEEDS = needs(CODE)
NEEDS_OF_CALL = (*NEEDS, *needs(STAGING, NULL_BLOCK, GDN_CODE, METADATA, BUILD, MODEL_STATE))
#: Requests of a program that advances columns, as vLLM launches it.
BLOCK_SIZE = 256
MOVE_ROWS = 128


def _fails_on(point: Point, x: Inputs) -> bool:
    """Lengths are rounded up to blocks in 32 bits."""
    return point.max_model_len + point.mamba_block_size > 2**31 - 1


class StateSpec:
    """Stands for vLLM's MambaSpec."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size


class GdnBuilder:
    """Stands for vLLM's GDNAttentionMetadataBuilder: its methods, without its constructor."""

    supports_update_block_table = True


def _used_by_model_state() -> dict[str, Any]:
    """By the methods of the hybrid's model state: the GDN builder, and kernels and functions of other files."""
    builder = GDN_CODE()
    for name in GDN_METHODS:
        setattr(GdnBuilder, name, getattr(builder, name))
    others = (
        "Mamba2AttentionMetadataBuilder",
        "ShortConvAttentionMetadataBuilder",
        "PleShortConvAttentionMetadataBuilder",
    )
    return {
        "dataclass": dataclass,
        "ModelSpecificAttnMetadata": object,
        "CUDAGraphMode": SimpleNamespace(FULL="full"),
        "GDNAttentionMetadataBuilder": GdnBuilder,
        "preprocess_mamba_align_fused_kernel": CODE().preprocess_mamba_align_fused_kernel,
        "build_attn_metadata": BUILD().build_attn_metadata,
        **dict.fromkeys(others, type("Other", (), {})),
    }


@triton.jit(do_not_specialize=["rows"])
def moves_before_kernel(idx_mapping, old_columns, columns, offsets, moves, rows, BLOCK: tl.constexpr):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(idx_mapping + b, mask=b < rows, other=-1)
    old, new = tl.load(old_columns + s, mask=s >= 0, other=-1), tl.load(columns + s, mask=s >= 0, other=-1)
    moved = (old >= 0) & (old != new)
    shift = tl.load(offsets + s, mask=s >= 0, other=0)
    tl.store(moves + 3 * b, tl.where(moved, old, -1), mask=b < rows)
    tl.store(moves + 3 * b + 1, tl.where(moved, new, -1), mask=b < rows)
    tl.store(moves + 3 * b + 2, tl.where(moved, shift, 0), mask=b < rows)


@triton.jit(do_not_specialize=["rows", "size"])
def moves_after_kernel(idx_mapping, computed_tokens, columns, accepted, moves, rows, size, BLOCK: tl.constexpr):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(idx_mapping + b, mask=b < rows, other=-1)
    computed = tl.load(computed_tokens + s, mask=s >= 0, other=0)
    running = computed - tl.load(accepted + s, mask=s >= 0, other=0) + 1
    aligned, column = computed // size * size, tl.load(columns + s, mask=s >= 0, other=-1)
    to = aligned // size - 1
    moved = (s >= 0) & (aligned >= running) & ((to != column) | (aligned > running))
    tl.store(moves + 3 * b, tl.where(moved, column, -1), mask=b < rows)
    tl.store(moves + 3 * b + 1, tl.where(moved, to, -1), mask=b < rows)
    tl.store(moves + 3 * b + 2, tl.where(moved, aligned - running, 0), mask=b < rows)


def _without_bytes(columns: int, device: torch.device) -> tuple[tuple[object, ...], torch.Tensor]:
    """Arguments of the copy kernels, from the block tables on: one state of no bytes, and a table of zeros, to be kept,
    which is the row of every request.
    """
    zeros = torch.zeros(columns + 1, dtype=torch.int32, device=device)
    tables = torch.tensor([zeros.data_ptr()], dtype=torch.int64, device=device)
    none, zero = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    return (tables, 0, none, none, torch.ones_like(zero), none, zero, zero, zero, none), zeros


@variant("mamba_align_step", requires=NEEDS, waives="no_alloc", fails_on=_fails_on)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernels and staging copies; putting the state back, and the table of moves, are not timed."""
    return _after(point, x, out) if point.phase == "after_sampling" else _before(point, x, out)


def _state_before(x: Inputs, out: Outputs) -> tuple[Callable[[], None] | None, ...]:
    """What the kernels advance in place."""
    columns = state_of_slots(x.idx_mapping, x.state_columns_before, out.state_columns)
    return columns, state_of_slots(x.idx_mapping, x.num_accepted_tokens_before, out.num_accepted_tokens)


def _moves_before(x: Inputs, out: Outputs, rows: int) -> Callable[[], None]:
    columns = out.source_columns, out.state_columns, out.source_offsets
    grid = (cdiv(rows, MOVE_ROWS),)
    return fixed_launch(moves_before_kernel, grid, x.idx_mapping, *columns, out.moves, rows, BLOCK=MOVE_ROWS)


def _around_after(point: Point, x: Inputs, out: Outputs) -> tuple[Callable[[], None] | None, ...]:
    """The table of moves, and what the kernel changes in place."""
    rows = len(x.idx_mapping)
    grid, state = (
        (cdiv(rows, MOVE_ROWS),),
        (x.num_computed_tokens, x.state_columns_before, x.num_accepted_tokens_before),
    )
    sizes = rows, point.mamba_block_size
    moves = own(fixed_launch(moves_after_kernel, grid, x.idx_mapping, *state, out.moves, *sizes, BLOCK=MOVE_ROWS))
    return moves, state_of_slots(x.idx_mapping, x.num_accepted_tokens_before, out.num_accepted_tokens)


def _before(point: Point, x: Inputs, out: Outputs) -> EngineLaunch:
    kernels, rows, real, device = CODE(), len(x.idx_mapping), num_real(point), x.idx_mapping.device
    idx_mapping, state = x.idx_mapping[:real], _without_bytes(table_columns(point), device)
    aligned = torch.empty_like(out.state_slots)
    tables = addresses(list(x.batch_tables)).view(torch.int64)
    mask = torch.ones(real, dtype=torch.bool, pin_memory=device.type == "cuda")
    groups, width = point.num_groups, point.next_n

    def advance() -> None:
        kernels.preprocess_mamba_align_fused_kernel[(cdiv(real, BLOCK_SIZE),)](
            idx_mapping,
            out.state_columns,
            x.num_computed_tokens,
            x.query_start_loc,
            out.num_accepted_tokens,
            out.source_columns,
            out.source_offsets,
            real,
            BLOCK_SIZE=BLOCK_SIZE,
            MAMBA_BLOCK_SIZE=point.mamba_block_size,
        )
        kernels.precopy_mamba_align_fused_kernel[(real, 1, kernels._TEMPORAL_TILES)](
            out.state_columns,
            out.source_columns,
            out.source_offsets,
            *state[0],
            idx_mapping,
            real,
            COPY_BLOCK_SIZE=1024,
            CONV_STATE_DIM_FIRST=False,
            HAS_IDX_MAPPING=True,
            TEMPORAL_TILES=kernels._TEMPORAL_TILES,
        )

    def stage() -> None:
        accepted = out.num_accepted_tokens.new_ones(rows)
        accepted[:real] = out.num_accepted_tokens[idx_mapping]
        getattr(kernels, ALIGN)[(cdiv(rows, ROWS),)](
            tables,
            x.seq_lens,
            aligned,
            x.batch_tables.stride(1),
            x.seq_lens.stride(0),
            *aligned.stride(),
            rows,
            CACHE_BLOCK_SIZE=point.mamba_block_size,
            NUM_GROUPS=groups,
            BLOCK_GROUPS=triton.next_power_of_2(groups),
            NUM_STATE_SLOTS=width,
            BLOCK_STATE_SLOTS=triton.next_power_of_2(width),
            BLOCK_ROWS=ROWS,
            num_warps=1,
        )
        out.mask[:real].copy_(mask, non_blocking=True)
        out.starts[: real + 1].copy_(x.query_start_loc[: real + 1], non_blocking=True)
        out.batch_accepted[:real].copy_(accepted[:real], non_blocking=True)
        for group in range(groups):
            out.state_slots[group, :real].copy_(aligned[group, :real], non_blocking=True)
        if rows > real:
            out.mask[real:rows].fill_(False)
            out.starts[real + 1 : rows + 1].fill_(out.starts[real])
            out.batch_accepted[real:rows].fill_(1)
            for group in range(groups):
                out.state_slots[group, real:rows].fill_(0)

    moves = own(_moves_before(x, out, rows))
    return EngineLaunch(*_state_before(x, out), advance if real else None, stage, moves)


def _after(point: Point, x: Inputs, out: Outputs) -> EngineLaunch:
    kernels, real = CODE(), num_real(point)
    state, snapshot = (
        _without_bytes(table_columns(point), x.idx_mapping.device),
        torch.empty_like(out.num_accepted_tokens),
    )

    def freeze() -> None:
        snapshot.copy_(out.num_accepted_tokens)
        kernels.postprocess_mamba_fused_kernel[(real, 1, kernels._TEMPORAL_TILES)](
            snapshot,
            x.state_columns_before,
            None,
            x.num_computed_tokens,
            None,
            *state[0],
            out.num_accepted_tokens,
            x.idx_mapping,
            real,
            block_size=point.mamba_block_size,
            COPY_BLOCK_SIZE=1024,
            CONV_STATE_DIM_FIRST=False,
            HAS_IDX_MAPPING=True,
            PRECOMPUTED_NEW_COMPUTED=True,
            TEMPORAL_TILES=kernels._TEMPORAL_TILES,
        )

    return EngineLaunch(*_around_after(point, x, out), freeze if real else None)


# --- the methods around them ------------------------------------------------------------------------------------------


def _context(point: Point, x: Inputs, out: Outputs) -> SimpleNamespace:
    """Stands for MambaSpecDecodeGPUContext: its methods, and the attributes that they read."""
    calls, (arguments, kept) = CODE(), _without_bytes(table_columns(point), x.idx_mapping.device)
    names = ("block_table_ptrs", "block_table_stride_req", "state_base_addrs", "state_block_strides")
    names += ("state_elem_sizes", "state_inner_sizes", "state_conv_widths", "state_group_indices")
    context = SimpleNamespace(
        **dict(zip((*names, "state_dim_row_count", "state_dim_row_stride"), arguments, strict=True)),
        kept=kept,
        is_initialized=True,
        num_states=1,
        num_groups=point.num_groups,
        block_size=point.mamba_block_size,
        num_accepted_tokens_out=torch.empty_like(out.num_accepted_tokens),
    )
    for name in ("compute_aligned_state_indices", "run_fused_precopy", "run_fused_postprocess_align"):
        method = getattr(calls, name)
        setattr(context, name, lambda *given, method=method: method(context, *given))
    return context


def skip_call(point: Point) -> str | None:
    if point.phase == "before_forward" and (point.next_n == 1 or point.prefills or not num_real(point)):
        return "vLLM's GDN builder stages this in steps of speculative decodes alone"
    return None


@variant(
    "mamba_align_step",
    requires=NEEDS_OF_CALL,
    skip=skip_call,
    waives=("no_alloc", "graph_safe"),
    fails_on=_fails_on,
)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's MambaHybridModelState.preprocess_state and prepare_attn with its GDN builders; after sampling the copy of
    frozen states. Putting the state back, and the table of moves, are not timed.
    """
    context, rows, real = _context(point, x, out), len(x.idx_mapping), num_real(point)
    if point.phase == "after_sampling":
        state = x.state_columns_before, x.num_computed_tokens, x.idx_mapping

        def freeze() -> None:
            context.run_fused_postprocess_align(real, out.num_accepted_tokens, *state)

        return EngineLaunch(*_around_after(point, x, out), freeze)
    spec = StateSpec(point.mamba_block_size)
    builders = [_builder(point, out, group) for group in range(point.num_groups)]
    groups = [[_attention_group(builder, spec)] for builder in builders]
    cache_config = SimpleNamespace(kv_cache_groups=groups)
    context.aligned_index_block_table_ptrs = addresses(list(x.batch_tables)).view(torch.int64)
    context.block_table_ptrs = addresses(list(x.slot_tables)).view(torch.int64)
    context.block_table_stride_req = x.batch_tables.stride(1)
    context.aligned_state_indices = torch.empty_like(out.state_slots)
    model_state = SimpleNamespace(
        _align_mode=True,
        _mamba_ctx=context,
        _mamba_state_idx_gpu=out.state_columns,
        _mamba_src_col_gpu=out.source_columns,
        _mamba_src_off_gpu=out.source_offsets,
        num_accepted_tokens_gpu=out.num_accepted_tokens,
        _get_mamba_group_info=lambda config: (list(range(point.num_groups)), spec),
        vllm_config=SimpleNamespace(num_speculative_tokens=point.next_n - 1),
        max_model_len=point.max_model_len,
        recoverssm=None,
    )
    batch, tables = _batch(point, x), tuple(x.batch_tables)
    calls, none = MODEL_STATE(), torch.zeros(point.num_groups, 1, dtype=torch.int64, device=x.seq_lens.device)

    def launch() -> None:
        calls.preprocess_state(model_state, batch, tables, cache_config, x.num_computed_tokens)
        calls.prepare_attn(model_state, batch, "full", tables, none, groups, cache_config)

    return EngineLaunch(*_state_before(x, out), launch, own(_moves_before(x, out, rows)))


def _builder(point: Point, out: Outputs, group: int) -> GdnBuilder:
    """Of the first group, with the outputs as its buffers; other groups have buffers of their own but for the slots."""
    builder, first, capacity = GdnBuilder(), group == 0, point.max_num_seqs
    fresh = lambda *size: torch.empty(*size, dtype=torch.int32, device=out.num_accepted_tokens.device)  # noqa: E731
    builder.__dict__.update(
        vllm_config=SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode="align")),
        num_spec=point.next_n - 1,
        use_spec_decode=True,
        use_full_cuda_graph=True,
        decode_cudagraph_max_bs=capacity * point.next_n,
        mamba_aligned_state_indices=None,
        spec_state_indices_tensor=out.state_slots[group],
        spec_sequence_masks=out.mask if first else torch.empty_like(out.mask),
        spec_query_start_loc=out.starts if first else torch.empty_like(out.starts),
        num_accepted_tokens=out.batch_accepted if first else torch.empty_like(out.batch_accepted),
        spec_token_indx=fresh(capacity * point.next_n),
        non_spec_token_indx=fresh(capacity * point.next_n),
        plan_flashinfer_checkpoints=False,
    )
    return builder


def _attention_group(builder: GdnBuilder, spec: StateSpec) -> SimpleNamespace:
    """Stands for vLLM's AttentionGroup where its tables need no mapping to smaller blocks."""

    def build(metadata: object, ubatch: int, **given: object) -> object:
        return builder.build(0, metadata, **given)

    return SimpleNamespace(
        get_metadata_builder=lambda ubatch: builder, kv_cache_spec=spec, build_metadata=build, layer_names=["states"]
    )


def _batch(point: Point, x: Inputs) -> SimpleNamespace:
    """Stands for vLLM's InputBatch. The host's lengths are of the right number and sum, in any order."""
    rows, real, lens = len(x.idx_mapping), num_real(point), decode_lens(point).astype(np.int32)
    starts = np.concatenate([[0], lens.cumsum(), np.full(rows - real, lens.sum())]).astype(np.int32)
    return SimpleNamespace(
        num_reqs=real,
        num_reqs_after_padding=rows,
        num_tokens=int(lens.sum()),
        num_tokens_after_padding=int(lens.sum()),
        idx_mapping=x.idx_mapping[:real],
        query_start_loc=x.query_start_loc[: rows + 1],
        query_start_loc_np=starts,
        max_query_len=point.max_decode_len,
        num_scheduled_tokens=lens,
        num_draft_tokens_per_req=lens - 1,
        is_prefilling_np=np.zeros(real, dtype=bool),
        prefill_runs_as_decode_np=None,
        seq_lens=x.seq_lens,
        seq_lens_cpu_upper_bound=torch.full((rows,), point.max_model_len, dtype=torch.int32),
        dcp_local_seq_lens=None,
        positions=None,
        prompt_lens=None,
    )
