"""Historic bugs of draft_passes, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.dcp_lengths.chains import local_lengths
from spec_decode_bench.baselines.dcp_lengths.operator import ranks_of
from spec_decode_bench.baselines.draft_passes.chains import op_chain
from spec_decode_bench.baselines.draft_passes.operator import Inputs, Outputs, with_indexer, with_ranks
from spec_decode_bench.baselines.workloads.broken import keeping, on_changed
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.baselines.workloads.request_slots import num_real
from spec_decode_bench.harness.contract import Point, variant


def _as_the_first(chain: Callable[[], None], of_passes: torch.Tensor) -> Callable[[], None]:
    """The chain, and then in all passes what the first of these has."""
    return in_sequence(chain, lambda: of_passes[1:].copy_(of_passes[:1].expand_as(of_passes[1:])))


@variant("draft_passes", defect="positions past the model's range are not gated (vLLM #57941)")
def positions_not_gated(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The slots are those of the gated positions, so that nothing is read behind a table."""
    real = num_real(point)
    ahead = torch.arange(len(out.positions), device=out.positions.device)[:, None] * int(point.advance == "yes")
    return in_sequence(
        op_chain(point, x, out),
        lambda: out.positions[:, :real].copy_((x.seq_lens - x.num_rejected)[:real] + ahead),
    )


@variant("draft_passes", defect="the noise of draft sampling repeats from pass to pass (vLLM #54282)")
def sampling_key_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return _as_the_first(op_chain(point, x, out), out.sample_src_positions[:, : num_real(point)])


@variant("draft_passes", defect="passes run over the rejected tokens, too (like vLLM #30029)")
def rejected_tokens_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Slots stay inside the tables: rejected tokens have blocks, and those drafted behind them may reuse theirs."""
    return on_changed(op_chain, point, x, out, num_rejected=lambda: (x.num_rejected - 1).clamp(min=0))


@variant(
    "draft_passes",
    defect="every pass keeps the slots of the first one (metadata not rebuilt between passes, vLLM #41162)",
)
def slots_of_the_second_pass(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return _as_the_first(op_chain(point, x, out), out.slot_mappings)


@variant(
    "draft_passes",
    defect="the schedule of the second pass serves all (skipped planning, vLLM #39546)",
    skip=lambda p: None if with_indexer(p) else "no indexer",
)
def schedule_of_the_second_pass(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return _as_the_first(op_chain(point, x, out), out.schedule)


@variant("draft_passes", defect="dummy rows behind the batch keep the slots of a larger step (vLLM #56734)")
def tail_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.slot_mappings[:, :, num_real(point) :])


@variant(
    "draft_passes",
    defect="every pass has the local lengths of the one before it (vLLM #36070, #54278)",
    skip=lambda p: None if with_ranks(p) else "one rank",
)
def local_lengths_of_the_first_pass(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Those of the target in the first one."""
    target, ranks, real = out.local_seq_lens.new_zeros(point.max_num_seqs), ranks_of(point), num_real(point)

    def behind() -> None:
        target[:real].copy_(local_lengths(x.seq_lens[:real] - x.num_rejected[:real], ranks))
        out.local_seq_lens.copy_(target.expand_as(out.local_seq_lens))

    return in_sequence(op_chain(point, x, out), behind)
