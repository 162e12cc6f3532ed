"""compute_slot_mappings of SGLang 0.5.23: the kernels that read slots from its table with an entry per token, a block
table with blocks of one token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import torch
import triton

from spec_decode_bench.baselines.compute_slot_mappings.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.request_slots import group_tables, num_real
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.harness.packages import file_in
from spec_decode_bench.upstream._kernel_source import definitions

FILE = "kernels/ops/speculative/cache_locs.py"
NAMES = ("assign_extend_cache_locs",)


@cache
def _code() -> SimpleNamespace:
    return definitions(file_in("sglang", FILE), NAMES)


def _skip(point: Point) -> str | None:
    if point.block_size > 1 or point.blocks_per_kv_block > 1:
        return "SGLang's table has an entry per token"
    if point.num_groups > 1 or point.cp_size > 1:
        return "one table, of one rank"
    return (
        None if point.contents in ("random", "shared_blocks") else "every row has a request, and slots for its tokens"
    )


@variant("compute_slot_mappings", requires=f"sglang:{FILE}::{','.join(NAMES)}", skip=_skip, waives="no_alloc")
def sglang(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """SGLang's kernel for rows of any length, behind a fill, as it has no tail. Positions are those that follow a row's
    first one. (Its kernel for rows of one length takes that length from the host.)
    """
    code, rows, (table,) = _code(), num_real(point), group_tables(point, x.tables)
    starts, ends = (torch.empty(rows, dtype=torch.int64, device=x.positions.device) for _ in range(2))
    slots, block = out.slot_mappings[0], triton.next_power_of_2(rows)

    def bounds() -> None:
        first, past = x.query_start_loc[:rows].long(), x.query_start_loc[1 : rows + 1].long()
        starts.copy_(x.positions[first.clamp(max=len(x.positions) - 1)])
        ends.copy_(starts + (past - first) * x.enabled.long())

    def launch() -> None:
        code.assign_extend_cache_locs[(rows,)](x.idx_mapping, table, starts, ends, slots, table.shape[1], block)

    return EngineLaunch(own(bounds), lambda: slots.fill_(-1), launch if rows else None)
