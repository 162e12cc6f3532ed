"""Historic bugs of mamba_align_step, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from baselines.mamba_align_step.chains import op_chain
from baselines.mamba_align_step.operator import Inputs, Outputs
from harness.contract import Point, variant


def _only(phase: str) -> Callable[[Point], str | None]:
    return lambda p: None if p.phase == phase else f"{phase} only"


@variant(
    "mamba_align_step",
    defect="counts are reset before all copies of a request have read them (vLLM #50432)",
    skip=_only("before_forward"),
)
def offsets_after_reset(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The race made deterministic: read offsets come from the counts after the reset."""
    chain, rows = op_chain(point, x, out), len(x.idx_mapping)

    def launch() -> None:
        chain()
        out.moves[:rows, 2].copy_((out.batch_accepted[:rows] - 1).clamp(min=0) * (out.moves[:rows, 0] >= 0))

    return launch


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
    columns = torch.empty_like(x.state_columns_before)
    chain = op_chain(point, replace(x, state_columns_before=columns), out)

    def launch() -> None:
        torch.clamp(x.state_columns_before, min=0, out=columns)
        chain()

    return launch


@variant("mamba_align_step", defect="the batch row is used where the request's slot is needed (vllm-ascend #13477)")
def row_for_slot(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, replace(x, idx_mapping=torch.arange(len(x.idx_mapping), device=x.idx_mapping.device)), out)


@variant(
    "mamba_align_step", defect="a state is never moved to an earlier column (vLLM #53505)", skip=_only("before_forward")
)
def backward_move_dropped(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain, rows = op_chain(point, x, out), len(x.idx_mapping)
    none = torch.tensor([-1, -1, 0], dtype=torch.int32, device=x.idx_mapping.device)

    def launch() -> None:
        chain()
        moves = out.moves[:rows]
        moves.copy_(torch.where(moves[:, :1] > moves[:, 1:2], none, moves))

    return launch


@variant(
    "mamba_align_step",
    defect="a block's end is frozen only where the step ends with it (tokens past it are lost, vLLM #55178)",
    skip=_only("after_sampling"),
)
def only_exact_ends_frozen(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain, rows, size = op_chain(point, x, out), len(x.idx_mapping), point.mamba_block_size
    none = torch.tensor([-1, -1, 0], dtype=torch.int32, device=x.idx_mapping.device)

    def launch() -> None:
        chain()
        past = x.num_computed_tokens[x.idx_mapping.clamp(min=0)] % size > 0
        out.moves[:rows].copy_(torch.where(past[:, None], none, out.moves[:rows]))

    return launch
