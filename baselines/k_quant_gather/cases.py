"""Prefill chunks that break implementations of k_quant_gather, and sequences of chunks through the same workspaces.

Edits change the contents of the generated Inputs (CPU tensors) in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from spec_decode_bench.baselines.workloads.decode_batch import NULL_BLOCK_ID, UNUSED_BLOCK_ID
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.k_quant_gather.operator import Inputs

#: fp32 patterns that arithmetic would change: a signalling and a quiet NaN, both infinities, -0, a denormal.
SCALE_PATTERNS = (0x7F800001, 0x7FC00000, 0x7F800000, -0x00800000, -0x80000000, 0x00000001)


def _empty(*requests: int | slice) -> Callable[[Inputs], None]:
    """These requests lose their tokens, which become slack. Their table rows hold no valid id."""

    def edit(x: Inputs) -> None:
        for request in requests:
            x.seq_lens[request] = 0
            x.block_table[request] = UNUSED_BLOCK_ID
        x.cu_seq_lens[1:] = x.seq_lens.cumsum(0)

    return edit


def _unused_ids(value: int) -> Callable[[Inputs], None]:
    """Unused table columns hold ``value``."""

    def edit(x: Inputs) -> None:
        x.block_table[x.block_table == UNUSED_BLOCK_ID] = value

    return edit


def _shared_prefix(x: Inputs) -> None:
    """The prefix cache gives all requests the first block of request 0."""
    x.block_table[:, 0] = x.block_table[0, 0]


def _highest_block_id(x: Inputs) -> None:
    x.block_table[0, 0] = len(x.kv_cache) - 1


def _special_scales(x: Inputs) -> None:
    """Every scale of a cache with head_dim 128 is one of SCALE_PATTERNS."""
    pattern = torch.tensor(SCALE_PATTERNS, dtype=torch.int32).view(torch.uint8)
    for block in x.kv_cache:
        scales = block.view(-1)[len(block) * 128 :]
        scales.copy_(pattern.repeat(cdiv(len(scales), len(pattern)))[: len(scales)])


_UNIFORM = {"seq_lens": "uniform"}
_FIVE = _UNIFORM | {"batch_size": 5, "chunk_tokens": 500}

# fmt: off
EDGE_CASES = [
    EdgeCase("ragged", {"batch_size": 5, "chunk_tokens": 400}),
    EdgeCase("one token", {"batch_size": 1, "chunk_tokens": 1}),
    EdgeCase("B=1", {"batch_size": 1, "chunk_tokens": 700}),
    # Around the 32 candidates of one search step.
    *(EdgeCase(f"B = {b}", {"batch_size": b, "chunk_tokens": 20 * b}) for b in (7, 8, 9, 31, 32, 33)),
    EdgeCase("B = 1024", {"batch_size": 1024, "chunk_tokens": 1500, "max_model_len": 512}),
    EdgeCase("B > N", {"batch_size": 40, "chunk_tokens": 9}),
    EdgeCase("slack past the last table column", {
        "batch_size": 2, "chunk_tokens": 96, "slack": 64, "block_size": 4, "table_columns": 12,
    }),
    EdgeCase("a token per request", _UNIFORM | {"batch_size": 40, "chunk_tokens": 40}),
    # Around the token counts at which kernels change their tile size.
    *(
        EdgeCase(f"N = {n}", {"batch_size": 2, "chunk_tokens": n})
        for tile in (32, 64, 128, 256, 512)
        for n in (tile - 1, tile)
    ),
    *(EdgeCase(f"slack of {s}", {"batch_size": 3, "chunk_tokens": 200 + s, "slack": s}) for s in (1, 63, 64, 4096)),
    EdgeCase("slack alone", {"batch_size": 3, "chunk_tokens": 200}, _empty(slice(None))),
    EdgeCase("first request empty", _FIVE, _empty(0)),
    EdgeCase("middle requests empty", _FIVE, _empty(1, 2)),
    EdgeCase("last request empty", _FIVE, _empty(-1)),
    EdgeCase("68 empty requests in a row", _UNIFORM | {"batch_size": 70, "chunk_tokens": 700}, _empty(slice(1, 69))),
    *(EdgeCase(f"length {n}", _UNIFORM | {"batch_size": 3, "chunk_tokens": 3 * n}) for n in (63, 64, 65, 128)),
    EdgeCase("last blocks partly filled", _UNIFORM | {"batch_size": 4, "chunk_tokens": 650}),
    EdgeCase("padded pages", {"batch_size": 3, "chunk_tokens": 400, "page_padding": 256}),
    # Before the next one: far rows are tried at the first two, and only bytes, not words, have offsets past 2^31 then.
    EdgeCase("pages 1 byte apart", {"batch_size": 3, "chunk_tokens": 200, "page_padding": 1}),
    EdgeCase("pages 4 bytes apart", {"batch_size": 3, "chunk_tokens": 200, "page_padding": 4}),
    EdgeCase("table stride > W", {"batch_size": 4, "chunk_tokens": 800, "max_model_len": 1024, "table_padding": 3}),
    EdgeCase("W = 1", {"batch_size": 5, "chunk_tokens": 250, "max_model_len": 64}),
    EdgeCase("whole table used", _UNIFORM | {"batch_size": 3, "chunk_tokens": 960, "max_model_len": 320}),
    EdgeCase("unused columns hold -1", {"batch_size": 3, "chunk_tokens": 300, "slack": 70}, _unused_ids(-1)),
    EdgeCase("unused columns hold the null block", {
        "batch_size": 3, "chunk_tokens": 300, "slack": 70,
    }, _unused_ids(NULL_BLOCK_ID)),
    EdgeCase("requests share a block", _UNIFORM | {"batch_size": 4, "chunk_tokens": 400}, _shared_prefix),
    EdgeCase("the cache's last block", _UNIFORM | {"batch_size": 2, "chunk_tokens": 300}, _highest_block_id),
    EdgeCase("scales are NaN and infinite", {"batch_size": 3, "chunk_tokens": 300}, _special_scales),
    EdgeCase("four scales per token", {"batch_size": 3, "chunk_tokens": 300, "slack": 9, "quant_block_size": 32}),
    EdgeCase("two scales per token, head of 64", {
        "batch_size": 3, "chunk_tokens": 300, "head_dim": 64, "quant_block_size": 32,
    }),
    EdgeCase("two scales per token, short requests", {
        "batch_size": 16, "chunk_tokens": 300, "head_dim": 64, "quant_block_size": 32,
    }),
    EdgeCase("head of 256", {"batch_size": 3, "chunk_tokens": 200, "head_dim": 256, "quant_block_size": 128}),
    EdgeCase("head of 1024", {"batch_size": 2, "chunk_tokens": 150, "head_dim": 1024}),
    EdgeCase("head of 16, a scale per value", {
        "batch_size": 3, "chunk_tokens": 200, "head_dim": 16, "quant_block_size": 1,
    }),
    EdgeCase("block size 1", {"batch_size": 3, "chunk_tokens": 40, "block_size": 1, "max_model_len": 40}),
    EdgeCase("block size 16", {"batch_size": 3, "chunk_tokens": 300, "block_size": 16}),
    EdgeCase("block size 256", {"batch_size": 3, "chunk_tokens": 700, "block_size": 256}),
]
# fmt: on

_BIG, _SMALL = {"batch_size": 9, "chunk_tokens": 900}, {"batch_size": 2, "chunk_tokens": 70}
_ONE = {"batch_size": 1, "chunk_tokens": 900}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "big-slack-big": (_BIG, _BIG | {"slack": 300}, _BIG),
    "one request-many-one": (_ONE, _BIG | {"batch_size": 33, "slack": 64}, _ONE),
}
