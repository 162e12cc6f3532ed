"""Historic bugs of draft_budget, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.draft_budget.chains import op_chain
from spec_decode_bench.baselines.draft_budget.operator import Inputs, Outputs, by_sglang, by_vllm, on_bus
from spec_decode_bench.baselines.workloads.broken import keeping, on_changed, rows_for_slots
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


def _vllm(point: Point) -> str | None:
    if by_sglang(point):
        return "it is one of vLLM's rule"
    return "PyTorch cannot read pinned memory from the device" if on_bus(point) else None


def _sglang(point: Point) -> str | None:
    return "it is one of SGLang's rule" if by_vllm(point) else None


def _untrimmed(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The chain, and then the logits' boundaries of all scheduled drafts."""
    ends = out.cu_num_logits[1 : point.batch_size + 1]
    return in_sequence(op_chain(point, x, out), lambda: ends.copy_((x.num_drafts + 1).cumsum(0)))


@variant("draft_budget", defect="with budget 0, logits are those of all drafts (vLLM #52436)", skip=_vllm)
def logits_of_no_budget(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return (op_chain if x.draft_budget else _untrimmed)(point, x, out)


@variant("draft_budget", defect="trimmed tokens beside the logits from before the trim (vLLM #47808)", skip=_vllm)
def logits_before_the_trim(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return (_untrimmed if x.draft_budget else op_chain)(point, x, out)


@variant("draft_budget", defect="the host's even shares instead of the device's choice (vLLM #52783)", skip=_vllm)
def even_shares(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    starts = out.query_start_loc[1 : point.batch_size + 1]

    def boundaries() -> None:
        verifies = x.num_drafts > 0
        count = verifies.sum().clamp(min=1)
        share = x.draft_budget // count + (verifies.cumsum(0) <= x.draft_budget % count)
        starts.copy_((x.non_draft_tokens + torch.where(verifies, share, 0)).cumsum(0))

    return in_sequence(op_chain(point, x, out), boundaries)


@variant("draft_budget", defect="boundaries behind the batch are those of a larger step (vLLM #47808)", skip=_vllm)
def stale_tail(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.query_start_loc[point.batch_size + 1 :])


@variant("draft_budget", defect="the row's number in place of its slot (like vllm-ascend #13477)", skip=_vllm)
def row_for_slot(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, rows_for_slots(x), out)


@variant("draft_budget", defect="drafts that a request may not have any more are admitted (SGLang #33454)", skip=_vllm)
def unscheduled_drafts(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def all_k() -> torch.Tensor:
        return torch.where(x.num_drafts > 0, point.next_n - 1, 0)

    return on_changed(op_chain, point, x, out, num_drafts_device=all_k)


@variant("draft_budget", defect="ties in another order: ranks choose other drafts (like aiter #4376)", skip=_vllm)
def last_of_equals(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The chain over the rows in reverse, of which the counts and both boundaries are turned around."""
    rows = point.batch_size
    turned = {name: torch.empty_like(getattr(x, name)) for name in ("idx_mapping", "num_drafts_device")}
    chain, counts = op_chain(point, replace(x, **turned), out), out.num_drafts[:rows]

    def turn() -> None:
        turned["idx_mapping"].copy_(x.idx_mapping.flip(0))
        turned["num_drafts_device"].copy_(x.num_drafts.flip(0))
        chain()
        counts.copy_(counts.flip(0))
        out.cu_num_logits[1 : rows + 1].copy_((counts + 1).cumsum(0))
        out.query_start_loc[1 : rows + 1].copy_((counts + x.non_draft_tokens).cumsum(0))

    return turn


def _padded_rows(point: Point, x: Inputs, out: Outputs, width: int) -> Callable[[], None]:
    """The chain, and then boundaries of rows of one width."""
    starts = out.query_start_loc[: point.batch_size + 1]
    wrong = width * torch.arange(len(starts), device=starts.device)
    return in_sequence(op_chain(point, x, out), lambda: starts.copy_(wrong))


@variant("draft_budget", defect="ragged rows are taken for rows of one width (SGLang #35586)", skip=_sglang)
def rows_of_one_width(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return _padded_rows(point, x, out, x.num_tokens // point.batch_size)


@variant(
    "draft_budget", defect="boundaries of capture, a token for each row, in a replay (SGLang #34384)", skip=_sglang
)
def rows_of_capture(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return _padded_rows(point, x, out, 1)
