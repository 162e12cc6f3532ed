"""Historic bugs of seq_lens_update, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.seq_lens_update.chains import (
    correct_counts,
    op_chain,
    set_up,
    update_by_slot,
    write_lengths,
)
from spec_decode_bench.baselines.seq_lens_update.operator import Inputs, Outputs, by_slot
from spec_decode_bench.baselines.workloads.broken import keeping
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


@variant(
    "seq_lens_update",
    defect="the counts are permuted in place (a race like vLLM #50432)",
    skip=lambda p: "a slot is read and written by one request alone" if by_slot(p) else None,
)
def permuted_in_place(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The race made deterministic: rows are written in order, so a row whose source is above it reads a new count."""

    def row_by_row(x: Inputs, out: Outputs, uploaded: list[torch.Tensor], arange: torch.Tensor) -> None:
        prev_pos, num_computed_tokens_cpu, prev_drafts = uploaded
        counts, rows = x.prev_num_computed_tokens.clone(), len(x.num_scheduled)
        for b in range(rows):
            row = slice(b, b + 1)
            correct_counts(
                prev_pos[row],
                num_computed_tokens_cpu[row],
                prev_drafts,
                counts,
                x.valid,
                counts[row],
                out.num_accepted[row],
            )
        out.num_computed_tokens[:rows].copy_(counts[:rows])
        write_lengths(x, out, arange)

    return set_up(point, x, out, row_by_row)


@variant("seq_lens_update", defect="the host's bound is used as the exact length (vLLM #40772)")
def bound_as_exact(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    lens, bound = (lengths[: len(x.num_scheduled)] for lengths in (out.seq_lens, out.seq_lens_cpu_upper_bound))
    return in_sequence(op_chain(point, x, out), lambda: lens.copy_(bound, non_blocking=True))


@variant("seq_lens_update", defect="rows past the batch keep the lengths of a larger step (xllm #1939)")
def stale_tail(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.seq_lens[len(x.num_scheduled) :])


@variant(
    "seq_lens_update",
    defect="the row of the batch is used where the request's slot is needed",
    skip=lambda p: None if by_slot(p) else "counts are kept by row",
)
def row_for_slot(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def by_row(x: Inputs, out: Outputs, uploaded: list[torch.Tensor], arange: torch.Tensor) -> None:
        rows = torch.arange(len(x.num_scheduled), dtype=torch.int32, device=arange.device)
        update_by_slot(x, out, [rows, *uploaded[1:]], arange)

    return set_up(point, x, out, by_row)


@variant(
    "seq_lens_update",
    defect="a new request continues with the counts that its slot's former owner left (like vLLM #43955)",
    skip=lambda p: None if by_slot(p) else "counts are kept by row",
)
def former_owner(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def corrected_always(x: Inputs, out: Outputs, uploaded: list[torch.Tensor], arange: torch.Tensor) -> None:
        update_by_slot(x, out, [*uploaded[:2], uploaded[2].clamp(min=1)], arange)

    return set_up(point, x, out, corrected_always)
