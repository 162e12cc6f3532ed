"""chain_step of SGLang 0.5.23: the kernels of its EAGLE worker and of the drafter's attention, and the functions around
them, read from its files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any, Optional

import torch
import triton

from spec_decode_bench.baselines.chain_step.operator import Inputs, Outputs, passes, with_kv_indices
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.harness.packages import file_in
from spec_decode_bench.upstream._kernel_source import definitions

LOCS, EAGLE = "kernels/ops/speculative/cache_locs.py", "kernels/ops/speculative/eagle.py"
BLOCKS = "kernels/ops/attention/kv_indices.py"
NAMES = {
    LOCS: (
        "assign_draft_cache_locs_contiguous",
        "assign_draft_cache_locs_contiguous_func",
        "_translate_token_ids",
        "_load_token_ids",
        "generate_draft_decode_kv_indices",
    ),
    EAGLE: (
        "_build_chain_tree_kernel",
        "build_chain_tree",
        "_prepare_draft_extend_lengths_kernel",
        "prepare_draft_extend_layout",
    ),
    BLOCKS: (
        "_MIN_TOKENS_PER_BLOCK",
        "_TARGET_PROGRAMS",
        "SPEC_KV_INDEX_BLOCKS_MIN_CONTEXT",
        "kv_indices_num_token_blocks",
        "spec_kv_index_token_blocks",
    ),
}
NEEDS = tuple(f"sglang:{file}::{','.join(names)}" for file, names in NAMES.items())
#: Entries of a program of eagle.py.
ENTRIES = 128


@cache
def _code() -> SimpleNamespace:
    given = {"_is_cpu": False, "Optional": Optional, "next_power_of_2": triton.next_power_of_2}
    found: dict[str, Any] = {}
    for file, names in NAMES.items():
        found |= vars(definitions(file_in("sglang", file), names, **given))
    return SimpleNamespace(**found)


def _packed_slots(point: Point, x: Inputs, out: Outputs, positions: torch.Tensor) -> Callable[[], None] | None:
    """As a drafter's attention launches it, for the passes that it runs: rows of long tables are split."""
    if not with_kv_indices(point):
        return None
    code, rows, count = _code(), point.batch_size, passes(point)
    columns, total = x.req_to_token.shape[1], int(x.seq_lens.sum())
    blocks = code.spec_kv_index_token_blocks(columns, total, rows, base_programs=count * rows)
    power = triton.next_power_of_2
    sizes = (columns, out.kv_indices.shape[1], out.kv_indptr.shape[1], power(rows), power(count), power(rows), 1)
    tensors = x.req_pool_indices, x.req_to_token, x.seq_lens, out.kv_indices, out.kv_indptr, positions
    kernel, grid, steps = code.generate_draft_decode_kv_indices, (count * blocks, rows, 1), count if blocks > 1 else 0
    return lambda: kernel[grid](*tensors, *sizes, NUM_STEPS=steps)


def _first_starts(out: Outputs) -> Callable[[], None] | None:
    """Zeros that SGLang writes when the server starts."""
    return None if out.kv_indptr is None else own(lambda: out.kv_indptr[:, 0].zero_())


def _tokens(point: Point, x: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Last verified tokens and drafts, which the third launch copies as well."""
    device, shape = x.seq_lens.device, (point.batch_size, point.next_n - 1)
    verified = torch.zeros(point.batch_size, dtype=torch.int32, device=device)
    return verified, torch.zeros(shape, dtype=torch.int64, device=device)


@variant("chain_step", requires=NEEDS)
def sglang(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """SGLang's four kernels one after another; the third also copies the tokens of the chain."""
    code, rows, width = _code(), point.batch_size, point.next_n
    columns, device = x.req_to_token.shape[1], x.seq_lens.device
    verified, drafted = _tokens(point, x)
    tokens, extended = (torch.empty(rows * width, dtype=torch.int64, device=device) for _ in range(2))
    strides = verified.stride(0), *drafted.stride(), x.seq_lens.stride(0)
    table = x.req_pool_indices.stride(0), *x.req_to_token.stride()
    draft_slots = code.assign_draft_cache_locs_contiguous
    tree, extension = code._build_chain_tree_kernel, code._prepare_draft_extend_lengths_kernel
    lengths = out.prefix_lens, out.extend_lens, out.post_lens

    def before_the_drafter() -> None:
        draft_slots[(rows,)](
            x.req_pool_indices, x.req_to_token, x.seq_lens, out.draft_slots, columns, 1, width - 1,
            positions=out.draft_positions, BS=rows, WRITE_POSITIONS=True,
        )  # fmt: skip

    def behind_it() -> None:
        tree[(cdiv(rows * width * width, ENTRIES),)](
            verified, drafted, x.seq_lens, out.tree_mask, out.positions, out.tree, tokens, rows, width, *strides,
            ENTRIES, x.req_pool_indices, x.req_to_token, out.slots, None, *table, True, False,
        )  # fmt: skip
        extension[(cdiv(rows * width, ENTRIES),)](
            x.seq_lens, *lengths, rows, x.seq_lens.stride(0), width, 0, ENTRIES, extended, out.start_locs, None, True,
        )  # fmt: skip

    packed = _packed_slots(point, x, out, out.draft_positions)
    return EngineLaunch(_first_starts(out), before_the_drafter, packed, behind_it)


@variant("chain_step", requires=NEEDS, waives="no_alloc")
def sglang_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """SGLang's functions, which allocate, and its launch of packed slots; the copies are not timed."""
    code, rows, width, made = _code(), point.batch_size, point.next_n, SimpleNamespace()
    verified, drafted = _tokens(point, x)
    positions = torch.empty_like(x.seq_lens)

    def before_the_drafter() -> None:
        made.draft_slots = torch.empty(rows * (width - 1), dtype=torch.int64, device=x.seq_lens.device)
        code.assign_draft_cache_locs_contiguous_func(
            x.req_pool_indices, x.req_to_token, x.seq_lens, made.draft_slots, 1, width - 1, positions=positions
        )

    def behind_it() -> None:
        table = {"req_pool_indices": x.req_pool_indices, "req_to_token": x.req_to_token}
        made.tree = code.build_chain_tree(verified, drafted, x.seq_lens, **table)
        made.extension = code.prepare_draft_extend_layout(x.seq_lens, width, False)

    def hand_on() -> None:
        mask, at, *tree, _, slots, _ = made.tree
        prefix, extend, post, (_, starts, _) = made.extension
        out.tree[: 3 * rows * width].view(3, -1).copy_(torch.stack([one.reshape(-1) for one in tree]))
        for target, value in (
            (out.draft_slots, made.draft_slots),
            (out.draft_positions, positions),
            (out.positions, at),
            (out.slots, slots),
            (out.tree_mask, mask),
            (out.prefix_lens, prefix),
            (out.extend_lens, extend),
            (out.start_locs, starts),
            (out.post_lens, post),
        ):
            target[:rows].copy_(value.view(target[:rows].shape))

    packed = _packed_slots(point, x, out, positions)
    return EngineLaunch(_first_starts(out), before_the_drafter, packed, behind_it, own(hand_on))
