"""decode_step as the operator chains of its parts, one after another."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.dcp_lengths import chains as dcp_lengths
from spec_decode_bench.baselines.decode_flatten import chains as decode_flatten
from spec_decode_bench.baselines.decode_native import chains as decode_native
from spec_decode_bench.baselines.decode_step.operator import (
    Inputs,
    Outputs,
    native_part,
    on_rank,
    schedule_part,
    tile_part,
)
from spec_decode_bench.baselines.mla_tile_schedule import chains as mla_tile_schedule
from spec_decode_bench.baselines.paged_mqa_schedule import chains as paged_mqa_schedule
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


def stale_on_the_flatten_path(point: Point) -> str | None:
    """Skip reason: only the chain of the flatten path reads lengths on the host."""
    return decode_flatten.needs_exact_host_lens(point) if point.decode_path == "flatten" else None


def lengths_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The chain of the operator of this path; on the native path also a copy of the rows per request."""
    if point.decode_path == "flatten":
        return decode_flatten.op_chain(point, x, out)
    native = native_part(point, x, out)
    decode_lens, chain = native[1].decode_lens, decode_native.chain_clamp(*native)

    def launch():
        torch.diff(x.query_start_loc, out=decode_lens)
        chain()

    return launch


# There is no compiled_chain: the tile schedule, most of the launches, gains nothing from torch.compile (see
# mla_tile_schedule).
@variant("decode_step", skip=stale_on_the_flatten_path, waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The operator chains of lengths and tables, paged-MQA schedule and tile schedule one after another, copies
    included.
    """
    local, localize = on_rank(point, x, dcp_lengths.op_chain)
    return in_sequence(
        lengths_chain(point, x, out),
        paged_mqa_schedule.op_chain(*schedule_part(point, out)),
        *localize,
        mla_tile_schedule.fresh_copy(*tile_part(point, local, out)),
    )
