"""decode_step: all tables of one decode step, from its persistent inputs into its persistent buffers.

What a step of an MLA model with a sparse indexer builds before its first layer, on one of two paths:

    decode_path: flatten    lens, decode_lens, block_table    a row for each of T tokens, as decode_flatten
                            schedule                          paged-MQA schedule over those T rows, one atom each
    decode_path: native     lens, decode_lens                 (B, L) context lengths, as decode_native, and the rows per request
                            schedule                          paged-MQA schedule over B requests of ceil(L / 2) atoms
    either                  tile_scheduler_metadata, num_splits     FlashMLA's schedule over B requests, as mla_tile_schedule

The paths share their buffers, as a server may take one and the other in turn (vLLM decides per step whether L is a
native next_n): lens is flat, and a view of its start is handed on. Flattening clears its whole tail; the native path
leaves it, the expanded block table and the rest of decode_lens as they are, because its consumers read views of (B, L)
and [B].

A schedule belongs to the mode of the kernel that reads it. One over flat tokens numbers tokens, one over requests numbers
atoms: read in the other mode, a table is of the right shape and sends SMs to the wrong work, or on without end (vLLM #55270).

All that the schedules need follows from seq_lens and query_start_loc, so nothing has to wait for the flattened lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baselines.decode_flatten._batches import (
    Inputs,
    bytes_flattened,
    flattened,
    make_inputs,
    make_token_buffers,
    num_tokens,
)
from baselines.decode_flatten._chains import flatten_chain, needs_exact_host_lens
from baselines.decode_native._forms import context_lens, native_chain
from baselines.decode_step._points import DECODE_PATH, HARD_POINTS, RULES, SEQUENCES, atoms_of, same_step_elsewhere
from baselines.mla_tile_schedule._forms import copied, fresh_tiles, tile_views
from baselines.mla_tile_schedule._loop import scheduled
from baselines.mla_tile_schedule._points import LAYOUT, MAX_NUM_SEQS, NUM_HEADS_Q, NUM_SM_PARTS, NUM_SMS, OVERHEAD
from baselines.paged_mqa_schedule._forms import REMAINDER, schedule_chain, schedule_rows
from baselines.workloads import axes
from baselines.workloads.integers import cdiv
from harness.contract import Expected, Operator, Point, variant


@dataclass(frozen=True)
class Outputs:
    lens: Tensor  # [capacity] int32
    decode_lens: Tensor  # [capacity] int32
    block_table: Tensor  # [rows, ceil(max_model_len / block_size)] int32, rows >= T; of the flatten path
    schedule: Tensor  # [num_sms + 1, 2] int32
    tile_scheduler_metadata: Tensor  # [num_sms, 8] int32
    num_splits: Tensor  # [max_num_seqs + 1] int32


def make_outputs(point: Point) -> Outputs:
    return Outputs(
        *make_token_buffers(point),
        schedule=torch.empty(point.num_sms + 1, 2, dtype=torch.int32),
        tile_scheduler_metadata=torch.empty(point.num_sms, 8, dtype=torch.int32),
        num_splits=torch.empty(point.max_num_seqs + 1, dtype=torch.int32),
    )


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    """What the indexer and the attention kernel are handed; block_table on the flatten path alone."""
    return _length_views(point, out) | {"schedule": out.schedule} | tile_views(point, out)


def _length_views(point: Point, out: Outputs) -> dict[str, Tensor]:
    if point.decode_path == "native":
        size, width = point.batch_size, point.max_decode_len
        return {"lens": out.lens[: size * width].view(size, width), "decode_lens": out.decode_lens[:size]}
    tokens = num_tokens(point)
    return {"lens": out.lens[:tokens], "decode_lens": out.decode_lens[:tokens], "block_table": out.block_table[:tokens]}


def _native(point: Point, x: Inputs) -> dict[str, Expected]:
    """Lengths and rows per request; the rest of those two buffers and the table keep what they held."""
    capacity, start = point.max_num_batched_tokens, x.query_start_loc.tolist()
    decode_lens = [start[b + 1] - start[b] for b in range(point.batch_size)]
    written = {"lens": context_lens(x.seq_lens.tolist(), decode_lens, point.max_decode_len), "decode_lens": decode_lens}
    expected = {
        name: Expected(
            torch.tensor(v + [0] * (capacity - len(v)), dtype=torch.int32), untouched=torch.arange(capacity) >= len(v)
        )
        for name, v in written.items()
    }
    table = torch.zeros_like(make_token_buffers(point)[2])
    return expected | {"block_table": Expected(table, untouched=torch.ones_like(table, dtype=torch.bool))}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    if point.decode_path == "native":
        expected, queries = _native(point, x), x.seq_lens.tolist()
    else:
        expected = dict(flattened(point, x))
        queries = expected["lens"].value[: x.num_decode_tokens].tolist()
    rows = schedule_rows(queries, point.num_sms, atoms_of(point), point.remainder == "back")
    return expected | {"schedule": Expected(torch.tensor(rows, dtype=torch.int32))} | scheduled(point, x.seq_lens)


def bytes_moved(point: Point, x: Inputs) -> int:
    """Inputs once, whatever is built from them; every table once."""
    size, fields = point.batch_size, 7 if point.layout == "new" else 5
    tables = 2 * (point.num_sms + 1) + fields * point.num_sm_parts + size + 1
    if point.decode_path == "native":
        return 4 * (2 * size + 1 + size * point.max_decode_len + size + tables)
    return bytes_flattened(point, x) + 4 * tables


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


def _stale_on_the_flatten_path(point: Point) -> str | None:
    return needs_exact_host_lens(point) if point.decode_path == "flatten" else None


def _lengths(point: Point, x: Inputs, out: Outputs):
    """The chain of the path's own operator; on the native path also the rows per request."""
    if point.decode_path == "flatten":
        return flatten_chain(x, out)
    target = _length_views(point, out)
    chain = native_chain(x.seq_lens, target["lens"], point.next_n)

    def launch():
        torch.diff(x.query_start_loc, out=target["decode_lens"])
        chain()

    return launch


def _queries(point: Point, out: Outputs) -> Tensor:
    """One length per row of the paged-MQA kernel's batch: of each flat token, or the last column of each request."""
    lens = _length_views(point, out)["lens"]
    return lens if point.decode_path == "flatten" else lens[:, -1]


def _step(point: Point, x: Inputs, out: Outputs, queries: Tensor, atoms: int):
    """Chains in sequence; ``queries`` and ``atoms`` are what the paged-MQA schedule is built for."""
    lengths = _lengths(point, x, out)
    schedule = schedule_chain(queries, out.schedule, point.num_sms, atoms, point.remainder == "back")
    tiles = copied(tile_views(point, out), fresh_tiles(point, x.seq_lens))

    def launch():
        lengths()
        schedule()
        tiles()

    return launch


# There is no compiled_chain: the tile schedule, most of the launches, gains nothing from torch.compile (see
# mla_tile_schedule).
@variant("decode_step", skip=_stale_on_the_flatten_path, waives="no_alloc")
def op_chain(point, x, out):
    """The operator chains of lengths and tables, paged-MQA schedule and tile schedule one after another, copies
    included.
    """
    return _step(point, x, out, _queries(point, out), atoms_of(point))


# --- historic defects -------------------------------------------------------------------------------------------------


def _flatten_only(point: Point) -> str | None:
    return "the flatten path alone" if point.decode_path == "native" else needs_exact_host_lens(point)


def _native_only(point: Point) -> str | None:
    return "the native path alone" if point.decode_path == "flatten" else None


@variant(
    "decode_step",
    defect="lengths are flattened, the schedule is built for requests",
    skip=_flatten_only,
    waives="no_alloc",
)
def schedule_of_requests(point, x, out):
    """The schedule's mode follows the configuration, that of the lengths the step."""
    return _step(point, x, out, x.seq_lens, cdiv(point.max_decode_len, 2))


@variant(
    "decode_step",
    defect="the schedule is built for flat tokens, the launch takes (B, L) rows (vLLM #55270)",
    skip=_native_only,
    waives="no_alloc",
)
def schedule_of_tokens(point, x, out):
    """A varlen schedule, a launch that is not."""
    return _step(point, x, out, _length_views(point, out)["lens"].view(-1), 1)


@variant(
    "decode_step",
    defect="fresh tile tensors are handed to a captured graph (vLLM #32810, mended in #35175)",
    skip=_stale_on_the_flatten_path,
    waives="no_alloc",
)
def fresh_tensors(point, x, out):
    """Lengths, table and schedule persist. A graph that was captured reads the first step's tiles."""
    lengths, tiles = _lengths(point, x, out), fresh_tiles(point, x.seq_lens)
    schedule = schedule_chain(
        _queries(point, out), out.schedule, point.num_sms, atoms_of(point), point.remainder == "back"
    )

    def launch():
        lengths()
        schedule()
        return {**views(point, out), **tiles()}

    return launch


@variant(
    "decode_step",
    defect="tiles are not planned anew while the longest request stays as it is (vLLM #39546)",
    skip=_stale_on_the_flatten_path,
    waives="no_alloc",
)
def skipped_planning(point, x, out):
    """The plan's consumer runs on with tiles of lengths that are gone."""
    lengths, compute, persistent = _lengths(point, x, out), fresh_tiles(point, x.seq_lens), tile_views(point, out)
    schedule = schedule_chain(
        _queries(point, out), out.schedule, point.num_sms, atoms_of(point), point.remainder == "back"
    )
    planned_for, plan = (
        torch.full_like(x.seq_lens[:1], -1),
        {name: torch.zeros_like(view) for name, view in persistent.items()},
    )

    def launch():
        lengths()
        schedule()
        longest = x.seq_lens.max()
        for name, tiles in compute().items():
            plan[name].copy_(torch.where(longest == planned_for, plan[name], tiles))
            persistent[name].copy_(plan[name])
        planned_for.copy_(longest)

    return launch


operator = Operator(
    name="decode_step",
    summary="all tables of a decode step: lengths, block table, paged-MQA schedule and tile schedule, flattened or native",
    axes=(
        *axes.DECODE_STEP,
        DECODE_PATH,
        axes.TOKEN_PADDING,
        axes.HOST_LENS,
        axes.BLOCK_SIZE,
        axes.TABLE_COLUMNS,
        axes.TABLE_PADDING,
        axes.MAX_NUM_BATCHED_TOKENS,
        NUM_HEADS_Q,
        NUM_SMS,
        NUM_SM_PARTS,
        LAYOUT,
        OVERHEAD,
        MAX_NUM_SEQS,
        REMAINDER,
    ),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="op_chain",
    hard_points=HARD_POINTS,
    sequences=SEQUENCES,
    rules=RULES,
    redundant=same_step_elsewhere,
)
