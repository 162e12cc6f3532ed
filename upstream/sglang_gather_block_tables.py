"""gather_block_tables of SGLang 0.5.23: the kernel that makes the tables of FlashMLA and of TensorRT-LLM's MLA from one
with an entry per token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import torch

from spec_decode_bench.baselines.gather_block_tables.operator import Inputs, Outputs, rows_to_write
from spec_decode_bench.baselines.workloads.request_slots import group_tables, num_real
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.harness.packages import file_in
from spec_decode_bench.upstream._kernel_source import definitions

FILE = "kernels/ops/attention/kv_indices.py"
NAMES = (
    "_FLASHMLA_CREATE_KV_BLOCK_SIZE",
    "FLASHMLA_CREATE_KV_BLOCK_SIZE_TRITON",
    "get_num_page_per_block_flashmla",
    "get_num_kv_index_blocks_flashmla",
    "create_flashmla_kv_indices_triton",
)
#: Tokens of a program.
TOKENS = 4096


@cache
def _code() -> SimpleNamespace:
    return definitions(file_in("sglang", FILE), NAMES)


def _skip(point: Point) -> str | None:
    if point.entries == "block":
        return "SGLang's table has an entry per token"
    if point.block_size > TOKENS:
        return f"a program has {TOKENS} tokens"
    if point.window:
        return "a window's blocks are of another pool"
    if point.memory == "uva":
        return "SGLang's lengths are on the device"
    return "no row is cleared" if rows_to_write(point) > num_real(point) else None


@variant("gather_block_tables", requires=f"sglang:{FILE}::{','.join(NAMES)}", skip=_skip)
def sglang(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """SGLang's kernel. It takes lengths in tokens, which a launch of this suite makes of the blocks owned."""
    code, rows, size = _code(), len(x.idx_mapping), point.block_size
    (table,) = group_tables(point, out.block_tables)
    width, lens = table.stride(0), x.num_blocks.new_empty(rows)
    grid = rows, code.get_num_kv_index_blocks_flashmla(width, size)
    kernel, stride = code.create_flashmla_kv_indices_triton, len(x.tables) // point.max_num_seqs

    def lengths() -> None:
        torch.index_select(x.num_blocks[0], 0, x.idx_mapping, out=lens)
        lens.mul_(size)

    def launch() -> None:
        kernel[grid](x.tables, x.idx_mapping, lens, None, table, stride, width, PAGED_SIZE=size)

    return EngineLaunch(own(lengths), launch)
