"""decode_step: all tables of one decode step, from its persistent inputs into its persistent buffers.

What a step of an MLA model with a sparse indexer builds before its first layer, on one of two paths:

    decode_path: flatten    lens, decode_lens, block_table    decode_flatten: a row for each of T tokens
                            schedule                          paged_mqa_schedule over those T rows, one atom each
    decode_path: native     lens                              decode_native: (B, L) context lengths
                            decode_lens                       the rows per request, [B]
                            schedule                          paged_mqa_schedule over B requests of ceil(L / 2) atoms
    either                  tile_scheduler_metadata, num_splits     mla_tile_schedule over B requests

The paths share their buffers, because a server may alternate between them: lens is flat, and consumers get a view of
its start. Flattening clears its whole tail. The native path leaves the tail, the expanded block table and the rest of
decode_lens as they are, because its consumers read views of (B, L) and [B].

A schedule belongs to the mode of the kernel that reads it: one over flat tokens numbers tokens, one over requests
numbers atoms. Read in the other mode, it sends SMs to the wrong work, or into an endless loop (vLLM #55270).

Under decode context parallelism (``cp_size`` > 1) lens[t] and lens[b, j] are what of a token's length lies on this rank
(dcp_lengths), and the paged-MQA schedule is over them. The tiles are over the requests' local lengths and the heads of
all ranks (vLLM 0.33: v1/attention/backends/mla/indexer.py:build and flashmla.py:_build_decode).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from spec_decode_bench.baselines.compute_slot_mappings.operator import (
    CONTEXT_PARALLEL,
    INTERLEAVE_FITS,
    has_all_tokens,
)
from spec_decode_bench.baselines.dcp_lengths import operator as dcp_lengths
from spec_decode_bench.baselines.dcp_lengths.operator import held_of
from spec_decode_bench.baselines.decode_flatten import operator as decode_flatten
from spec_decode_bench.baselines.decode_flatten.operator import Inputs, num_tokens
from spec_decode_bench.baselines.decode_native import operator as decode_native
from spec_decode_bench.baselines.decode_step.cases import EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.mla_tile_schedule import operator as mla_tile_schedule
from spec_decode_bench.baselines.paged_mqa_schedule import operator as paged_mqa_schedule
from spec_decode_bench.baselines.paged_mqa_schedule.operator import MAX_UNITS, SEGMENT
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads.composition import Setup, part_point
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, field

DECODE_PATH = Axis(
    "decode_path",
    axes.choice("flatten", "native"),
    "flatten",
    "flatten: a row for every token; native: a row of L tokens for every request",
)


class Outputs(decode_flatten.Outputs):
    """The buffers of decode_flatten, two of which the native path uses too, and those of the schedules."""

    schedule: I32["num_sms + 1", 2]
    tile_scheduler_metadata: I32["num_sms", 8] = field(read="num_sm_parts")
    num_splits: I32["max_num_seqs + 1"] = field(read="batch_size + 1")

    def views(self, point: Point) -> dict[str, torch.Tensor]:
        """What the indexer and the attention kernel read; block_table on the flatten path only."""
        if point.decode_path == "flatten":
            return super().views(point)
        seen = super().views(Point({**point, "token_padding": 0}))  # which means nothing here
        del seen["block_table"]
        seen["lens"] = decode_native.Outputs(self.lens).views(point)["context_lens"]
        seen["decode_lens"] = self.decode_lens[: point.batch_size]
        return seen


def num_queries(point: Point) -> int:
    """Entries of lens that a consumer reads: T, or B * L."""
    return num_tokens(point) if point.decode_path == "flatten" else point.batch_size * point.max_decode_len


def schedule_point(point: Point, decode_path: str) -> Point:
    """The paged-MQA schedule of a path as a point of paged_mqa_schedule. Flat tokens have one length and atom each."""
    return paged_mqa_schedule.operator.complete({**point, "lens_layout": "1d" if decode_path == "flatten" else "2d"})


def _native_reference(point: Point, x: Inputs) -> dict[str, Expected]:
    """Lengths and rows per request. The rest of the two buffers, and the table, keep their contents."""
    size, capacity = point.batch_size, point.max_num_batched_tokens
    start = x.query_start_loc.tolist()
    rows = [start[b + 1] - start[b] for b in range(size)]
    decode_lens = torch.tensor(rows + [0] * (capacity - size), dtype=torch.int32)
    table = torch.zeros_like(Outputs.empty(point).block_table)
    native = decode_native.reference(
        decode_native.operator.complete(point), decode_native.Inputs(x.seq_lens, decode_lens[:size])
    )
    return {
        "lens": native["buffer"],
        "decode_lens": Expected(decode_lens, untouched=torch.arange(capacity) >= size),
        "block_table": Expected(table, untouched=torch.ones_like(table, dtype=torch.bool)),
    }


# Not a Composition: which part writes lens, how much of it, and what the schedule reads depend on the path.
def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """The references of the parts. The schedule is over the flat lengths, or over one length per request."""
    local = int32(list(map(held_of(point), x.seq_lens.tolist())))
    if point.decode_path == "flatten":
        expected = dict(decode_flatten.reference(point, x))
        queries = expected["lens"].value[: x.num_decode_tokens]
    else:
        expected, queries = _native_reference(point, x), local
    schedule = paged_mqa_schedule.reference(
        schedule_point(point, point.decode_path), paged_mqa_schedule.Inputs(queries)
    )
    tiles = mla_tile_schedule.reference(point, mla_tile_schedule.Inputs(local))
    return {**expected, **schedule, **tiles}


def bytes_moved(point: Point, x: Inputs) -> int:
    """Every input read once, even if several tables use it; every table written once."""
    size, fields = point.batch_size, mla_tile_schedule.FIELDS[point.layout]
    tables = 2 * (point.num_sms + 1) + fields * point.num_sm_parts + size + 1
    if point.decode_path == "native":
        return 4 * (2 * size + 1 + size * point.max_decode_len + size + tables)
    return decode_flatten.bytes_moved(point, x) + 4 * tables


def same_step_elsewhere(point: Point) -> str | None:
    """Why another point measures the same step."""
    if point.decode_path == "native" and (point.token_padding or point.host_lens == "stale"):
        return "the native path has no token padding and reads no host lengths"
    return has_all_tokens(point) or axes.same_batch_elsewhere(point)


# --- point, inputs and outputs for the variants of the single operators -----------------------------------------------
# Variants of decode_flatten take those of the step itself.


def native_part(point: Point, x: Inputs, out: Outputs) -> tuple[Point, decode_native.Inputs, decode_native.Outputs]:
    """The (B, L) lengths of the native path for decode_native. ``out.decode_lens`` must hold the rows per request."""
    inputs = decode_native.Inputs(x.seq_lens, out.decode_lens[: point.batch_size])
    return decode_native.operator.complete(point), inputs, decode_native.Outputs(out.lens)


def schedule_part(point: Point, out: Outputs) -> tuple[Point, paged_mqa_schedule.Inputs, paged_mqa_schedule.Outputs]:
    """The paged-MQA schedule over the lengths that the step has written before, for paged_mqa_schedule."""
    lens = paged_mqa_schedule.Inputs(out.views(point)["lens"])
    return schedule_point(point, point.decode_path), lens, paged_mqa_schedule.Outputs(out.schedule)


def on_rank(point: Point, x: Inputs, lengths: Setup) -> tuple[Inputs, list[Callable[[], None]]]:
    """The step with the requests' lengths on this rank, and the launches that make them: of ``lengths``, a variant of
    dcp_lengths, or none where there is one rank.
    """
    if point.cp_size == 1:
        return x, []
    local, at = torch.empty_like(x.seq_lens), part_point(dcp_lengths.operator, point, max_num_seqs=point.batch_size)
    launch = lengths(at, dcp_lengths.Inputs(x.seq_lens, point.batch_size), dcp_lengths.Outputs(local))
    return replace(x, seq_lens=local), [launch]


def tile_part(
    point: Point, x: Inputs, out: Outputs
) -> tuple[Point, mla_tile_schedule.Inputs, mla_tile_schedule.Outputs]:
    """The tile schedule for mla_tile_schedule. x: with lengths on this rank (on_rank)."""
    outputs = mla_tile_schedule.Outputs(out.tile_scheduler_metadata, out.num_splits)
    return mla_tile_schedule.operator.complete(point), mla_tile_schedule.Inputs(x.seq_lens), outputs


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


operator = Operator(
    name="decode_step",
    summary="all tables of a decode step: lengths, block table, paged-MQA schedule and tile schedule, "
    "flattened or native",
    axes=(
        *axes.DECODE_STEP,
        DECODE_PATH,
        *decode_flatten.FLATTENING,
        *CONTEXT_PARALLEL,
        mla_tile_schedule.NUM_HEADS_Q,
        mla_tile_schedule.NUM_SMS,
        mla_tile_schedule.NUM_SM_PARTS,
        mla_tile_schedule.LAYOUT,
        mla_tile_schedule.OVERHEAD,
        mla_tile_schedule.MAX_NUM_SEQS,
        paged_mqa_schedule.REMAINDER,
    ),
    make_inputs=decode_flatten.make_inputs,
    # lens on the native path; on the flatten path it has one dimension
    indices={"lens": ("b", "j")} | paged_mqa_schedule.LETTERS | mla_tile_schedule.LETTERS,
    inputs=Inputs,
    outputs=Outputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    rules=(
        *mla_tile_schedule.operator.rules,
        INTERLEAVE_FITS,
        Rule(
            "the step's tokens (batch_size {batch_size}, max_decode_len {max_decode_len}, token_padding "
            "{token_padding}) must not exceed max_num_batched_tokens ({max_num_batched_tokens})",
            lambda p: max(num_queries(p), p.batch_size) <= p.max_num_batched_tokens,
        ),
        Rule(
            "batch_size ({batch_size}) requests of max_model_len ({max_model_len}) tokens in rows of {max_decode_len} "
            f"must make fewer than {MAX_UNITS} segments of {SEGMENT} tokens",
            lambda p: num_queries(p) * cdiv(p.max_model_len, SEGMENT) < MAX_UNITS,
        ),
    ),
    redundant=same_step_elsewhere,
)
