"""decode_native: 2-D per-token context lengths, for a paged-MQA-logits kernel that takes next_n > 1 natively.

How many entries of the index cache each of the L query tokens of a request may attend to:

    context_lens[b, j] = max(seq_lens[b] - L + 1 + j, 0) // compress_ratio          j = 0 .. L-1,  L = max_decode_len

vLLM's DeepSeek-V3.2 indexer (v1/attention/backends/mla/indexer.py) builds this where DeepGEMM's paged MQA logits
support next_n; other next_n take decode_flatten. compress_ratio > 1: DeepSeek-V4.

Under decode context parallelism (``cp_size`` > 1) a token's length is first replaced by what lies on this rank
(dcp_lengths), then divided: lengths on a rank do not differ by one from token to token (vLLM #46076). vLLM asks for an
interleave that is a multiple of compress_ratio.

int32 (B, L), contiguous: the first B * L elements of one flat persistent buffer, so that every (B, L) has the same
address. The consumer addresses element (b, j) as b * next_n + j and takes no stride. The rest of the buffer keeps its
contents. Entries of padding requests must be 0: consumers read uint32, and -1 becomes 4 * 10^9 tokens of work (vLLM
#51538, flashinfer #5015).

Rows are aligned at their end with the batch maximum L, as in upstream, so the last column is the request's length. With
``row_alignment: front``, the length at column j is seq_lens[b] - decode_lens[b] + 1 + j, and columns past the row are
0. vLLM splits native batches into uniform ones, so its only ragged rows are padding requests, where both give zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spec_decode_bench.baselines.compute_slot_mappings.operator import CONTEXT_PARALLEL, has_all_tokens
from spec_decode_bench.baselines.dcp_lengths.operator import held_of
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads.decode_batch import make_batch
from spec_decode_bench.harness.contract import Axis, EdgeCase, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, Tensors, view_of

ROW_ALIGNMENT = Axis(
    "row_alignment", axes.choice("end", "front"), "end", "which end of a ragged row its tokens are packed at"
)


class Inputs(Tensors):
    seq_lens: I32["batch_size"]  # 0 = padding request
    decode_lens: I32["batch_size"]  # tokens of each row


class Outputs(Tensors):
    buffer: I32["max_num_batched_tokens"]
    context_lens: I32["batch_size", "max_decode_len"] = view_of("buffer")


def make_inputs(point: Point, seed: int) -> Inputs:
    batch = make_batch(point, seed)
    return Inputs(batch.seq_lens, batch.decode_lens)


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """Row by row, column by column."""
    width, capacity = point.max_decode_len, point.max_num_batched_tokens
    lens, held = [], held_of(point)
    for seq_len, decode_len in zip(x.seq_lens.tolist(), x.decode_lens.tolist(), strict=True):
        row = decode_len if point.row_alignment == "front" else width
        for j in range(width):
            length = max(seq_len - row + 1 + j, 0) if j < row else 0
            lens.append(held(length) // point.compress_ratio)
    value = torch.tensor(lens + [0] * (capacity - len(lens)), dtype=torch.int32)
    return {"buffer": Expected(value, untouched=torch.arange(capacity) >= len(lens))}


def bytes_moved(point: Point, x: Inputs) -> int:
    """seq_lens once (and decode_lens where rows are aligned at their front), B * L entries written once."""
    per_request = 1 if point.row_alignment == "end" else 2
    return 4 * (point.batch_size * per_request + point.batch_size * point.max_decode_len)


# --- edge cases and sequences ----------------------------------------------------------------------------------------


def _seq_len_below_row(x: Inputs) -> None:
    x.seq_lens.clamp_(max=2)


def _all_padding(x: Inputs) -> None:
    x.seq_lens.zero_()
    x.decode_lens.zero_()


_CP = {"batch_size": 40, "cp_size": 4, "cp_rank": "last", "context_len": {"uniform": [1, 2000]}}

EDGE_CASES = [
    EdgeCase("B=1", {"batch_size": 1, "context_len": 700}),
    EdgeCase("L = 1", {"batch_size": 5, "max_decode_len": 1, "context_len": 900}),
    EdgeCase("L < next_n", {"batch_size": 5, "max_decode_len": 3, "context_len": 900}),
    EdgeCase("L = next_n, not a power of two", {"batch_size": 5, "next_n": 6, "context_len": 900}),
    EdgeCase("B * L = capacity", {"batch_size": 8, "max_num_batched_tokens": 32, "context_len": 300}),
    EdgeCase("seq_len = L", {"batch_size": 4, "context_len": 4}),
    EdgeCase("seq_len < L", {"batch_size": 4, "context_len": 900, "padding": 0.2}, _seq_len_below_row),
    EdgeCase("padding rows", {"batch_size": 7, "padding": 0.4, "context_len": {"uniform": [4, 3000]}}),
    EdgeCase("all rows padding", {"batch_size": 4, "context_len": 200, "padding": 0.5}, _all_padding),
    EdgeCase(
        "compress_ratio 4", {"batch_size": 6, "padding": 0.2, "compress_ratio": 4, "context_len": {"uniform": [1, 20]}}
    ),
    EdgeCase(
        "compress_ratio 128",
        {"batch_size": 6, "padding": 0.2, "compress_ratio": 128, "context_len": {"uniform": [1, 1000]}},
    ),
    EdgeCase(
        "ragged rows, end-aligned", {"batch_size": 9, "decode_len": "ragged", "context_len": {"uniform": [4, 900]}}
    ),
    EdgeCase(
        "ragged rows, front-aligned",
        {
            "batch_size": 9,
            "decode_len": "ragged",
            "row_alignment": "front",
            "padding": 0.2,
            "context_len": {"uniform": [4, 900]},
        },
    ),
    EdgeCase(
        "compress_ratio 128, front-aligned",
        {"batch_size": 6, "decode_len": "ragged", "row_alignment": "front", "compress_ratio": 128},
    ),
    EdgeCase(
        "CP = 2, last rank", {"batch_size": 40, "cp_size": 2, "cp_rank": "last", "context_len": {"uniform": [1, 40]}}
    ),
    EdgeCase(
        "CP = 8, interleave 4, first rank",
        {"batch_size": 40, "cp_size": 8, "cp_interleave": 4, "padding": 0.2, "context_len": {"uniform": [1, 90]}},
    ),
    EdgeCase(
        "CP = 4, interleave 64, compress_ratio 4, last rank",
        _CP | {"compress_ratio": 4, "cp_interleave": 64},
    ),
    EdgeCase(
        "CP = 4, ragged rows, front-aligned",
        _CP | {"decode_len": "ragged", "row_alignment": "front", "cp_interleave": 1},
    ),
    EdgeCase(
        "B = 257", {"batch_size": 257, "max_decode_len": 3, "padding": 0.1, "context_len": {"uniform": [1, 163840]}}
    ),
]

# Random lengths, so that a graph that keeps the lengths of its capture is wrong.
_BIG = {"batch_size": 9, "context_len": {"uniform": [4, 2000]}}
_SMALL = {"batch_size": 2, "max_decode_len": 3, "context_len": {"uniform": [4, 200]}}
SEQUENCES = {"big-small-big": (_BIG, _SMALL, _BIG), "big-padded-big": (_BIG, _BIG | {"padding": 0.5}, _BIG)}


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


operator = Operator(
    name="decode_native",
    summary="(B, L) context lengths for kernels that take several query tokens per request",
    axes=(*axes.DECODE_STEP, axes.COMPRESS_RATIO, ROW_ALIGNMENT, *CONTEXT_PARALLEL, axes.MAX_NUM_BATCHED_TOKENS),
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    indices={"context_lens": ("b", "j")},
    varied=varied,
    baseline="chain_clamp",
    rules=(
        *axes.DECODE_STEP_RULES,
        Rule(
            "batch_size x max_decode_len ({batch_size} x {max_decode_len}) must not exceed max_num_batched_tokens "
            "({max_num_batched_tokens})",
            lambda p: p.batch_size * p.max_decode_len <= p.max_num_batched_tokens,
        ),
        Rule(
            "cp_interleave ({cp_interleave}) must be a multiple of compress_ratio ({compress_ratio}) where ranks share "
            "a context",
            lambda p: p.cp_size == 1 or p.cp_interleave % p.compress_ratio == 0,
        ),
    ),
    redundant=lambda p: has_all_tokens(p) or axes.same_batch_elsewhere(p),
)
