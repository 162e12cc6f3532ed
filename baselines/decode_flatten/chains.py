"""decode_flatten as chains of PyTorch operators, as vLLM ran them before it had a kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.dcp_lengths.chains import local_lengths
from spec_decode_bench.baselines.dcp_lengths.operator import ranks_of
from spec_decode_bench.baselines.decode_flatten.operator import Inputs, Outputs, copied_columns, operator
from spec_decode_bench.baselines.workloads.decode_batch import NULL_BLOCK_ID
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def needs_exact_host_lens(point: Point) -> str | None:
    """Skip reason of the chains that size their tensors on the host."""
    return "reads query lengths from the CPU copy, which is stale here" if point.host_lens == "stale" else None


def token_indices(out: Outputs) -> torch.Tensor:
    """0 .. capacity - 1, int32: the table must cover every token that the buffers can hold (vLLM #39277)."""
    return torch.arange(out.lens.numel(), dtype=torch.int32, device=out.lens.device)


def _store(x: Inputs, out: Outputs, lens: torch.Tensor, rows: torch.Tensor, actual: int) -> None:
    """Copy lengths [A] and table rows [A, table_columns] into the buffers, then fill in the padding tokens."""
    columns, tokens = copied_columns(x, out), x.num_decode_tokens
    out.lens[:actual].copy_(lens)
    out.lens[actual:].fill_(0)
    out.block_table[:actual, :columns].copy_(rows[:, :columns])
    if tokens > actual:
        out.block_table[actual:tokens, 0].fill_(NULL_BLOCK_ID)
    out.decode_lens[:tokens].fill_(1)


def _store_indices(x: Inputs, out: Outputs, decode_lens: torch.Tensor, indices: torch.Tensor, actual: int) -> None:
    """Where they are asked for: four to six launches more."""
    if out.indices is None:
        return
    requests, tokens = len(decode_lens), x.num_decode_tokens
    owners = torch.repeat_interleave(indices[:requests], decode_lens, output_size=actual)
    out.indices[:actual].copy_(owners)
    if tokens > actual:
        torch.add(indices[: tokens - actual], requests, out=out.indices[actual:tokens])
    out.request_lens[:requests].copy_(x.seq_lens)


@variant("decode_flatten", skip=needs_exact_host_lens, waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The operator chain of vLLM 0.19: three repeat_interleave, arange arithmetic, full-width rows.

    Upstream clamped the *shared* block table in place; that one launch is left out here (see the defect
    chain_clamps_shared_table) and the lengths are clamped instead, which drafter dummy runs need.
    """
    decode_lens, indices, ranks = torch.empty_like(x.seq_lens), token_indices(out), ranks_of(point)

    def launch():
        torch.diff(x.query_start_loc, out=decode_lens)
        decode_lens_cpu = torch.diff(x.query_start_loc_cpu)
        # Upstream also takes the maximum; its host time is part of the chain.
        actual = int(decode_lens_cpu.sum()) if int(decode_lens_cpu.max()) > 0 else 0
        computed = x.seq_lens - decode_lens
        bases = torch.repeat_interleave(computed, decode_lens, output_size=actual)
        starts = torch.repeat_interleave(x.query_start_loc[:-1], decode_lens, output_size=actual)
        lens = (bases + (indices[:actual] - starts) + 1).clamp_(min=0)
        if ranks[0] > 1:
            lens = local_lengths(lens, ranks)
        rows = torch.repeat_interleave(x.block_table, decode_lens, dim=0, output_size=actual)
        _store(x, out, lens, rows, actual)
        _store_indices(x, out, decode_lens, indices, actual)

    return launch


def _merged(x: Inputs, out: Outputs, indices: torch.Tensor, actual: int) -> None:
    """One offset per request, seq_lens - decode_lens - query_start_loc: two repeats instead of three."""
    decode_lens = torch.diff(x.query_start_loc)
    offsets = x.seq_lens - decode_lens - x.query_start_loc[:-1]
    repeated = torch.repeat_interleave(offsets, decode_lens, output_size=actual)
    lens = (repeated + indices[:actual] + 1).clamp_(min=0)
    rows = torch.repeat_interleave(x.block_table, decode_lens, dim=0, output_size=actual)
    _store(x, out, lens, rows, actual)
    _store_indices(x, out, decode_lens, indices, actual)


def _launch_merged(point: Point, x: Inputs, out: Outputs, chain: Callable = _merged) -> Callable[[], None]:
    indices = token_indices(out)
    return lambda: chain(x, out, indices, int(torch.diff(x.query_start_loc_cpu).sum()))


def _on_one_rank(point: Point) -> str | None:
    return needs_exact_host_lens(point) or (None if ranks_of(point)[0] == 1 else "one context-parallel rank only")


@variant("decode_flatten", skip=_on_one_rank, waives="no_alloc")
def merged_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The ragged chain of vLLM 0.22: offsets merged before they are repeated, lengths clamped, full-width rows."""
    return _launch_merged(point, x, out)


#: Points that compiled_chain is compiled for: a table with and without space between its rows, several padding tokens
#: and one, indices, one request, one token.
_EXAMPLES = (
    {"batch_size": BUSY_BATCH, "table_padding": 3},
    {"batch_size": BUSY_BATCH},
    {"batch_size": BUSY_BATCH, "token_padding": 5},
    {"batch_size": BUSY_BATCH, "token_padding": 1},
    {"batch_size": BUSY_BATCH, "indices": "yes", "token_padding": 5},
    {"batch_size": 1},
    {"batch_size": 1, "next_n": 1},
)


@variant("decode_flatten", requires=COMPILER, skip=_on_one_rank, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the merged chain."""
    chain = compiled(_merged, _launch_merged, operator, _EXAMPLES, x.seq_lens.device)
    return _launch_merged(point, x, out, chain)
