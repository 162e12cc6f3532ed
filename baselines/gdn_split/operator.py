"""gdn_split: a batch of speculative and plain requests, taken apart for layers of linear attention (GDN).

GDN layers verify drafts with one kernel, which reads the state after the last accepted token and writes one after each
draft, and run chunks of prompts and plain decodes with another. Each takes its requests and tokens from lists. Of the B
requests of a step, S are speculative: num_draft_tokens[b] >= 0, also 0 for one that drafted nothing, whose state still
depends on what was accepted before. The N = B - S plain ones have -1; so does padding, which comes last. Request b has
the tokens t from query_start_loc[b] to query_start_loc[b + 1]. For the i-th speculative request b and the i-th plain
one c, both in batch order, and A tokens in all, A' of them speculative:

    spec_mask[b] = num_draft_tokens[b] >= 0                                        all b
    spec_state_slots[i, j] = block_table[b, j]                                     0 <= j <= k;  0 from S to B
    spec_accepted[i] = num_accepted_tokens[b]                                      1 from S to B
    spec_query_start_loc[i] = tokens of speculative requests before b              A' from S to B
    spec_tokens = the tokens t of speculative requests, in order
    plain_state_slots[i] = block_table[c, 0]                                       0 from N to B
    has_initial_state[i] = seq_lens[c] > query_start_loc[c + 1] - query_start_loc[c]     false from N to B
    plain_query_start_loc[i] = tokens of plain requests before c                   A - A' from N to B
    plain_tokens = the tokens t of plain requests, in order

Rows from B on, and tokens behind the last one of a list, keep their contents. The host counts requests and tokens of
both kinds; which they are changes under a captured graph.

vLLM 0.33 (v1/attention/backends/gdn_attn.py:GDNAttentionMetadataBuilder.build) does this for each group of layers in
PyTorch operators, with the mask on the host. It makes no list of a kind that does not occur, and resets the rows behind
a kind's last request only where all requests are of that kind. Its table holds the slots of the states in use, in cache
mode align those of mamba_align_step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from spec_decode_bench.baselines.gdn_split.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.context_lengths import plain
from spec_decode_bench.baselines.workloads.decode_batch import (
    NULL_BLOCK_ID,
    accepted_drafts,
    int32,
    num_query_tokens,
    query_lens,
)
from spec_decode_bench.baselines.workloads.written import Written
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, Bool, Tensors, field

#: Tokens of a request before the step, at most.
LONGEST_PAST = 8192


def _num_decodes(point: Point) -> int:
    return slots.num_real(point) - point.prefills


def num_spec_requests(point: Point) -> int:
    """S."""
    decodes = _num_decodes(point)
    # Rounded first: 0.07 * 100 is a little more than 7 in floating point.
    return decodes - math.ceil(round(point.plain * decodes, 6))


def num_spec_tokens(point: Point) -> int:
    """A'."""
    return num_query_tokens(point.decode_len, num_spec_requests(point), point.max_decode_len)


def num_plain_tokens(point: Point) -> int:
    """A - A'."""
    return _num_decodes(point) - num_spec_requests(point) + point.prefills * point.prefill_len


def num_tokens(point: Point) -> int:
    """A."""
    return num_spec_tokens(point) + num_plain_tokens(point)


def _has_one_length(point: Point) -> bool:
    """Whether all patterns of decode_len are one."""
    return num_spec_requests(point) <= 1 or point.max_decode_len == 1


PLAIN = Axis(
    "plain",
    axes.probability,
    0.0,
    "share of the decodes that is not speculative and has one token, rounded up",
    plain,
    idle=lambda p: _num_decodes(p) <= 0,
)
FRESH = Axis(
    "fresh",
    axes.probability,
    0.5,
    "share of the prefill chunks that are a request's first one",
    plain,
    idle=lambda p: not p.prefills,
)
AXES = slots.bounded(
    axes.BATCH_SIZE,
    axes.NEXT_N,
    replace(axes.MAX_DECODE_LEN, idle=lambda p: num_spec_requests(p) == 0),
    replace(axes.DECODE_LEN, idle=_has_one_length),
    slots.PADDING,
    slots.PREFILLS,
    slots.PREFILL_LEN,
    PLAIN,
    FRESH,
    replace(axes.ACCEPTANCE, idle=lambda p: num_spec_requests(p) == 0 or p.next_n == 1),
    replace(axes.TABLE_PADDING, doc="int32 between two rows of the table (stride - next_n)"),
    slots.MAX_NUM_SEQS,
    axes.MAX_NUM_BATCHED_TOKENS,
    axes.contents(CONTENTS),
)


class Inputs(Tensors):
    query_start_loc: I32["batch_size + 1"]  # non-decreasing, from 0
    num_draft_tokens: I32["batch_size"]  # -1 = plain
    num_accepted_tokens: I32["batch_size"]  # accepted drafts of the step before + 1
    seq_lens: I32["batch_size"]  # this step's tokens included; 0 = padding request
    block_table: I32["batch_size", "next_n"] = field(strided="next_n + table_padding")  # slots of states; padding 0
    num_spec_requests: int  # S
    num_spec_tokens: int  # A'
    num_tokens: int  # A


class Outputs(Tensors):
    spec_mask: Bool["max_num_seqs"] = field(read="batch_size")
    spec_state_slots: I32["max_num_seqs", "next_n"] = field(read="batch_size")
    spec_accepted: I32["max_num_seqs"] = field(read="batch_size")
    spec_query_start_loc: I32["max_num_seqs + 1"] = field(read="batch_size + 1")
    spec_tokens: I32["max_num_batched_tokens"] = field(read=num_spec_tokens)
    plain_state_slots: I32["max_num_seqs"] = field(read="batch_size")
    has_initial_state: Bool["max_num_seqs"] = field(read="batch_size")
    plain_query_start_loc: I32["max_num_seqs + 1"] = field(read="batch_size + 1")
    plain_tokens: I32["max_num_batched_tokens"] = field(read=num_plain_tokens)


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    """Decodes of both kinds and prefill chunks in any order, then padding."""
    rng = np.random.default_rng(seed)
    rows, real, decodes, spec = point.batch_size, slots.num_real(point), _num_decodes(point), num_spec_requests(point)
    query, drafts, past = (np.zeros(rows, dtype=np.int64) for _ in range(3))
    drafts[:] = -1
    query[:spec] = query_lens(point.decode_len, spec, point.max_decode_len)
    query[spec:decodes], query[decodes:real] = 1, point.prefill_len
    drafts[:spec] = query[:spec] - 1
    past[:real] = rng.integers(1, LONGEST_PAST + 1, real)
    past[decodes:real][rng.random(real - decodes) < point.fresh] = 0
    accepted = np.full(rows, slots.UNUSED)
    accepted[:real] = 1 + accepted_drafts(rng, point.acceptance, real, point.next_n - 1)
    table = np.full((rows, point.next_n + point.table_padding), slots.UNUSED)
    table[:, : point.next_n] = 1 + rng.permutation(rows * point.next_n).reshape(rows, -1)
    table[real:, : point.next_n] = NULL_BLOCK_ID
    order = np.append(rng.permutation(real), np.arange(real, rows))
    return Inputs(
        query_start_loc=int32(np.append(0, query[order].cumsum())),
        num_draft_tokens=int32(drafts[order]),
        num_accepted_tokens=int32(accepted),
        seq_lens=int32((past + query)[order]),
        block_table=int32(table)[:, : point.next_n],
        num_spec_requests=spec,
        num_spec_tokens=num_spec_tokens(point),
        num_tokens=num_tokens(point),
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """Request by request, token by token."""
    written = Written(vars(Outputs.empty(point)))
    put = written.put
    start, drafts, table = x.query_start_loc.tolist(), x.num_draft_tokens.tolist(), x.block_table.tolist()
    accepted, seq_lens = x.num_accepted_tokens.tolist(), x.seq_lens.tolist()
    spec, plain, spec_tokens, plain_tokens = 0, 0, 0, 0
    for b in range(point.batch_size):
        put("spec_mask", b, drafts[b] >= 0)
        if drafts[b] >= 0:
            put("spec_state_slots", spec, table[b])
            put("spec_accepted", spec, accepted[b])
            put("spec_query_start_loc", spec, spec_tokens)
            for t in range(start[b], start[b + 1]):
                put("spec_tokens", spec_tokens, t)
                spec_tokens += 1
            spec += 1
        else:
            put("plain_state_slots", plain, table[b][0])
            put("has_initial_state", plain, seq_lens[b] > start[b + 1] - start[b])
            put("plain_query_start_loc", plain, plain_tokens)
            for t in range(start[b], start[b + 1]):
                put("plain_tokens", plain_tokens, t)
                plain_tokens += 1
            plain += 1
    for i in range(spec, point.batch_size):
        put("spec_state_slots", i, NULL_BLOCK_ID)
        put("spec_accepted", i, 1)
    for i in range(plain, point.batch_size):
        put("plain_state_slots", i, NULL_BLOCK_ID)
        put("has_initial_state", i, False)
    put("spec_query_start_loc", slice(spec, point.batch_size + 1), spec_tokens)
    put("plain_query_start_loc", slice(plain, point.batch_size + 1), plain_tokens)
    return written.expected()


def bytes_moved(point: Point, x: Inputs) -> int:
    """Boundaries and kinds once, of a speculative request 1 + k slots and a count, of a plain one a slot and a length;
    a row of every output, and each token once.
    """
    rows, spec = point.batch_size, x.num_spec_requests
    read = 4 * (2 * rows + 1) + 4 * spec * (point.next_n + 1) + 8 * (rows - spec)
    return read + rows * (2 + 4 * (point.next_n + 2)) + 8 * (rows + 1) + 4 * x.num_tokens


def redundant(point: Point) -> str | None:
    """Why another point of a full grid has the same step; None where none has."""
    if point.padding and slots.num_real(point) == point.batch_size:
        return f"padding {point.padding:g} makes no padding row in a batch of {point.batch_size}"
    if point.decode_len != "uniform" and _has_one_length(point):
        return f"a {point.decode_len} step of {num_spec_requests(point)} speculative request(s) is uniform"
    return None


operator = Operator(
    name="gdn_split",
    summary="speculative and plain requests of a batch taken apart: state slots, boundaries, tokens and counts",
    axes=AXES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    baseline="op_chain",
    rules=(
        axes.DECODE_LEN_FITS,
        slots.PREFILLS_FIT,
        slots.SEQS_FIT,
        Rule(
            "the step's tokens (batch_size {batch_size}, max_decode_len {max_decode_len}, prefills {prefills} x "
            "{prefill_len}) must not exceed max_num_batched_tokens ({max_num_batched_tokens})",
            lambda p: num_tokens(p) <= p.max_num_batched_tokens,
        ),
        Rule(
            "batch_size ({batch_size}) x next_n ({next_n}) must be less than 2^31, as slots are int32",
            lambda p: p.batch_size * p.next_n < 2**31,
        ),
    ),
    redundant=redundant,
)
