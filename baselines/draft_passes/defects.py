"""Historic bugs of draft_passes, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from baselines.draft_passes.chains import op_chain, set_up
from baselines.draft_passes.operator import Inputs, Outputs, with_indexer
from baselines.workloads.request_slots import num_real
from harness.contract import Point, variant


@variant("draft_passes", defect="positions past the model's range are not gated (vLLM #57941)")
def positions_not_gated(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The slots are those of the gated positions, so that nothing is read behind a table."""
    chain, real = op_chain(point, x, out), num_real(point)
    ahead = torch.arange(len(out.positions), device=out.positions.device)[:, None] * int(point.advance == "yes")

    def launch() -> None:
        chain()
        out.positions[:, :real].copy_((x.seq_lens - x.num_rejected)[None, :real] + ahead)

    return launch


@variant("draft_passes", defect="the noise of draft sampling repeats from pass to pass (vLLM #54282)")
def sampling_key_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain, real = op_chain(point, x, out), num_real(point)

    def launch() -> None:
        chain()
        out.sample_src_positions[1:, :real].copy_(
            out.sample_src_positions[:1, :real].expand(len(out.sample_src_positions) - 1, -1)
        )

    return launch


@variant("draft_passes", defect="passes run over the rejected tokens, too (like vLLM #30029)")
def rejected_tokens_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Slots stay inside the tables: rejected tokens have blocks, and those drafted behind them may reuse theirs."""
    half = torch.empty_like(x.num_rejected)
    chain = op_chain(point, replace(x, num_rejected=half), out)

    def launch() -> None:
        torch.sub(x.num_rejected, 1, out=half)
        half.clamp_(min=0)
        chain()

    return launch


@variant(
    "draft_passes",
    defect="every pass keeps the slots of the first one (metadata not rebuilt between passes, vLLM #41162)",
)
def slots_of_the_second_pass(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain = op_chain(point, x, out)

    def launch() -> None:
        chain()
        out.slot_mappings[1:].copy_(out.slot_mappings[:1].expand(len(out.slot_mappings) - 1, -1, -1))

    return launch


@variant(
    "draft_passes",
    defect="the schedule of the second pass serves all (skipped planning, vLLM #39546)",
    skip=lambda p: None if with_indexer(p) else "no indexer",
)
def schedule_of_the_second_pass(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain = op_chain(point, x, out)

    def launch() -> None:
        chain()
        out.schedule[1:].copy_(out.schedule[:1].expand(len(out.schedule) - 1, -1, -1))

    return launch


@variant("draft_passes", defect="dummy rows behind the batch keep the slots of a larger step (vLLM #56734)")
def tail_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain, real = set_up(point, x, out, lambda i: i if point.advance == "yes" else 0), num_real(point)

    def launch() -> None:
        before = out.slot_mappings[:, :, real:].clone()
        chain()
        out.slot_mappings[:, :, real:].copy_(before)

    return launch
