"""chain_step from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

from spec_decode_bench.baselines.chain_step.operator import Inputs, Outputs, operator, passes
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled, row_of
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def constants(point: Point, out: Outputs) -> SimpleNamespace:
    """Tensors that no step changes: tokens 0 .. W - 1 of a row, its tree and mask, starts, entries of a pass."""
    width, rows, device = point.next_n, point.batch_size, out.positions.device
    chain = torch.arange(width, device=device)
    index = torch.arange(rows * width, device=device).view(rows, width)
    child = torch.where(chain + 1 < width, chain + 1, -1).expand(rows, -1)
    return SimpleNamespace(
        chain=chain,
        tree=torch.stack([index, child, torch.full_like(index, -1)]).view(-1),
        mask=(chain <= chain[:, None]).expand(rows, -1, -1),
        starts=(torch.arange(rows, device=device) * width).int(),
        entries=None if out.kv_indices is None else torch.arange(out.kv_indices.shape[1], device=device),
    )


def fill(x: Inputs, out: Outputs, made: SimpleNamespace, width: int, count: int) -> None:
    """width: tokens of a chain. count: passes with packed slots."""
    positions = x.seq_lens[:, None] + made.chain
    slots = x.req_to_token[x.req_pool_indices[:, None], positions]
    rows = len(slots)
    out.draft_slots[:rows].copy_(slots[:, :-1])
    out.draft_positions[:rows].copy_(x.seq_lens)
    out.positions[:rows].copy_(positions)
    out.slots[:rows].copy_(slots)
    out.tree[: 3 * rows * width].copy_(made.tree)
    out.tree_mask[:rows].copy_(made.mask)
    out.prefix_lens[:rows].copy_(x.seq_lens)
    out.extend_lens[:rows].fill_(width)
    out.start_locs[:rows].copy_(made.starts)
    out.post_lens[:rows].copy_(x.seq_lens + width)
    for i in range(count):
        pack(x, out, made.entries, i)


def pack(x: Inputs, out: Outputs, entries: torch.Tensor, i: int) -> None:
    """Pass i + 1, over the whole buffer, as its length is known on the device alone."""
    starts = torch.nn.functional.pad((x.seq_lens + (i + 1)).cumsum(0), (1, 0))
    out.kv_indptr[i, : len(starts)].copy_(starts)
    row = row_of(starts, entries).clamp(max=len(x.seq_lens) - 1)
    inside = entries < starts[-1]
    column = torch.where(inside, entries - starts[row], 0)
    packed = x.req_to_token[x.req_pool_indices[row], column]
    out.kv_indices[i].copy_(torch.where(inside, packed, out.kv_indices[i]))


def set_up(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = fill) -> Callable[[], None]:
    made, count = constants(point, out), passes(point) if out.kv_indices is not None else 0
    return lambda: fill(x, out, made, point.next_n, count)


@variant("chain_step", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Positions, a gather, copies; per pass a prefix sum, a search over the buffer, gathers and a masked copy."""
    return set_up(point, x, out)


_STEP = {"batch_size": BUSY_BATCH, "context_len": {"uniform": [8, 90]}, "max_model_len": 100}
_EXAMPLES = (_STEP, _STEP | {"kv_indices": "no"}, {"batch_size": 1, "context_len": 90})


@variant(
    "chain_step",
    requires=COMPILER,
    waives="no_alloc",
    skip=lambda p: "Inductor unrolls the passes" if p.next_n > 10 else None,
)
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    return set_up(point, x, out, compiled(fill, set_up, operator, _EXAMPLES, out.positions.device))
