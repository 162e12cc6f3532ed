"""What the Mamba operators share: axes, decode steps with a past, state tables.

A decode step of a hybrid model depends on the step before it: how many of its draft tokens were accepted, and in which
column of the state table it put the states. Both are drawn here so that they could really have come about.

Defaults are Nemotron-3 Super served with three drafts: Mamba block 1024, max_model_len 262144.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from baselines.workloads import axes
from baselines.workloads.decode_batch import NULL_BLOCK_ID, UNUSED_BLOCK_ID, int32, make_batch
from baselines.workloads.integers import cdiv
from harness.contract import Axis, Point, Rule

#: A request's slots are one group of lanes of one warp in the fused kernels.
MOST_SPECULATIVE_BLOCKS = 31
#: Below it a length is divided exactly by a multiplication with a 31-bit constant.
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
    "mamba_block_size", axes.whole(1), 1024, "tokens between two cached states; not the block size of attention"
)
ACCEPTANCE = Axis(
    "acceptance",
    axes.probability,
    0.8,
    "chance of a draft token to be accepted after its predecessors were",
    axes.plain,
)
CHURN = Axis(
    "churn",
    axes.probability,
    0.0,
    "share of the rows that are new or resumed: nothing is known of their last step",
    axes.plain,
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
        lambda p: p.max_decode_len <= p.num_speculative_blocks + 1,
    ),
    Rule(
        f"num_speculative_blocks ({{num_speculative_blocks}}) must not exceed {MOST_SPECULATIVE_BLOCKS}",
        lambda p: p.num_speculative_blocks <= MOST_SPECULATIVE_BLOCKS,
    ),
    Rule("max_model_len ({max_model_len}) must be less than 2^30", lambda p: p.max_model_len < LONGEST_MODEL_LEN),
    axes.CONTEXT_FITS,
)
SEQS_FIT = Rule(
    "batch_size ({batch_size}) must not exceed max_num_seqs ({max_num_seqs})", lambda p: p.batch_size <= p.max_num_seqs
)


@dataclass(frozen=True)
class Step:
    """CPU tensors, int32. Padding requests stand last: length 0, accepted 1, anchor -1."""

    seq_lens: Tensor  # [B] this step's tokens included
    query_start_loc: Tensor  # [B + 1]
    num_accepted: Tensor  # [B] of the step before: accepted drafts + 1
    anchors: Tensor  # [B] column of the last scheduled block of the step before, -1 where that step is unknown


def table_columns(point: Point) -> int:
    """W: blocks of the longest sequence and k more, which its last step may run into."""
    return cdiv(point.max_model_len, point.mamba_block_size) + point.num_speculative_blocks


def num_accepted(rng: np.random.Generator, acceptance: float, count: int, drafts: int) -> np.ndarray:
    """1 + the number of leading accepted drafts, int64 [count]."""
    return 1 + np.cumprod(rng.random((count, drafts)) < acceptance, axis=1, dtype=np.int64).sum(axis=1)


def make_step(point: Point, seed: int) -> Step:
    """The step before scheduled 1 + k tokens, fewer where the sequence would have outgrown max_model_len."""
    batch, rng, k = make_batch(point, seed), np.random.default_rng([seed, 2]), point.num_speculative_blocks
    computed = (batch.seq_lens - batch.decode_lens).numpy().astype(np.int64)
    accepted = np.minimum(num_accepted(rng, point.acceptance, point.batch_size, k), np.maximum(computed, 1))
    scheduled = np.minimum(1 + k, point.max_model_len - computed + accepted)
    anchors = (computed - accepted + scheduled - 1) // point.mamba_block_size
    unknown = (computed == 0) | (rng.random(point.batch_size) < point.get("churn", 0.0))
    accepted[unknown], anchors[unknown] = 1, -1
    return Step(batch.seq_lens, batch.query_start_loc, int32(accepted), int32(anchors))


def make_state_table(point: Point, step: Step, seed: int) -> Tensor:
    """int32 [B, W] with row stride W + table_padding: the slot of every block of a request and of k more.

    Slots of all requests are distinct. Columns that no step could have reached hold UNUSED_BLOCK_ID, rows of padding
    requests NULL_BLOCK_ID.
    """
    rng, columns, k = np.random.default_rng([seed, 3]), table_columns(point), point.num_speculative_blocks
    storage = np.full((point.batch_size, columns + point.table_padding), UNUSED_BLOCK_ID, dtype=np.int32)
    blocks = np.maximum(-(-step.seq_lens.numpy().astype(np.int64) // point.mamba_block_size), step.anchors.numpy() + 1)
    used = np.where(step.seq_lens.numpy() > 0, blocks + k, 0)
    storage[:, :columns][np.arange(columns) < used[:, None]] = rng.permutation(
        np.arange(1, int(used.sum()) + 1, dtype=np.int32)
    )
    storage[step.seq_lens.numpy() == 0, :columns] = NULL_BLOCK_ID
    return torch.from_numpy(storage)[:, :columns]


def entries_of_windows(first: Tensor, second: Tensor, slots: int) -> int:
    """Distinct entries of a table's rows in two windows of ``slots`` columns, which begin at these columns, [B]
    each.
    """
    return int((slots + (first - second).abs().clamp(max=slots)).sum())


def gather_into(target: Tensor, table: Tensor, columns: Tensor) -> None:
    """target[b, j] = table[b, columns[b, j]] in one launch. Under torch.compile without out=, which it refuses for
    dynamic sizes; Inductor fuses the copy.
    """
    if torch.compiler.is_compiling():
        target.copy_(torch.gather(table, 1, columns))
    else:
        torch.gather(table, 1, columns, out=target)


def last_block(tokens: int, block_size: int) -> int:
    """Column of the block that holds the last of ``tokens`` tokens; 0 where there is none."""
    return max(cdiv(tokens, block_size) - 1, 0)
