"""Historic bugs of decode_step: parts that do not fit together, and outdated plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from spec_decode_bench.baselines.dcp_lengths import chains as dcp_lengths
from spec_decode_bench.baselines.dcp_lengths.chains import local_lengths
from spec_decode_bench.baselines.dcp_lengths.operator import ranks_of
from spec_decode_bench.baselines.decode_flatten.chains import needs_exact_host_lens
from spec_decode_bench.baselines.decode_step.chains import lengths_chain, op_chain, stale_on_the_flatten_path
from spec_decode_bench.baselines.decode_step.operator import (
    Inputs,
    Outputs,
    on_rank,
    schedule_part,
    schedule_point,
    tile_part,
)
from spec_decode_bench.baselines.mla_tile_schedule.chains import fresh_copy, fresh_tiles
from spec_decode_bench.baselines.paged_mqa_schedule import operator as paged_mqa_schedule
from spec_decode_bench.baselines.paged_mqa_schedule.chains import op_chain as schedule_chain
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


def _flatten_only(point: Point) -> str | None:
    return "flatten path only" if point.decode_path == "native" else needs_exact_host_lens(point)


def _native_only(point: Point) -> str | None:
    return "native path only" if point.decode_path == "flatten" else None


def _with_schedule_of(
    decode_path: str, point: Point, x: Inputs, out: Outputs, lens: torch.Tensor
) -> Callable[[], None]:
    """The step with the schedule that ``decode_path`` would build, over ``lens``."""
    inputs, outputs = paged_mqa_schedule.Inputs(lens), paged_mqa_schedule.Outputs(out.schedule)
    local, localize = on_rank(point, x, dcp_lengths.op_chain)
    return in_sequence(
        lengths_chain(point, x, out),
        *localize,
        schedule_chain(schedule_point(point, decode_path), inputs, outputs),
        fresh_copy(*tile_part(point, local, out)),
    )


@variant("decode_step", defect="lengths are flattened, the schedule is built for requests", skip=_flatten_only)
def schedule_of_requests(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The schedule's mode follows the configuration, the lengths' mode follows the step."""
    return _with_schedule_of("native", point, x, out, x.seq_lens)


@variant(
    "decode_step",
    defect="the schedule is built for flat tokens, the launch takes (B, L) rows (vLLM #55270)",
    skip=_native_only,
)
def schedule_of_tokens(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """A varlen schedule for a launch that is not varlen."""
    return _with_schedule_of("flatten", point, x, out, out.views(point)["lens"].view(-1))


@variant(
    "decode_step",
    defect="a captured graph gets fresh tile tensors (vLLM #32810, fixed in #35175)",
    skip=stale_on_the_flatten_path,
)
def fresh_tensors(point: Point, x: Inputs, out: Outputs) -> Callable[[], Mapping[str, torch.Tensor]]:
    """Lengths, table and schedule are persistent, but a captured graph keeps reading the first step's tiles."""
    local, localize = on_rank(point, x, dcp_lengths.op_chain)
    step = in_sequence(lengths_chain(point, x, out), schedule_chain(*schedule_part(point, out)), *localize)
    tile_point, tile_inputs, _ = tile_part(point, local, out)
    tiles = fresh_tiles(tile_point, tile_inputs)

    def launch():
        step()
        return {**out.views(point), **tiles()}

    return launch


@variant(
    "decode_step",
    defect="tiles are planned again only when the longest request changes (vLLM #39546)",
    skip=stale_on_the_flatten_path,
)
def skipped_planning(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The consumer keeps using tiles that were planned for earlier lengths."""
    local, localize = on_rank(point, x, dcp_lengths.op_chain)
    step = in_sequence(lengths_chain(point, x, out), schedule_chain(*schedule_part(point, out)), *localize)
    tile_point, tile_inputs, tile_outputs = tile_part(point, local, out)
    tiles, persistent = fresh_tiles(tile_point, tile_inputs), tile_outputs.views(tile_point)
    planned_for = torch.full_like(x.seq_lens[:1], -1)
    plan = {name: torch.zeros_like(view) for name, view in persistent.items()}

    def launch():
        step()
        longest = x.seq_lens.max()
        for name, fresh in tiles().items():
            plan[name].copy_(torch.where(longest == planned_for, plan[name], fresh))
            persistent[name].copy_(plan[name])
        planned_for.copy_(longest)

    return launch


@variant(
    "decode_step",
    defect="the local length of a request is expanded, as if it grew with every token (vLLM #46076)",
    skip=lambda p: stale_on_the_flatten_path(p) or ("one rank" if p.cp_size == 1 else None),
)
def local_length_expanded(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Lengths and the schedule over them are too short; the tiles, which are by request, are right."""
    local, ranks = x.seq_lens.clone(), ranks_of(point)
    expand = op_chain(Point({**point, "cp_size": 1}), replace(x, seq_lens=local), out)
    return in_sequence(lambda: local.copy_(local_lengths(x.seq_lens, ranks)), expand)
