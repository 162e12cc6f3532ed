"""compute_slot_mappings of vLLM 0.33: its kernel, and the method of BlockTables that launches it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from spec_decode_bench.baselines.compute_slot_mappings.operator import Inputs, Outputs, rank_of
from spec_decode_bench.baselines.workloads.request_slots import group_tables
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.upstream._vllm import ALIGNED, BLOCK_TABLE, LOAD_PTR, Definitions, addresses, load_ptr, needs

CODE = Definitions(
    BLOCK_TABLE,
    "_compute_slot_mappings_kernel",
    "BlockTables.compute_slot_mappings",
    given=lambda: load_ptr() | {"PAD_SLOT_ID": PAD},
)
NEEDS = needs(CODE, LOAD_PTR)
LIMITS = {"*, unaligned buffers": ALIGNED}
WRONG = {
    "positions past the tables": "reads past the row (vLLM #53982, #54296)",
    "CP = 2, interleave 128, kernel blocks of 64": "knows one block size: an interleave must divide it (vLLM #51031)",
}
#: Slot of a token without one, and tokens that a program maps at a time, as vLLM launches it.
PAD, BLOCK_SIZE = -1, 1024


def is_wrong(point: Point, x: Inputs) -> bool:
    return point.contents == "past_the_tables" or (point.cp_size > 1 and point.block_size % point.cp_interleave != 0)


@variant("compute_slot_mappings", requires=NEEDS, known_failures=LIMITS | WRONG, fails_on=is_wrong)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernel."""
    kernel, grid = CODE()._compute_slot_mappings_kernel, (point.num_groups, len(x.idx_mapping) + 1)
    tables, slots, rank = addresses(group_tables(point, x.tables)), out.slot_mappings, rank_of(point)

    def launch() -> None:
        kernel[grid](
            slots.shape[1],
            x.idx_mapping,
            x.query_start_loc,
            x.positions,
            tables,
            x.widths,
            x.block_sizes,
            x.enabled,
            x.sharded,
            slots,
            slots.stride(0),
            rank,
            CP_SIZE=point.cp_size,
            CP_INTERLEAVE=point.cp_interleave,
            PAD_ID=PAD,
            TRITON_BLOCK_SIZE=BLOCK_SIZE,
        )

    return launch


@variant("compute_slot_mappings", requires=NEEDS, known_failures=LIMITS | WRONG, fails_on=is_wrong)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's BlockTables.compute_slot_mappings, as the model runner calls it."""
    compute, tokens = CODE().compute_slot_mappings, point.max_num_batched_tokens
    tables = SimpleNamespace(
        num_kv_cache_groups=point.num_groups,
        slot_mappings=out.slot_mappings,
        block_table_ptrs=addresses(group_tables(point, x.tables)),
        block_table_strides=x.widths,
        block_sizes_tensor=x.block_sizes,
        slot_mapping_enabled=x.enabled,
        dcp_sharded=x.sharded,
        cp_rank=rank_of(point),
        cp_size=point.cp_size,
        cp_interleave=point.cp_interleave,
    )

    def launch() -> None:
        compute(tables, x.idx_mapping, x.query_start_loc, x.positions, tokens)

    return launch
