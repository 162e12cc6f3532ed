"""Historic bugs of mamba_align_step, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.mamba_align_step.chains import op_chain
from spec_decode_bench.baselines.mamba_align_step.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.broken import on_changed, rows_for_slots
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


def _only(phase: str) -> Callable[[Point], str | None]:
    return lambda p: None if p.phase == phase else f"{phase} only"


def _dropping(point: Point, x: Inputs, out: Outputs, dropped: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """The chain without the moves of the rows for which ``dropped``, bool [B], is set."""
    moves = out.moves[: len(x.idx_mapping)]
    none = torch.tensor([-1, -1, 0], dtype=torch.int32, device=moves.device)
    return in_sequence(op_chain(point, x, out), lambda: moves.copy_(torch.where(dropped()[:, None], none, moves)))


@variant(
    "mamba_align_step",
    defect="counts are reset before all copies of a request have read them (vLLM #50432)",
    skip=_only("before_forward"),
)
def offsets_after_reset(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The race made deterministic: read offsets come from the counts after the reset."""
    source, _, offset = out.moves[: len(x.idx_mapping)].unbind(1)
    accepted = out.batch_accepted[: len(x.idx_mapping)]
    return in_sequence(op_chain(point, x, out), lambda: offset.copy_((accepted - 1).clamp(min=0) * (source >= 0)))


@variant("mamba_align_step", defect="columns are counted in blocks of attention, not of Mamba (vLLM #53142, #55507)")
def scheduler_block_size(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(Point({**point, "mamba_block_size": 2 * point.mamba_block_size}), x, out)


@variant(
    "mamba_align_step",
    defect="a reused slot keeps the state of its former owner (vLLM #48132)",
    skip=_only("before_forward"),
)
def fresh_slots_moved(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """A column of -1 counts as column 0."""
    return on_changed(op_chain, point, x, out, state_columns_before=lambda: x.state_columns_before.clamp(min=0))


@variant("mamba_align_step", defect="the batch row is used where the request's slot is needed (vllm-ascend #13477)")
def row_for_slot(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, rows_for_slots(x), out)


@variant(
    "mamba_align_step", defect="a state is never moved to an earlier column (vLLM #53505)", skip=_only("before_forward")
)
def backward_move_dropped(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    moves = out.moves[: len(x.idx_mapping)]
    return _dropping(point, x, out, lambda: moves[:, 0] > moves[:, 1])


@variant(
    "mamba_align_step",
    defect="a block's end is frozen only where the step ends with it (tokens past it are lost, vLLM #55178)",
    skip=_only("after_sampling"),
)
def only_exact_ends_frozen(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return _dropping(
        point, x, out, lambda: x.num_computed_tokens[x.idx_mapping.clamp(min=0)] % point.mamba_block_size > 0
    )
