"""Decode steps of hybrid attention-Mamba models: axes, rules, steps with a history, state tables.

A step depends on the step before it: how many of its drafts were accepted, and which column of the state table its
last token was scheduled into (the anchor). Both are drawn so that a real engine could have produced them.

Defaults: Nemotron-3 Super served with three drafts per step, Mamba block 1024, max_model_len 262144.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads.decode_batch import (
    NULL_BLOCK_ID,
    UNUSED_BLOCK_ID,
    accepted_drafts,
    int32,
    make_batch,
)
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Axis, Point, Rule

#: The fused kernels give a request one lane per slot, 1 + k of them, inside one warp.
MOST_SPECULATIVE_BLOCKS = 31
#: Of a state table of which a few columns are read.
MOST_ENTRIES = 2**24
#: Below it a length is divided exactly by multiplying with a 31-bit constant (integers.reciprocal).
LONGEST_MODEL_LEN = 2**30

NUM_SPECULATIVE_BLOCKS = Axis(
    "num_speculative_blocks",
    axes.whole(1),
    3,
    "state slots per request beyond the running one (k): one per draft token",
)
MAX_DECODE_LEN = replace(
    axes.MAX_DECODE_LEN,
    default=lambda p: p.num_speculative_blocks + 1,
    doc="longest row of this step (L), at most 1 + k",
)
MAX_MODEL_LEN = replace(axes.MAX_MODEL_LEN, default=262144)
MAMBA_BLOCK_SIZE = Axis(
    "mamba_block_size",
    axes.whole(1),
    1024,
    "tokens between two cached states; not the block size of attention",
    used={128: "a chunk of Nemotron-H", 256: "a chunk of Bamba and Granite 4"},
    idle=axes.lies_in_one("mamba_block_size"),
)
ACCEPTANCE = replace(axes.ACCEPTANCE, default=0.8)
CHURN = Axis(
    "churn",
    axes.probability,
    0.0,
    "share of the rows that are new or resumed, so that their previous step is unknown",
    axes.plain,
    idle=axes.has_no_request,
)
MAX_NUM_SEQS = Axis(
    "max_num_seqs", axes.whole(1), lambda p: max(256, p.batch_size), "capacity of the per-request buffers, in requests"
)

DECODE_STEP = (
    axes.BATCH_SIZE,
    NUM_SPECULATIVE_BLOCKS,
    MAX_DECODE_LEN,
    axes.DECODE_LEN,
    axes.CONTEXT_LEN,
    MAX_MODEL_LEN,
    axes.PADDING,
    MAMBA_BLOCK_SIZE,
    ACCEPTANCE,
)
RULES = (
    Rule(
        "max_decode_len ({max_decode_len}) must not exceed 1 + num_speculative_blocks (1 + {num_speculative_blocks})",
        lambda p: p.max_decode_len <= slots_per_step(p),
    ),
    Rule(
        f"num_speculative_blocks ({{num_speculative_blocks}}) must not exceed {MOST_SPECULATIVE_BLOCKS}",
        lambda p: p.num_speculative_blocks <= MOST_SPECULATIVE_BLOCKS,
    ),
    Rule("max_model_len ({max_model_len}) must be less than 2^30", lambda p: p.max_model_len < LONGEST_MODEL_LEN),
    axes.CONTEXT_FITS,
    axes.ROW_FITS,
)


@dataclass(frozen=True)
class Step:
    """CPU tensors, int32. Padding requests are the last rows: length 0, accepted 1, anchor -1."""

    seq_lens: torch.Tensor  # [B] including this step's tokens
    query_start_loc: torch.Tensor  # [B + 1]
    num_accepted: torch.Tensor  # [B] accepted drafts + 1 of the previous step
    anchors: torch.Tensor  # [B] column of the last block the previous step scheduled, -1 = unknown


def slots_per_step(point: Point) -> int:
    """1 + k: state slots that one request reads or writes in a step."""
    return 1 + point.num_speculative_blocks


def log2_lanes(slots: int) -> int:
    """ceil(log2(slots)). Kernels give a request a power of two of lanes, so that they never straddle two warps."""
    return (slots - 1).bit_length()


def table_columns(point: Point) -> int:
    """W: blocks of the longest sequence, and k more because its last step may reach beyond them."""
    return cdiv(point.max_model_len, point.mamba_block_size) + point.num_speculative_blocks


def table_stride(point: Point) -> int:
    """Elements from one row of the table of states to the next."""
    return table_columns(point) + point.table_padding


def last_block(tokens: int, block_size: int) -> int:
    """Column of the block that holds the last of ``tokens`` tokens; 0 for no tokens."""
    return max(cdiv(tokens, block_size) - 1, 0)


def make_step(point: Point, seed: int) -> Step:
    """One legal step. The previous one scheduled 1 + k tokens, or fewer where max_model_len ended the sequence."""
    batch, rng, k = make_batch(point, seed), np.random.default_rng([seed, 2]), point.num_speculative_blocks
    computed = (batch.seq_lens - batch.decode_lens).numpy().astype(np.int64)
    drafts = accepted_drafts(rng, point.acceptance, point.batch_size, k)
    accepted = np.minimum(1 + drafts, np.maximum(computed, 1))
    scheduled = np.minimum(1 + k, point.max_model_len - computed + accepted)
    anchors = (computed - accepted + scheduled - 1) // point.mamba_block_size
    unknown = (computed == 0) | (rng.random(point.batch_size) < point.get("churn", 0.0))
    accepted[unknown], anchors[unknown] = 1, -1
    return Step(batch.seq_lens, batch.query_start_loc, int32(accepted), int32(anchors))


def make_state_table(point: Point, step: Step, seed: int, read: int | None = None) -> torch.Tensor:
    """int32 [B, W] with row stride W + table_padding: the state slot of every block of a request and of k more.

    All slots are distinct. Columns that no step can reach hold UNUSED_BLOCK_ID, padding requests NULL_BLOCK_ID.

    read: columns that are read of it; of a table of over MOST_ENTRIES nothing else is made.
    """
    rng, columns, k = np.random.default_rng([seed, 3]), table_columns(point), point.num_speculative_blocks
    seq_lens = step.seq_lens.numpy().astype(np.int64)
    blocks = np.maximum(cdiv(seq_lens, point.mamba_block_size), step.anchors.numpy() + 1)
    stride = columns + point.table_padding
    if read is not None and point.batch_size * stride > MOST_ENTRIES:
        stride = columns = read
    used = np.minimum(np.where(seq_lens > 0, blocks + k, 0), columns)
    storage = np.full((point.batch_size, stride), UNUSED_BLOCK_ID, dtype=np.int32)
    table = storage[:, :columns]
    table[np.arange(columns) < used[:, None]] = rng.permutation(np.arange(1, int(used.sum()) + 1, dtype=np.int32))
    table[seq_lens == 0] = NULL_BLOCK_ID
    return torch.from_numpy(storage)[:, :columns]


def distinct_entries(first: int, second: int, slots: int) -> int:
    """Table entries covered by two windows of ``slots`` columns that begin at columns ``first`` and ``second``."""
    return slots + min(abs(first - second), slots)


def gather_into(target: torch.Tensor, table: torch.Tensor, columns: torch.Tensor) -> None:
    """target[b, j] = table[b, columns[b, j]] in one launch; ``columns`` is int64 with the shape of ``target``.

    torch.compile refuses ``out=`` with dynamic sizes; there a copy is used instead, which Inductor fuses.
    """
    if torch.compiler.is_compiling():
        target.copy_(torch.gather(table, 1, columns))
    else:
        torch.gather(table, 1, columns, out=target)
