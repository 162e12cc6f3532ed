"""dcp_lengths from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.dcp_lengths.operator import Inputs, Outputs, operator, ranks_of
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def local_lengths(lengths: torch.Tensor, ranks: tuple[int, int, int]) -> torch.Tensor:
    """Full rounds, then what the last round has left for this rank."""
    size, rank, interleave = ranks
    base = lengths // interleave // size * interleave
    return base + torch.clip(lengths - base * size - rank * interleave, 0, interleave)


def fill(out: torch.Tensor, lengths: torch.Tensor, ranks: tuple[int, int, int]) -> None:
    """lengths: of the real rows."""
    rows = len(lengths)
    out[:rows].copy_(local_lengths(lengths, ranks))
    out[rows:].zero_()


def set_up(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = fill) -> Callable[[], None]:
    lengths, ranks = x.seq_lens[: x.num_reqs], ranks_of(point)
    return lambda: fill(out.local_seq_lens, lengths, ranks)


@variant("dcp_lengths", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """As vLLM's runner V1 does on the host, here on the GPU: divide, multiply, subtract, clip, add, copy, clear."""
    return set_up(point, x, out)


_STEP = {"batch_size": BUSY_BATCH, "padding": 0.1, "cp_interleave": 64, "cp_rank": "middle"}
_EXAMPLES = (_STEP, _STEP | {"cp_interleave": 1}, _STEP | {"cp_rank": "first"}, {"batch_size": 1})


@variant("dcp_lengths", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    return set_up(point, x, out, compiled(fill, set_up, operator, _EXAMPLES, out.local_seq_lens.device))
