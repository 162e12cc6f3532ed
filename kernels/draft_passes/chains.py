"""draft_passes as an engine launches it: per pass an update of its inputs, then slots, then the indexer's schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import triton
import triton.language as tl

from spec_decode_bench.baselines.draft_passes.operator import (
    Inputs,
    Outputs,
    passes,
    schedule_part,
    slots_part,
    with_indexer,
)
from spec_decode_bench.baselines.workloads.request_slots import num_real
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.kernels.compute_slot_mappings import chains as slots_unfused
from spec_decode_bench.kernels.draft_inputs.triton import advanced
from spec_decode_bench.kernels.paged_mqa_schedule import triton as schedule_triton

CHUNK = 1024


@triton.jit(do_not_specialize=["num_reqs", "max_num_seqs", "max_model_len"])
def draft_passes_second_kernel(
    seq_lens,
    num_rejected,
    positions,
    lens,
    sample_src_positions,
    starts,
    num_reqs,
    max_num_seqs,
    max_model_len,
    ADVANCE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    b = tl.program_id(0)
    if b == num_reqs:
        for first in range(num_reqs, max_num_seqs + 1, CHUNK):
            i = first + tl.arange(0, CHUNK)
            tl.store(lens + i, tl.zeros((CHUNK,), tl.int32), mask=i < max_num_seqs)
            tl.store(starts + i, tl.zeros((CHUNK,), tl.int32) + num_reqs, mask=i <= max_num_seqs)
    else:
        length = tl.load(seq_lens + b) - tl.load(num_rejected + b)
        tl.store(sample_src_positions + b, length.to(tl.int64) + 1)
        tl.store(positions + b, advanced(length - 1, max_model_len - 1, ADVANCE).to(tl.int64))
        tl.store(lens + b, advanced(length, max_model_len, ADVANCE))
        tl.store(starts + b, b)


@triton.jit(do_not_specialize=["num_reqs", "max_num_seqs", "max_model_len"])
def draft_passes_next_kernel(
    positions_before,
    seq_lens_before,
    sample_src_positions_before,
    positions,
    lens,
    sample_src_positions,
    num_reqs,
    max_num_seqs,
    max_model_len,
    ADVANCE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    b = tl.program_id(0)
    if b == num_reqs:
        for first in range(num_reqs, max_num_seqs, CHUNK):
            i = first + tl.arange(0, CHUNK)
            tl.store(lens + i, tl.zeros((CHUNK,), tl.int32), mask=i < max_num_seqs)
    else:
        tl.store(sample_src_positions + b, tl.load(sample_src_positions_before + b) + 1)
        tl.store(positions + b, advanced(tl.load(positions_before + b), max_model_len - 1, ADVANCE))
        tl.store(lens + b, advanced(tl.load(seq_lens_before + b), max_model_len, ADVANCE))


@variant("draft_passes")
def unfused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The engine's way: two launches per pass, four with an indexer, whose schedule is copied. The token and the hidden
    row, which the update also hands on there, are left out.
    """
    real, capacity, most = num_real(point), point.max_num_seqs, point.max_model_len
    advance, grid = point.advance == "yes", (real + 1,)
    fresh = None if out.schedule is None else torch.empty_like(out.schedule)
    parts = []
    for i in range(1, passes(point) + 1):
        made = [slots_unfused.unfused(*slots_part(point, x, out, i))]
        if with_indexer(point):
            made.append(schedule_triton.triton_fused(*schedule_part(point, x, replace(out, schedule=fresh), i)))
        parts.append(made)

    def launch() -> None:
        for i, made in enumerate(parts):
            if i == 0:
                draft_passes_second_kernel[grid](
                    x.seq_lens,
                    x.num_rejected,
                    out.positions[0],
                    out.seq_lens[0],
                    out.sample_src_positions[0],
                    out.query_start_loc,
                    real,
                    capacity,
                    most,
                    ADVANCE=advance,
                    CHUNK=CHUNK,
                )
            else:
                draft_passes_next_kernel[grid](
                    out.positions[i - 1],
                    out.seq_lens[i - 1],
                    out.sample_src_positions[i - 1],
                    out.positions[i],
                    out.seq_lens[i],
                    out.sample_src_positions[i],
                    real,
                    capacity,
                    most,
                    ADVANCE=advance,
                    CHUNK=CHUNK,
                )
            for part in made:
                part()
            if fresh is not None:
                out.schedule[i].copy_(fresh[i])

    return launch
