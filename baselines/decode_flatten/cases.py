"""Edge cases of decode_flatten, and sequences of steps through the same buffers.

An edit changes the contents of the inputs (CPU tensors) in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.baselines.workloads.decode_batch import large_ids, share_blocks
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.decode_flatten.operator import Inputs


def seq_len_below_decode_len(x: Inputs) -> None:
    x.seq_lens.clamp_(max=1)


def padding_in_the_middle(x: Inputs) -> None:
    """Moves the padding request, which otherwise comes last, to row 1."""
    order = torch.tensor([0, len(x.seq_lens) - 1, *range(1, len(x.seq_lens) - 1)])
    lens = torch.diff(x.query_start_loc)[order]
    for start in (x.query_start_loc, x.query_start_loc_cpu):
        start[1:] = lens.cumsum(0)
    x.seq_lens.copy_(x.seq_lens[order])
    x.block_table.copy_(x.block_table[order])


def all_padding(x: Inputs) -> None:
    for tensor in (x.seq_lens, x.query_start_loc, x.query_start_loc_cpu, x.block_table):
        tensor.zero_()


def minus_one_padding_rows(x: Inputs) -> None:
    x.block_table[x.seq_lens == 0] = -1


def drafts_overhang(x: Inputs) -> None:
    """Three drafts lie past max_model_len: a length needs one block more than the table has columns (vLLM #46074)."""
    x.seq_lens.add_(3)


#: What the covering array changes in generated inputs.
CONTENTS = {"shared_blocks": share_blocks, "large_ids": large_ids}

EDGE_CASES = [
    EdgeCase("B=1", {"batch_size": 1, "context_len": 700}),
    EdgeCase("B=1, one token", {"batch_size": 1, "next_n": 1, "context_len": 1}),
    EdgeCase("B = 1, L = 40, T > A", {"batch_size": 1, "next_n": 40, "token_padding": 9, "context_len": 700}),
    EdgeCase("all requests are padding", {"batch_size": 4, "context_len": 200}, all_padding),
    EdgeCase("padding rows last", {"batch_size": 7, "padding": 0.4, "context_len": {"uniform": [4, 3000]}}),
    EdgeCase("padding row in the middle", {"batch_size": 6, "padding": 0.1, "context_len": 900}, padding_in_the_middle),
    EdgeCase("padding rows hold -1", {"batch_size": 6, "padding": 0.3, "context_len": 900}, minus_one_padding_rows),
    EdgeCase("ragged", {"batch_size": 9, "decode_len": "ragged", "context_len": {"uniform": [4, 5000]}}),
    EdgeCase(
        "ragged and padded",
        {"batch_size": 9, "decode_len": "ragged", "padding": 0.3, "context_len": {"uniform": [4, 900]}},
    ),
    EdgeCase("short step, L < next_n", {"batch_size": 5, "max_decode_len": 3, "context_len": 900}),
    EdgeCase("L = 1", {"batch_size": 5, "max_decode_len": 1, "context_len": 900}),
    EdgeCase(
        "long rows, L = 33",
        {"batch_size": 3, "next_n": 40, "max_decode_len": 33, "decode_len": "ragged", "context_len": 900},
    ),
    EdgeCase("token padding, T > A", {"batch_size": 5, "token_padding": 3, "context_len": 900}),
    EdgeCase(
        "ragged with token padding", {"batch_size": 5, "decode_len": "ragged", "token_padding": 17, "context_len": 900}
    ),
    EdgeCase("T = capacity", {"batch_size": 8, "max_num_batched_tokens": 32, "context_len": 300}),
    EdgeCase(
        "T = capacity through padding",
        {"batch_size": 3, "token_padding": 245, "max_num_batched_tokens": 257, "context_len": 300},
    ),
    EdgeCase("capacity not a multiple of 4", {"batch_size": 3, "max_num_batched_tokens": 1025, "context_len": 300}),
    EdgeCase("W = 1", {"batch_size": 4, "max_model_len": 64, "context_len": {"uniform": [4, 64]}}),
    EdgeCase("W = 1025", {"batch_size": 4, "max_model_len": 64 * 1025, "context_len": 64 * 1025}),
    EdgeCase("source stride > W", {"batch_size": 4, "table_padding": 10, "context_len": {"uniform": [4, 20000]}}),
    EdgeCase(
        "source narrower than destination",
        {"batch_size": 4, "max_model_len": 4096, "table_columns": 61, "context_len": 3904},
    ),
    EdgeCase(
        "source wider than destination",
        {"batch_size": 4, "max_model_len": 4096, "table_columns": 71, "context_len": 4096},
    ),
    EdgeCase(
        "drafts overhang max_model_len", {"batch_size": 3, "max_model_len": 4096, "context_len": 4096}, drafts_overhang
    ),
    EdgeCase("length exactly k * 64", {"batch_size": 4, "context_len": 640}),
    EdgeCase("length k * 64 + 1", {"batch_size": 4, "context_len": 641}),
    EdgeCase("length 1", {"batch_size": 4, "max_decode_len": 1, "context_len": 1}),
    EdgeCase(
        "lengths of 2^31 - 1",
        {"batch_size": 2, "block_size": 2**16, "max_model_len": 2**31 - 1, "context_len": 2**31 - 1},
    ),
    EdgeCase("seq_len < decode_len", {"batch_size": 4, "context_len": 900}, seq_len_below_decode_len),
    EdgeCase("stale host lengths", {"batch_size": 6, "decode_len": "ragged", "host_lens": "stale", "context_len": 900}),
    EdgeCase("whole table used", {"batch_size": 2, "max_model_len": 163840, "context_len": 163840}),
    EdgeCase(
        "block size 1", {"batch_size": 3, "block_size": 1, "max_model_len": 700, "context_len": {"uniform": [4, 700]}}
    ),
    EdgeCase(
        "B = 65",
        {"batch_size": 65, "decode_len": "ragged", "max_model_len": 8192, "context_len": {"uniform": [4, 2000]}},
    ),
    EdgeCase(  # a program then copies one strip of 512 columns after another
        "rows of 513 blocks, more than there are programs for two strips",
        {"batch_size": 530, "next_n": 1, "max_model_len": 64 * 513, "context_len": {"uniform": [1, 64 * 513]}},
    ),
    EdgeCase("indices", {"batch_size": 5, "context_len": 900, "indices": "yes"}),
    EdgeCase("indices, B = 1, one token", {"batch_size": 1, "next_n": 1, "context_len": 1, "indices": "yes"}),
    EdgeCase(
        "indices, ragged, padding row in the middle, token padding",
        {"batch_size": 6, "decode_len": "ragged", "padding": 0.1, "token_padding": 300, "indices": "yes"},
        padding_in_the_middle,
    ),
    EdgeCase("indices, all requests are padding", {"batch_size": 4, "indices": "yes"}, all_padding),
    EdgeCase(
        "indices, rows longer than a block, capacity not a multiple of 4",
        {"batch_size": 2, "next_n": 600, "context_len": 900, "max_num_batched_tokens": 1203, "indices": "yes"},
    ),
    EdgeCase(
        "indices, stale host lengths",
        {"batch_size": 6, "decode_len": "ragged", "host_lens": "stale", "context_len": 900, "indices": "yes"},
    ),
]

_CP = {"batch_size": 9, "decode_len": "ragged", "context_len": {"uniform": [1, 3000]}, "cp_size": 4}
EDGE_CASES += [
    EdgeCase(
        "CP = 2, last rank", {"batch_size": 40, "cp_size": 2, "cp_rank": "last", "context_len": {"uniform": [1, 40]}}
    ),
    EdgeCase("CP = 8, interleave 4, first rank", _CP | {"cp_size": 8, "cp_interleave": 4, "padding": 0.2}),
    EdgeCase("CP = 4, interleave 64, last rank", _CP | {"cp_interleave": 64, "cp_rank": "last", "token_padding": 5}),
    EdgeCase("CP = 4, indices", _CP | {"cp_rank": "last", "indices": "yes"}),
    EdgeCase(
        "CP = 2, local lengths of 10 * 64 + 1", _CP | {"cp_size": 2, "context_len": 1282, "decode_len": "uniform"}
    ),
]

# Random lengths, so that a graph that keeps the lengths of its capture is wrong.
_UNIFORM = {"batch_size": 9, "context_len": {"uniform": [4, 2000]}}
_SMALL = {"batch_size": 2, "context_len": {"uniform": [4, 200]}}
_BIG = _UNIFORM | {"decode_len": "ragged"}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "big-uniform-small-uniform-big": (_UNIFORM, _SMALL, _UNIFORM),
    "indices, big-small-padded": tuple(
        step | {"indices": "yes"} for step in (_BIG, _SMALL, _BIG | {"padding": 0.5, "token_padding": 3})
    ),
    "big-padded-big": (_BIG, _BIG | {"padding": 0.5, "token_padding": 3}, _BIG),
}
