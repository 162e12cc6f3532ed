"""draft_passes in Triton: one launch for all passes.

Nothing that a pass writes here depends on what the drafter computes: positions, lengths and keys of pass i are those of
the first one plus i, clamped, so slots and schedules of all passes are known as soon as the rejected tokens are. What
stays in the drafter's graph is one launch per pass, for its token and hidden row.

Programs specialise: the schedules of the indexer come first, one set per pass, over lengths that each program gathers
into scratch memory of its own; then rows of a pass in a group.

draft_passes.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from spec_decode_bench.baselines.draft_passes.operator import Inputs, Outputs, passes, with_indexer
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import num_real
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.kernels.compute_slot_mappings.triton import slots_of
from spec_decode_bench.kernels.dcp_lengths.triton import local_length, rank_constants
from spec_decode_bench.kernels.paged_mqa_schedule import triton as paged_mqa_schedule
from spec_decode_bench.kernels.paged_mqa_schedule.triton import Sizes as ScheduleSizes
from spec_decode_bench.kernels.paged_mqa_schedule.triton import schedule_rows

#: Rows of a program, and lengths that a program of a schedule gathers at once.
ENTRIES, GATHERED = 128, 256


class Sizes(NamedTuple):
    """advance: 1 if positions advance from pass to pass, else 0. num_schedulers: programs in front of a pass. schedule:
    of the indexer, over all rows.
    """

    num_reqs: int
    max_num_seqs: int
    max_model_len: int
    advance: int
    num_schedulers: int
    schedule: paged_mqa_schedule.Sizes


def sizes(point: Point, num_schedulers: int) -> Sizes:
    rows, advance = point.batch_size, int(point.advance == "yes")
    schedule = paged_mqa_schedule.sizes(point, rows, 1, rows)
    return Sizes(num_real(point), point.max_num_seqs, point.max_model_len, advance, num_schedulers, schedule)


@triton.jit
def kept_tokens(x, b, inside):
    """Tokens of a request without the rejected ones; 0 where not ``inside``."""
    return tl.load(x.seq_lens + b, mask=inside, other=0) - tl.load(x.num_rejected + b, mask=inside, other=0)


@triton.jit
def draft_passes_kernel(
    n,
    x,
    out,
    scratch,
    ENTRIES: tl.constexpr,
    GATHERED: tl.constexpr,
    SCHEDULE: tl.constexpr,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
):
    """scratch: [passes, num_schedulers, B] lengths. SCHEDULE: tile of the indexer's schedule; None: no indexer."""
    program, i, g = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    further = (i + 1) * n.advance  # tokens ahead of the last kept one
    if SCHEDULE is not None:  # noqa: SIM102  (known when it is compiled)
        if (program < n.num_schedulers) & (g == 0):
            rows = n.schedule.batch_size
            lengths = scratch + (i * n.num_schedulers + program) * rows
            for first in range(0, rows, GATHERED):
                b = first + tl.arange(0, GATHERED)
                length = tl.minimum(kept_tokens(x, b, b < n.num_reqs), n.max_model_len - further) + further
                tl.store(lengths + b, tl.where(b < n.num_reqs, length, 0), mask=b < rows)
            tl.debug_barrier()
            table = out.schedule + i * (n.schedule.num_sms + 1) * 2
            sms = n.schedule  # a row is one query, which the compiler knows of a constant
            sizes = ScheduleSizes(rows, sms.num_sms, sms.multiplier, sms.shift, 1, sms.is_back, rows)
            schedule_rows(program, lengths, lengths, 1, table, sizes, False, SCHEDULE)
    if program >= n.num_schedulers:
        row = (program - n.num_schedulers) * ENTRIES + tl.arange(0, ENTRIES)
        inside = row < n.num_reqs
        kept = kept_tokens(x, row, inside)
        length = tl.minimum(kept, n.max_model_len - further) + further
        position = length - 1
        s = tl.load(x.idx_mapping + row, mask=inside, other=-1)
        known = tl.where(tl.load(x.enabled + g) != 0, s, -1) >= 0
        width = tl.load(x.widths + g)
        table = x.tables + tl.load(x.table_starts + g) + s * width
        is_sharded = False
        if RANKS > 1:
            is_sharded = tl.load(x.sharded + g) != 0
        block_size = tl.load(x.block_sizes + g)
        slot = slots_of(position, known, table, width, block_size, is_sharded, RANKS, RANK, INTERLEAVE)
        in_range, begin = row < n.max_num_seqs, i * n.max_num_seqs
        of_group = (i * tl.num_programs(2) + g).to(tl.int64) * n.max_num_seqs
        tl.store(out.slot_mappings + of_group + row, slot, mask=in_range)
        if g == 0:
            tl.store(out.sample_src_positions + begin + row, kept.to(tl.int64) + i + 1, mask=inside)
            tl.store(out.positions + begin + row, position.to(tl.int64), mask=inside)
            tl.store(out.seq_lens + begin + row, tl.where(inside, length, 0), mask=in_range)
            if RANKS > 1:
                local = local_length(tl.where(inside, length, 0), RANKS, RANK, INTERLEAVE)
                tl.store(out.local_seq_lens + begin + row, local, mask=in_range)
            if i == 0:
                tl.store(out.query_start_loc + row, tl.minimum(row, n.num_reqs), mask=row <= n.max_num_seqs)


@variant("draft_passes")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for all passes."""
    rows, count = point.batch_size, passes(point)
    num_schedulers, schedule, scratch = 0, None, None
    if with_indexer(point):
        num_schedulers, schedule = paged_mqa_schedule.tiling(rows, point.num_sms)
        scratch = torch.empty(count * num_schedulers * rows, dtype=torch.int32, device=out.positions.device)
    grid = (num_schedulers + cdiv(point.max_num_seqs + 1, ENTRIES), count, point.num_groups)
    shapes = {"ENTRIES": ENTRIES, "GATHERED": GATHERED, "SCHEDULE": schedule, "num_warps": 4} | rank_constants(point)
    arguments = sizes(point, num_schedulers), bundle(x), bundle(out), scratch
    return fixed_launch(draft_passes_kernel, grid, *arguments, **shapes)
