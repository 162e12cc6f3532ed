"""SGLang's kernels: the gather of index keys (Triton), the schedules of DeepSeek-V4's indexer and attention (CUDA C++).

All are read from SGLang's files; SGLang itself is never imported. Its fork of FlashMLA is in upstream/flash_mla.py.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import triton
from cuda.bindings import driver
from cuda.core import ObjectCode, Program, ProgramOptions

from spec_decode_bench.baselines.k_quant_gather import operator as gather
from spec_decode_bench.baselines.mla_tile_schedule import operator as tiles
from spec_decode_bench.baselines.paged_mqa_schedule import operator as paged
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import current_arch, function_of
from spec_decode_bench.harness.cuda_graph import checked
from spec_decode_bench.harness.launch import packed
from spec_decode_bench.harness.packages import file_in
from spec_decode_bench.upstream._kernel_source import triton_kernel

# --- k_quant_gather ---------------------------------------------------------------------------------------------------

INDEX_CACHE, GATHER = "kernels/ops/kvcache/dsa_index_k_cache.py", "_get_k_and_s_triton_kernel"
#: Tokens and bytes of a program, as SGLang launches it.
TOKENS, BYTES = 256, 128
#: Ragged requests of up to so many tokens are taken: then no more than a few programs of a request find no token.
MOST_RAGGED = 4 * TOKENS


def _longest(point: Point) -> int:
    """Tokens of the longest request, as far as the host knows: exact where all are alike."""
    if point.seq_lens == "uniform":
        return cdiv(point.chunk_tokens, point.batch_size)
    return min(point.chunk_tokens, gather.longest_request(point))


def _skip_gather(point: Point) -> str | None:
    if point.quant_block_size != point.head_dim:
        return "SGLang has one scale per token"
    if point.seq_lens == "ragged" and _longest(point) > MOST_RAGGED:
        return "its grid covers the longest request, of which the host knows only a bound here (SGLang's knows it)"
    return None


@variant(
    "k_quant_gather",
    requires=f"sglang:{INDEX_CACHE}::{GATHER}",
    skip=_skip_gather,
    known_failures={"*, rows beyond 2^31": "byte offsets are 32-bit; SGLang's index caches are smaller"},
    fails_on=lambda point, x: len(x.kv_cache) * x.kv_cache.stride(0) >= 2**31,
)
def sglang_dsa_triton(point: Point, x: gather.Inputs, out: gather.Outputs) -> Callable[[], None]:
    """SGLang's gather of index keys and scales (DSA prefill), into workspaces that exist already."""
    kernel = triton_kernel(file_in("sglang", INDEX_CACHE), (GATHER,))
    grid = (point.batch_size, cdiv(_longest(point), TOKENS), cdiv(point.head_dim, BYTES))

    def launch() -> None:
        kernel[grid](
            buf_ptr=x.kv_cache,
            page_indices_ptr=x.block_table,
            k_out_ptr=out.k,
            s_out_ptr=out.scale,
            seq_len_ptr=x.seq_lens,
            seq_len_num_pow=triton.next_power_of_2(point.batch_size),
            page_size=point.block_size,
            buf_numel_per_page=x.kv_cache.stride(0),
            index_head_dim=point.head_dim,
            s_offset_in_page=point.block_size * point.head_dim,
            page_indice_batch_offset=x.block_table.stride(0),
            BLOCK_SIZE=TOKENS,
            BLOCK_SIZE_K=BYTES,
        )

    return launch


# --- CUDA C++ ---------------------------------------------------------------------------------------------------------

#: Namespace of the kernels of a file. Behind them something launches them through TVM's interface.
FIRST = "namespace sglang {"


def device_code(text: str, launcher: str, before: str) -> str:
    """The kernels of a file, for NVRTC: without the launcher behind them and what only that includes.

    launcher: its first words. before: what the kernels include.
    """
    begin, end = text.find(FIRST), text.find(launcher)
    if not 0 <= begin < end:
        raise LookupError(f"no {FIRST!r} before {launcher!r} in this file; this version of SGLang is not supported")
    return f"{before}{text[begin:end]}}}\n"


@cache
def compiled(path: Path, arch: str, launcher: str, before: str, *kernels: str) -> ObjectCode:
    """The cubin of the kernels of a file for one architecture such as ``sm_90``."""
    options = ProgramOptions(arch=arch, name=path.name, std="c++17", include_path=_cub())
    program = Program(device_code(path.read_text(encoding="utf-8"), launcher, before), "c++", options)
    return program.compile("cubin", name_expressions=kernels)


# --- paged_mqa_schedule -----------------------------------------------------------------------------------------------

SCHEDULE, LAUNCHER = "kernels/jit/csrc/deepseek_v4/paged_mqa_metadata.cuh", "struct IndexerMetadataKernel"
#: Largest batch and kernel there; threads of both. Larger batches take two kernels.
TINY, SMALL, THREADS = 64, 2048, 256
KERNELS = {TINY: "sglang::paged_mqa_metadata_tiny_kernel", SMALL: "sglang::paged_mqa_metadata_small_kernel"}
CUB = "cub/block/block_scan.cuh"
INCLUDES = f"#include <{CUB}>\n#include <cuda/std/cstdint>\nusing cuda::std::uint32_t;\n"


class Parameters(ctypes.Structure):
    """MetadataParams of the file."""

    _fields_ = (
        ("batch_size", ctypes.c_uint32),
        ("num_sm", ctypes.c_uint32),
        ("context_lens", ctypes.c_void_p),
        ("schedule_metadata", ctypes.c_void_p),
    )


@cache
def _cub() -> list[str]:
    """Include paths of a CUDA toolkit that has CUB; empty without one."""
    roots = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    for include in (Path(root) / "include" for root in roots if root):
        for folder in (include / "cccl", include):
            if (folder / CUB).is_file():
                return [str(folder), str(include)]
    return []


def _skip_schedule(point: Point) -> str | None:
    if paged.with_indices(point):
        return "SGLang's kernel takes no token's request"
    if point.lens_layout == "2d" and point.max_decode_len > 1:
        return "SGLang's kernel takes one length per row of queries"
    if point.remainder != "back" or point.atoms != 1:
        return "SGLang gives the unit more to the last SMs, and a row one query atom"
    if point.batch_size > SMALL:
        return f"more than {SMALL} rows take two other kernels"
    return None if _cub() else "its kernels include CUB: set CUDA_HOME to a CUDA toolkit"


@variant(
    "paged_mqa_schedule",
    requires=(f"sglang:{SCHEDULE}#{LAUNCHER}", GPU),
    skip=_skip_schedule,
    known_failures={"*negative lengths in padding rows*": "lengths are read as uint32; SGLang clamps them"},
    fails_on=lambda point, x: bool((x.context_lens < 0).any()),
)
def sglang_cuda(point: Point, x: paged.Inputs, out: paged.Outputs) -> Callable[[], None]:
    """SGLang's kernel for flat rows (DeepSeek-V4), straight into the persistent table."""
    kernel = KERNELS[TINY if point.batch_size <= TINY else SMALL]
    code = compiled(file_in("sglang", SCHEDULE), current_arch(), LAUNCHER, INCLUDES, *KERNELS.values())
    function = function_of(code.get_kernel(kernel))
    values = Parameters(point.batch_size, point.num_sms, x.context_lens.data_ptr(), out.schedule.data_ptr())
    return packed(function, (1,), THREADS, [values], (code, x.context_lens, out.schedule))


# --- mla_tile_schedule ------------------------------------------------------------------------------------------------

TILES, TILES_LAUNCHER = "kernels/jit/csrc/deepseek_v4/flashmla_sched_meta.cuh", "void flashmla_sched_meta("
TILES_KERNEL, TILES_INCLUDES = "sglang::flashmla::flashmla_sched_meta_kernel", "using uint32_t = unsigned;\n"
#: Bytes of dynamic shared memory that SGLang gives the kernel at most.
MOST_SHARED = 48 * 1024


class TileParameters(ctypes.Structure):
    """Params of the file. topk: -1 for a dense model, whose lengths are seqlens_k."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("b", "block_size_n", "fixed_overhead_num_blocks", "topk", "extra_topk")),
        *((name, ctypes.c_void_p) for name in ("topk_length", "extra_topk_length", "seqlens_k")),
        *((name, ctypes.c_void_p) for name in ("tile_scheduler_metadata", "num_splits")),
        ("num_sm_parts", ctypes.c_int),
    )


def tile_bytes(point: Point) -> int:
    """Of dynamic shared memory: five numbers of a request, and the rows."""
    return 4 * (5 * point.batch_size + 1 + 8 * point.num_sm_parts)


def _skip_tiles(point: Point) -> str | None:
    if point.layout != "new":
        return "its rows have the new layout"
    return None if tile_bytes(point) <= MOST_SHARED else "SGLang's kernel takes a schedule that fits into 48 KiB"


@variant("mla_tile_schedule", requires=(f"sglang:{TILES}#{TILES_LAUNCHER}", GPU), skip=_skip_tiles)
def sglang_tiles(point: Point, x: tiles.Inputs, out: tiles.Outputs) -> Callable[[], None]:
    """SGLang's kernel for FlashMLA on Blackwell, for a dense model, straight into the persistent buffers."""
    code = compiled(file_in("sglang", TILES), current_arch(), TILES_LAUNCHER, TILES_INCLUDES, TILES_KERNEL)
    function = function_of(code.get_kernel(TILES_KERNEL))
    dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    checked(driver.cuFuncSetAttribute(function, dynamic, MOST_SHARED))
    values = TileParameters(
        b=point.batch_size,
        block_size_n=tiles.BLOCK_N,
        fixed_overhead_num_blocks=point.overhead,
        topk=-1,
        seqlens_k=x.seq_lens.data_ptr(),
        tile_scheduler_metadata=out.tile_scheduler_metadata.data_ptr(),
        num_splits=out.num_splits.data_ptr(),
        num_sm_parts=point.num_sm_parts,
    )
    return packed(function, (1,), THREADS, [values], (code, x.seq_lens, out), tile_bytes(point))
