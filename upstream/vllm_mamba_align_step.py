"""mamba_align_step of vLLM 0.33: the kernels of a hybrid's model state, and what its GDN builder stages.

vLLM decides which states move inside the kernels that move them. Here these run over a state without bytes, and a
kernel of the suite, which is not timed, writes the table of moves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

from baselines.mamba_align_step.operator import Inputs, Outputs, table_columns
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import num_real
from harness.contract import Point, variant
from harness.engine_launch import EngineLaunch, own
from upstream._vllm import MAMBA, addresses, needs, of_vllm, state_of_slots
from upstream.vllm import ALIGN, ROWS

NEEDS = needs(MAMBA)
#: Requests of a program that advances columns, and programs that share the copy of a state, as vLLM launches them.
BLOCK_SIZE, TILES = 256, 16
MOVE_ROWS = 128


@cache
def source() -> SimpleNamespace:
    copies = "_memcpy_u64_tiled", "_copy_mamba_state_block", "precopy_mamba_align_fused_kernel"
    return of_vllm(
        MAMBA, *copies, "postprocess_mamba_fused_kernel", "preprocess_mamba_align_fused_kernel", ALIGN
    )


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


@variant("mamba_align_step", requires=NEEDS, waives="no_alloc")
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernels and staging copies; putting the state back, and the table of moves, are not timed."""
    return _after(point, x, out) if point.phase == "after_sampling" else _before(point, x, out)


def _before(point: Point, x: Inputs, out: Outputs) -> EngineLaunch:
    kernels, rows, real, device = source(), len(x.idx_mapping), num_real(point), x.idx_mapping.device
    idx_mapping, state = x.idx_mapping[:real], _without_bytes(table_columns(point), device)
    aligned = torch.empty_like(out.state_slots)
    tables = addresses(list(x.batch_tables)).view(torch.int64)
    mask = torch.ones(real, dtype=torch.bool, pin_memory=device.type == "cuda")
    groups, width = point.num_groups, point.next_n

    def advance() -> None:
        kernels.preprocess_mamba_align_fused_kernel[(cdiv(real, BLOCK_SIZE),)](
            idx_mapping,
            out.columns,
            x.num_computed_tokens,
            x.query_start_loc,
            out.accepted,
            out.source_columns,
            out.source_offsets,
            real,
            BLOCK_SIZE=BLOCK_SIZE,
            MAMBA_BLOCK_SIZE=point.mamba_block_size,
        )
        kernels.precopy_mamba_align_fused_kernel[(real, 1, TILES)](
            out.columns,
            out.source_columns,
            out.source_offsets,
            *state[0],
            idx_mapping,
            real,
            COPY_BLOCK_SIZE=1024,
            CONV_STATE_DIM_FIRST=False,
            HAS_IDX_MAPPING=True,
            TEMPORAL_TILES=TILES,
        )

    def stage() -> None:
        accepted = out.accepted.new_ones(rows)
        accepted[:real] = out.accepted[idx_mapping]
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

    def write_moves() -> None:
        moves_before_kernel[(cdiv(rows, MOVE_ROWS),)](
            x.idx_mapping,
            out.source_columns,
            out.columns,
            out.source_offsets,
            out.moves,
            rows,
            BLOCK=MOVE_ROWS,
        )

    return EngineLaunch(
        state_of_slots(x.idx_mapping, x.columns_before, out.columns),
        state_of_slots(x.idx_mapping, x.accepted_before, out.accepted),
        advance if real else None,
        stage,
        own(write_moves),
    )


def _after(point: Point, x: Inputs, out: Outputs) -> EngineLaunch:
    kernels, rows, real = source(), len(x.idx_mapping), num_real(point)
    state, snapshot = _without_bytes(table_columns(point), x.idx_mapping.device), torch.empty_like(out.accepted)

    def write_moves() -> None:
        moves_after_kernel[(cdiv(rows, MOVE_ROWS),)](
            x.idx_mapping,
            x.num_computed_tokens,
            x.columns_before,
            x.accepted_before,
            out.moves,
            rows,
            point.mamba_block_size,
            BLOCK=MOVE_ROWS,
        )

    def freeze() -> None:
        snapshot.copy_(out.accepted)
        kernels.postprocess_mamba_fused_kernel[(real, 1, TILES)](
            snapshot,
            x.columns_before,
            None,
            x.num_computed_tokens,
            None,
            *state[0],
            out.accepted,
            x.idx_mapping,
            real,
            block_size=point.mamba_block_size,
            COPY_BLOCK_SIZE=1024,
            CONV_STATE_DIM_FIRST=False,
            HAS_IDX_MAPPING=True,
            PRECOMPUTED_NEW_COMPUTED=True,
            TEMPORAL_TILES=TILES,
        )

    return EngineLaunch(
        own(write_moves),
        state_of_slots(x.idx_mapping, x.accepted_before, out.accepted),
        freeze if real else None,
    )
