"""One legal step of an engine with speculative decoding: what the previous step left behind and what the scheduler
says.

Shapes and host integers follow from the point alone; the seed moves contents: which request stood where, how many of
its drafts were accepted, its context.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from baselines.workloads import axes
from baselines.workloads.context_lengths import draw_lengths, plain
from baselines.workloads.decode_batch import int32
from harness.contract import HOST, Axis, Point, Rule

#: Stands in rows that no request had: added to anything it shows.
UNUSED = 0x7FFFFF00


BATCH_SIZE = Axis(
    "batch_size", axes.whole(0), 32, "requests of the step (B), padding left out; 0 is an idle data-parallel rank"
)
NUM_PREV_REQS = Axis("num_prev_reqs", axes.whole(0), lambda p: p.batch_size, "requests of the previous step (P)")
CHURN = Axis(
    "churn",
    axes.probability,
    0.0,
    "share of the batch that is new or resumed (rounded); more where P is too small",
    plain,
)
ROW_ORDER = Axis(
    "row_order",
    axes.choice("kept", "permuted"),
    "kept",
    "order of the surviving requests against the previous step's rows",
)
SCHEDULING = Axis(
    "scheduling",
    axes.choice("async", "sync"),
    "async",
    "whether the CPU counts the previous step's drafts as accepted (async) or knows which were (sync)",
)
ACCEPTANCE = Axis(
    "acceptance", axes.probability, 0.75, "probability that a draft is accepted, given that those before it were", plain
)
PREFILLS = Axis(
    "prefills", axes.whole(0), 0, "requests of the batch, the last ones, that run a prefill chunk instead of a decode"
)
PREFILL_LEN = Axis("prefill_len", axes.whole(1), 512, "tokens of each prefill chunk")
MAX_NUM_SEQS = Axis("max_num_seqs", axes.whole(1), 1024, "capacity of the per-request buffers")

AXES = (
    BATCH_SIZE,
    axes.NEXT_N,
    axes.MAX_DECODE_LEN,
    axes.DECODE_LEN,
    axes.CONTEXT_LEN,
    axes.MAX_MODEL_LEN,
    NUM_PREV_REQS,
    CHURN,
    ROW_ORDER,
    SCHEDULING,
    ACCEPTANCE,
    PREFILLS,
    PREFILL_LEN,
    MAX_NUM_SEQS,
    axes.MAX_NUM_BATCHED_TOKENS,
)

RULES = (
    *axes.DECODE_STEP_RULES,
    Rule("prefills ({prefills}) must not exceed batch_size ({batch_size})", lambda p: p.prefills <= p.batch_size),
    Rule(
        "batch_size ({batch_size}) and num_prev_reqs ({num_prev_reqs}) must not exceed max_num_seqs ({max_num_seqs})",
        lambda p: max(p.batch_size, p.num_prev_reqs) <= p.max_num_seqs,
    ),
    Rule(
        "max_model_len ({max_model_len}) must hold two steps: max_decode_len ({max_decode_len}) + next_n ({next_n}), or a "
        "chunk of prefill_len ({prefill_len})",
        lambda p: p.max_model_len >= max(p.max_decode_len + p.next_n, p.prefill_len if p.prefills else 0),
    ),
    Rule(
        "the step's tokens (batch_size {batch_size}, max_decode_len {max_decode_len}, prefills {prefills} x {prefill_len}) "
        "must not exceed max_num_batched_tokens ({max_num_batched_tokens})",
        lambda p: num_tokens(p) <= p.max_num_batched_tokens,
    ),
)


def redundant(point: Point) -> str | None:
    """Why this point's step equals one that another point of a full grid describes; None where it is its own."""
    if point.decode_len != "uniform" and max(point.batch_size, point.num_prev_reqs) <= 1:
        return f"a {point.decode_len} step of one request is uniform"
    if point.row_order == "permuted" and max(point.batch_size, point.num_prev_reqs) <= 1:
        return "one request has one order"
    if point.churn and round(point.churn * point.batch_size) == 0:
        return f"churn {point.churn:g} of {point.batch_size} request(s) is none"
    if point.prefill_len != PREFILL_LEN.default and not point.prefills:
        return "no request runs a prefill chunk"
    return None


def _rows(pattern: str, count: int, top: int) -> np.ndarray:
    """Query rows of ``count`` requests in no particular order; one of them has ``top``."""
    if pattern == "ragged":
        return top - np.arange(count) % top
    lengths = np.full(count, top)
    if pattern == "mixed" and count > 1:
        lengths[count - max(count // 10, 1) :] = 1
    return lengths


def num_tokens(point: Point) -> int:
    """A: query tokens of the step."""
    decodes = _rows(point.decode_len, point.batch_size - point.prefills, point.max_decode_len)
    return int(decodes.sum()) + point.prefills * point.prefill_len


@dataclass(frozen=True)
class Inputs:
    prev_num_computed: Tensor  # [max_num_seqs] int32, by rows of the previous step
    valid: (
        Tensor  # [max_num_seqs] int32, accepted drafts + 1, by rows of the previous step; >= 1 where there were drafts
    )
    query_start_loc: Tensor  # [B + 1] int32, prefix of num_scheduled
    to_device: Tensor = field(metadata=HOST)  # [2 B + P] int32: prev_pos, num_computed_cpu, prev_drafts
    num_scheduled: Tensor = field(metadata=HOST)  # [B] int32, query tokens of this step
    num_tokens: int  # A, their sum

    @property
    def prev_pos(self) -> Tensor:
        """[B] view: row in the previous step, -1 = none. No two requests share one."""
        return self.to_device[: len(self.num_scheduled)]

    @property
    def num_computed_cpu(self) -> Tensor:
        """[B] view: computed tokens with all drafts of the previous step counted as accepted."""
        return self.to_device[len(self.num_scheduled) : 2 * len(self.num_scheduled)]

    @property
    def prev_drafts(self) -> Tensor:
        """[P] view, by rows of the previous step."""
        return self.to_device[2 * len(self.num_scheduled) :]


def make_inputs(point: Point, seed: int) -> Inputs:
    rng = np.random.default_rng(seed)
    rows, prev_rows, decodes = point.batch_size, point.num_prev_reqs, point.batch_size - point.prefills
    scheduled = np.full(rows, point.prefill_len)
    scheduled[:decodes] = rng.permutation(_rows(point.decode_len, decodes, point.max_decode_len))

    survivors = np.sort(rng.choice(rows, min(rows - round(point.churn * rows), prev_rows), replace=False))
    sources = rng.choice(prev_rows, len(survivors), replace=False)
    prev_pos = np.full(rows, -1)
    prev_pos[survivors] = np.sort(sources) if point.row_order == "kept" else sources

    drafts = rng.permutation(_rows(point.decode_len, prev_rows, point.next_n) - 1)
    drafts[prev_pos[decodes:][prev_pos[decodes:] >= 0]] = 0
    # Without drafts a row produced its one token, or none where a prompt was still being read.
    accepted = (rng.random((prev_rows, point.next_n - 1)) < point.acceptance).cumprod(axis=1)
    accepted = np.where(np.arange(point.next_n - 1) < drafts[:, None], accepted, 0).sum(axis=1)
    valid = np.where(drafts > 0, accepted + 1, rng.integers(0, 2, prev_rows))

    had_drafts = (prev_pos >= 0) & (np.append(drafts, 0)[prev_pos] > 0)
    gained = np.where(had_drafts, np.append(valid, 0)[prev_pos], 0)
    rejected = np.where(had_drafts, np.append(drafts, 0)[prev_pos] + 1 - gained, 0)
    lens = np.clip(draw_lengths(point.context_len, rows, rng), scheduled + gained, point.max_model_len - rejected)
    computed = lens - scheduled

    before = np.full(point.max_num_seqs, UNUSED)
    before[:prev_rows] = rng.integers(1, point.max_model_len, prev_rows)  # those of finished requests stay
    progress = np.where(had_drafts, gained, np.where(np.append(valid, 0)[prev_pos] > 0, 1, point.prefill_len))
    before[prev_pos[survivors]] = np.maximum(computed - progress, 0)[survivors]
    believed = computed + (rejected if point.scheduling == "async" else 0)
    return Inputs(
        prev_num_computed=int32(before),
        valid=int32(np.append(valid, np.full(point.max_num_seqs - prev_rows, UNUSED))),
        query_start_loc=int32(np.append(0, scheduled.cumsum())),
        to_device=int32(np.concatenate([prev_pos, believed, drafts])),
        num_scheduled=int32(scheduled),
        num_tokens=num_tokens(point),
    )
