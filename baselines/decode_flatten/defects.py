"""Historic bugs of decode_flatten, as PyTorch chains. Two kernel bugs are in kernels/decode_flatten/triton.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.dcp_lengths.chains import local_lengths
from spec_decode_bench.baselines.dcp_lengths.operator import ranks_of
from spec_decode_bench.baselines.decode_flatten.chains import needs_exact_host_lens, op_chain, token_indices
from spec_decode_bench.baselines.decode_flatten.operator import Inputs, Outputs, copied_columns
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.baselines.workloads.decode_batch import NULL_BLOCK_ID
from spec_decode_bench.harness.contract import Point, variant


@variant(
    "decode_flatten",
    defect="the shared block table is clamped in place to hide -1 (vLLM 0.19)",
    skip=needs_exact_host_lens,
)
def chain_clamps_shared_table(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return in_sequence(lambda: x.block_table.clamp_(min=0), op_chain(point, x, out))


@variant(
    "decode_flatten",
    defect="the CPU's query boundaries are used instead of the device's (vLLM #52795, #56562)",
    skip=lambda p: None if p.cp_size == 1 else "one context-parallel rank only",
    waives=("no_sync", "graph_safe"),
)
def host_boundaries_trusted(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Right while the host is up to date; after adaptive verification its boundaries still count every draft."""
    indices, columns = token_indices(out), copied_columns(x, out)

    def launch():
        actual, start = int(x.query_start_loc_cpu[-1]), x.query_start_loc_cpu.to(out.lens.device)
        decode_lens = torch.diff(start)
        offsets = torch.repeat_interleave(x.seq_lens - decode_lens - start[:-1], decode_lens, output_size=actual)
        out.lens[:actual].copy_((offsets + indices[:actual] + 1).clamp_(min=0))
        out.lens[actual:].fill_(0)
        rows = torch.repeat_interleave(x.block_table[:, :columns], decode_lens, dim=0, output_size=actual)
        out.block_table[:actual, :columns].copy_(rows)
        out.block_table[actual : x.num_decode_tokens, 0].fill_(NULL_BLOCK_ID)
        out.decode_lens[: x.num_decode_tokens].fill_(1)

    return launch


@variant(
    "decode_flatten",
    defect="lengths of a larger step stay in the tail, where a graph captured at that size reads them (xllm #1939)",
    skip=needs_exact_host_lens,
)
def tail_not_cleared(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, x, replace(out, lens=out.lens[: x.num_decode_tokens]))


@variant(
    "decode_flatten",
    defect="padding tokens have one id, and so are handled as one request of many tokens",
    skip=needs_exact_host_lens,
)
def padding_tokens_share_an_id(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain = op_chain(point, x, out)
    if out.indices is None:
        return chain
    return in_sequence(chain, lambda: out.indices[: x.num_decode_tokens].clamp_(max=point.batch_size))


@variant(
    "decode_flatten",
    defect="the arange has max_num_seqs x next_n entries, fewer than a padded step has tokens (vLLM #39277, #40983)",
    skip=needs_exact_host_lens,
)
def arange_of_requests(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """max_num_seqs is B here. Upstream raised; here the tokens past the end of the arange are not written."""
    covered = min(point.batch_size * point.next_n, x.num_decode_tokens)
    return op_chain(point, replace(x, num_decode_tokens=covered), out)


@variant(
    "decode_flatten",
    defect="the local length of a request is expanded, as if it grew with every token (vLLM #46076)",
    skip=lambda p: needs_exact_host_lens(p) or ("one rank" if p.cp_size == 1 else None),
)
def local_length_expanded(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    local, ranks = x.seq_lens.clone(), ranks_of(point)
    expand = op_chain(Point({**point, "cp_size": 1}), replace(x, seq_lens=local), out)
    return in_sequence(lambda: local.copy_(local_lengths(x.seq_lens, ranks)), expand)
