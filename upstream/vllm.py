"""vLLM's kernels: the gather of index keys (CUDA), the uniform flatten and the aligned state slots of Mamba (Triton).

The Triton kernels are read from vLLM's files and its CUDA library is loaded alone; vLLM itself is never imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import torch
import triton

from spec_decode_bench.baselines.compute_slot_mappings.operator import rank_of
from spec_decode_bench.baselines.decode_flatten import operator as flatten
from spec_decode_bench.baselines.k_quant_gather import operator as gather
from spec_decode_bench.baselines.mamba_spec_metadata import operator as mamba
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.mamba_steps import slots_per_step
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.harness.packages import file_in
from spec_decode_bench.upstream._kernel_source import triton_kernel
from spec_decode_bench.upstream._vllm import MAMBA, Definitions

# --- k_quant_gather ---------------------------------------------------------------------------------------------------

#: vLLM 0.33 and 0.22 have it in different libraries.
LIBRARIES = ("_C_stable_libtorch.abi3.so", "_C.abi3.so")


@cache
def _gather_operator() -> Callable:
    for name in LIBRARIES:
        if (path := file_in("vllm", name)) is not None:
            torch.ops.load_library(str(path))
            if hasattr(torch.ops._C_cache_ops, "cp_gather_indexer_k_quant_cache"):
                break
    return torch.ops._C_cache_ops.cp_gather_indexer_k_quant_cache


def _skip_gather(point: Point) -> str | None:
    if point.quant_block_size != point.head_dim:
        return "vLLM has one scale per token"
    return "vLLM's table rows are contiguous; its kernel ignores their stride" if point.table_padding else None


@variant(
    "k_quant_gather",
    requires=("|".join(f"vllm:{name}" for name in LIBRARIES), GPU),
    skip=_skip_gather,
    known_failures={
        "pages * apart": "16-byte loads; vLLM's pages are aligned",
        "block size 1": "16-byte loads; a page of one token has 132 bytes",
        "*, unaligned buffers": "16-byte accesses; vLLM's caches and workspaces are aligned",
    },
    fails_on=lambda point, x: x.kv_cache.stride(0) % 16 != 0,
)
def vllm_cuda(point: Point, x: gather.Inputs, out: gather.Outputs) -> Callable[[], None]:
    """vLLM's cp_gather_indexer_k_quant_cache, into workspaces of N rows."""
    copy, k, scale = _gather_operator(), out.k[: x.num_tokens], out.scale[: x.num_tokens]

    def launch() -> None:
        copy(x.kv_cache, k, scale, x.block_table, x.cu_seq_lens)

    return launch


# --- decode_flatten ---------------------------------------------------------------------------------------------------

INDEXER = "v1/attention/backends/mla/indexer.py"
#: Columns that a program of the kernel copies at a time, as vLLM launches it.
COLUMNS = 1024
#: The kernel in vLLM 0.33, which clamps lengths at 0, and in 0.22.
CLAMPING, UNCLAMPED = "PrepareUniformDecodeKernel.kernel", "_prepare_uniform_decode_kernel"
FLATTEN_LIMITS = {
    "source narrower than destination": "rows are copied at the destination's width (vLLM #46074)",
    "*, rows beyond 2^31": "row offsets are 32-bit; vLLM's tables are smaller",
}
UNCLAMPED_LIMITS = {
    "all requests are padding": "lengths are not clamped before 0.33; vLLM 0.22 takes its ragged chain here",
    "seq_len < decode_len": "lengths are not clamped before 0.33 (vLLM #51538)",
}


def _clamps() -> bool:
    path = file_in("vllm", INDEXER)
    return path is not None and f"class {CLAMPING.partition('.')[0]}" in path.read_text(encoding="utf-8")


def _skip_flatten(point: Point) -> str | None:
    if point.max_decode_len == 1:
        return "vLLM hands on its inputs where requests have one token"
    if point.decode_len != "uniform" or point.padding or point.token_padding:
        return "vLLM takes this kernel for steps of one decode length without padding only"
    return None if point.indices == "no" else "vLLM's uniform kernel writes no indices"


def table_columns(point: Point) -> int:
    """Of the expanded table."""
    return cdiv(point.max_model_len, point.block_size)


def _beyond_flatten(point: Point, x: flatten.Inputs) -> bool:
    return x.block_table.shape[1] < table_columns(point) or (
        not _clamps() and bool((x.seq_lens < point.max_decode_len).any())
    )


LOCAL = Definitions("v1/attention/backends/utils.py", "get_dcp_local_seq_lens")


def _localized(point: Point, out: flatten.Outputs, tokens: int) -> Callable[[], None] | None:
    """What vLLM's builder does behind the kernel under decode context parallelism, in PyTorch operators."""
    if point.cp_size == 1:
        return None
    rank = torch.tensor(rank_of(point), dtype=torch.int32, device=out.lens.device)
    call, lens = LOCAL().get_dcp_local_seq_lens, out.lens[:tokens]
    return lambda: lens.copy_(call(lens, point.cp_size, rank, point.cp_interleave))


@variant(
    "decode_flatten",
    requires="|".join(f"vllm:{INDEXER}::{name}" for name in (CLAMPING, UNCLAMPED)),
    skip=_skip_flatten,
    waives="no_alloc",
    known_failures=FLATTEN_LIMITS | ({} if _clamps() else UNCLAMPED_LIMITS),
    fails_on=_beyond_flatten,
)
def vllm_triton(point: Point, x: flatten.Inputs, out: flatten.Outputs) -> Callable[[], None]:
    """vLLM's uniform kernel (#39458) and the fill of the tail."""
    kernel = triton_kernel(file_in("vllm", INDEXER), (CLAMPING, UNCLAMPED))
    tokens = point.batch_size * point.max_decode_len
    tables = x.block_table, x.block_table.stride(0), out.block_table, out.block_table.stride(0)
    tail = out.lens[tokens:]

    def launch() -> None:
        kernel[(tokens,)](x.seq_lens, out.lens, *tables, out.decode_lens, point.max_decode_len, BLOCK_SIZE=COLUMNS)
        tail.zero_()

    return EngineLaunch(launch, _localized(point, out, tokens))


VARLEN = Definitions("v1/attention/ops/metadata.py", "_token_request", "_indexer_decode_metadata_kernel")
#: Entries of the tail that a program clears, as vLLM launches the kernel.
TAIL = 256


@variant(
    "decode_flatten",
    requires=VARLEN.need,
    skip=lambda point: None if point.indices == "yes" else "vLLM's kernel for SM100 writes indices, too",
    waives="no_alloc",
    fails_on=lambda point, x: x.block_table.shape[1] > table_columns(point),
)
def vllm_varlen(point: Point, x: flatten.Inputs, out: flatten.Outputs) -> Callable[[], None]:
    """vLLM's kernel for SM100 (#56562), which copies all columns of the source. It keeps the number of tokens of each
    request, where the operator has the length: a copy that is not timed.
    """
    kernel, requests = VARLEN()._indexer_decode_metadata_kernel, len(x.seq_lens)
    tokens, capacity = x.num_decode_tokens, len(out.lens)
    grid = (max(requests, tokens + triton.cdiv(capacity - tokens, TAIL)),)
    request_lens, per_request = out.request_lens[:requests], torch.empty_like(x.seq_lens)

    def launch() -> None:
        kernel[grid](
            x.query_start_loc,
            x.seq_lens,
            x.block_table,
            out.lens,
            out.block_table,
            out.decode_lens,
            out.indices,
            per_request,
            requests,
            tokens,
            capacity,
            x.block_table.stride(0),
            out.block_table.stride(0),
            BLOCK_COLS=x.block_table.shape[1],
            num_warps=4,
        )

    return EngineLaunch(launch, _localized(point, out, tokens), own(lambda: request_lens.copy_(x.seq_lens)))


# --- mamba_spec_metadata ----------------------------------------------------------------------------------------------

ALIGN = "get_aligned_state_indices_multi_group_kernel"
ALIGNED_SLOTS = Definitions(MAMBA, ALIGN)
#: Rows of a program, as vLLM launches it.
ROWS = 32
INTERPRETED = {"*, rows beyond 2^31": "Triton's interpreter makes the stride 32-bit, although it is annotated as int64"}


@variant(
    "mamba_spec_metadata",
    requires=ALIGNED_SLOTS.need,
    skip=lambda p: None if p.cache_mode == "align" else "vLLM's kernel is for mode align",
    known_failures={
        "align, padding rows hold stale inputs": "vLLM zeroes the table rows of padding before",
        "align, no real request, all rows hold stale inputs": "vLLM zeroes the table rows of padding before",
    }
    | (INTERPRETED if os.environ.get("TRITON_INTERPRET") == "1" else {}),
)
def vllm_align(point: Point, x: mamba.Inputs, out: mamba.Outputs) -> Callable[[], None]:
    """vLLM's state slots of mode align (0.33) for one group, and the staging of accepted counts with their padding."""
    kernel = ALIGNED_SLOTS().get_aligned_state_indices_multi_group_kernel
    size, slots = point.batch_size, slots_per_step(point)
    tables = torch.tensor([x.block_table.data_ptr()], dtype=torch.int64, device=x.block_table.device)
    grid = (triton.cdiv(size, ROWS),)
    real, padding = out.num_accepted_tokens[: x.num_decodes], out.num_accepted_tokens[x.num_decodes : size]
    accepted = x.num_accepted_tokens[: x.num_decodes]
    group_stride = out.input_slots.numel()

    def launch() -> None:
        kernel[grid](
            tables,
            x.seq_lens,
            out.input_slots,
            x.block_table.stride(0),
            x.seq_lens.stride(0),
            group_stride,
            *out.input_slots.stride(),
            size,
            CACHE_BLOCK_SIZE=point.mamba_block_size,
            NUM_GROUPS=1,
            BLOCK_GROUPS=1,
            NUM_STATE_SLOTS=slots,
            BLOCK_STATE_SLOTS=triton.next_power_of_2(slots),
            BLOCK_ROWS=ROWS,
            num_warps=1,
        )
        real.copy_(accepted)
        padding.fill_(1)

    return launch
