"""draft_passes in Triton: one launch for all passes.

Nothing that a pass writes here depends on what the drafter computes: positions, lengths and keys of pass i are those of
the first one plus i, clamped, so slots and schedules of all passes are known as soon as the rejected tokens are. What
stays in the drafter's graph is one launch per pass, for its token and hidden row.

Programs specialise: the schedules of the indexer come first, one set per pass, over lengths that each program gathers
into scratch memory of its own; then rows of a pass in a group.

draft_passes.cu has the versions with their times.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from baselines.draft_passes.operator import Inputs, Outputs, passes, with_indexer
from baselines.workloads.integers import cdiv, reciprocal
from baselines.workloads.request_slots import num_real
from harness.contract import Point, variant
from harness.launch import fixed_launch
from kernels.compute_slot_mappings.triton import slots_of
from kernels.paged_mqa_schedule import triton as paged_mqa_schedule
from kernels.paged_mqa_schedule.triton import schedule_rows

#: Rows of a program, and lengths that a program of a schedule gathers at once.
ENTRIES, GATHERED = 128, 256


@triton.jit
def kept_tokens(seq_lens, num_rejected, b, inside):
    """Tokens of a request without the rejected ones; 0 where not ``inside``."""
    return tl.load(seq_lens + b, mask=inside, other=0) - tl.load(num_rejected + b, mask=inside, other=0)


@triton.jit(
    do_not_specialize=[
        *("rows", "real", "capacity", "most", "advance", "schedulers"),
        *("num_sms", "multiplier", "shift", "back"),
    ]
)
def _passes(
    idx,
    seq_lens,
    num_rejected,
    tables,
    table_starts,
    widths,
    block_sizes,
    enabled,
    pos,
    lens,
    src,
    slots,
    starts,
    schedule,
    lengths,
    rows,
    real,
    capacity,
    most,
    advance,
    schedulers,
    num_sms,
    multiplier,
    shift,
    back,
    INDEXER: tl.constexpr,
    ENTRIES: tl.constexpr,
    GATHERED: tl.constexpr,
    ROWS: tl.constexpr = None,
    SLOTS: tl.constexpr = None,
):
    program, i, g = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    further = (i + 1) * advance  # tokens ahead of the last kept one
    if INDEXER:  # noqa: SIM102  (known when it is compiled)
        if (program < schedulers) & (g == 0):
            own = lengths + (i * schedulers + program) * rows
            for first in range(0, rows, GATHERED):
                b = first + tl.arange(0, GATHERED)
                length = tl.minimum(kept_tokens(seq_lens, num_rejected, b, b < real), most - further) + further
                tl.store(own + b, tl.where(b < real, length, 0), mask=b < rows)
            tl.debug_barrier()
            schedule_rows(
                program,
                own,
                own,
                schedule + i * (num_sms + 1) * 2,
                rows,
                1,
                num_sms,
                multiplier,
                shift,
                1,
                rows,
                back,
                TOKENS=False,
                ROWS=ROWS,
                SLOTS=SLOTS,
            )
    if program >= schedulers:
        row = (program - schedulers) * ENTRIES + tl.arange(0, ENTRIES)
        inside = row < real
        kept = kept_tokens(seq_lens, num_rejected, row, inside)
        length = tl.minimum(kept, most - further) + further
        position = length - 1
        s = tl.load(idx + row, mask=inside, other=-1)
        known = tl.where(tl.load(enabled + g) != 0, s, -1) >= 0
        table = tables + tl.load(table_starts + g) + s * tl.load(widths + g)
        slot = slots_of(position, known, table, tl.load(block_sizes + g), False, 1, 0, 1)
        tl.store(slots + (i * tl.num_programs(2) + g).to(tl.int64) * capacity + row, slot, mask=row < capacity)
        if g == 0:
            tl.store(src + i * capacity + row, kept.to(tl.int64) + i + 1, mask=inside)
            tl.store(pos + i * capacity + row, position.to(tl.int64), mask=inside)
            tl.store(lens + i * capacity + row, tl.where(inside, length, 0), mask=row < capacity)
            if i == 0:
                tl.store(starts + row, tl.minimum(row, real), mask=row <= capacity)


@variant("draft_passes")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for all passes."""
    rows, capacity, count = point.batch_size, point.max_num_seqs, passes(point)
    schedulers, sizes, lengths = 0, {}, None
    if with_indexer(point):
        schedulers, sizes = paged_mqa_schedule.tiling(rows, point.num_sms)
        lengths = torch.empty(count * schedulers * rows, dtype=torch.int32, device=out.pos.device)
    blocks = cdiv(capacity + 1, ENTRIES)

    return fixed_launch(
        _passes,
        (schedulers + blocks, count, point.num_groups),
        x.idx,
        x.seq_lens,
        x.num_rejected,
        x.tables,
        x.table_starts,
        x.widths,
        x.block_sizes,
        x.enabled.view(torch.uint8),
        out.pos,
        out.lens,
        out.src,
        out.slots,
        out.starts,
        out.schedule,
        lengths,
        rows,
        num_real(point),
        capacity,
        point.max_model_len,
        int(point.advance == "yes"),
        schedulers,
        point.num_sms,
        *reciprocal(point.num_sms),
        int(point.remainder == "back"),
        INDEXER=with_indexer(point),
        ENTRIES=ENTRIES,
        GATHERED=GATHERED,
        **sizes,
        num_warps=4,
    )
