"""Flattening as chains of torch operators, over the inputs and outputs of decode_flatten or of a whole step."""

from __future__ import annotations

import torch
from torch import Tensor

from baselines.decode_flatten._batches import Inputs
from baselines.workloads.decode_batch import NULL_BLOCK_ID
from harness.contract import Point


def needs_exact_host_lens(point: Point) -> str | None:
    return "reads query lengths from the CPU copy, which is stale here" if point.host_lens == "stale" else None


def arange_of(out) -> Tensor:
    """0 .. capacity - 1: a lookup table must cover every token the buffers can hold (vLLM #39277)."""
    return torch.arange(out.lens.numel(), dtype=torch.int32, device=out.lens.device)


def _store(out, lens: Tensor, rows: Tensor, actual: int, tokens: int) -> None:
    """What the chains do alike once lengths [A] and table rows [A, W] are built: copies, then the padding tokens."""
    columns = min(rows.shape[1], out.block_table.shape[1])
    out.lens[:actual].copy_(lens)
    out.lens[actual:].fill_(0)
    out.block_table[:actual, :columns].copy_(rows[:, :columns])
    if tokens > actual:
        out.block_table[actual:tokens, 0].fill_(NULL_BLOCK_ID)
    out.decode_lens[:tokens].fill_(1)


def flatten_chain(x: Inputs, out):
    """A closure over the chain of vLLM 0.19: three repeat_interleave, arange arithmetic, full-width rows."""
    decode_lens, arange = torch.empty_like(x.seq_lens), arange_of(out)

    def launch():
        torch.diff(x.query_start_loc, out=decode_lens)
        decode_lens_cpu = torch.diff(x.query_start_loc_cpu)
        actual = int(decode_lens_cpu.sum()) if int(decode_lens_cpu.max()) > 0 else 0
        computed = x.seq_lens - decode_lens
        bases = torch.repeat_interleave(computed, decode_lens, output_size=actual)
        starts = torch.repeat_interleave(x.query_start_loc[:-1], decode_lens, output_size=actual)
        lens = (bases + (arange[:actual] - starts) + 1).clamp_(min=0)
        rows = torch.repeat_interleave(x.block_table, decode_lens, dim=0, output_size=actual)
        _store(out, lens, rows, actual, x.num_decode_tokens)

    return launch


def merged(x: Inputs, out, arange: Tensor, actual: int) -> None:
    """One fused offset per request, seq_lens - decode_lens - query_start_loc, so two repeats instead of three."""
    decode_lens = torch.diff(x.query_start_loc)
    offsets = x.seq_lens - decode_lens - x.query_start_loc[:-1]
    repeated = torch.repeat_interleave(offsets, decode_lens, output_size=actual)
    lens = (repeated + arange[:actual] + 1).clamp_(min=0)
    rows = torch.repeat_interleave(x.block_table, decode_lens, dim=0, output_size=actual)
    _store(out, lens, rows, actual, x.num_decode_tokens)
