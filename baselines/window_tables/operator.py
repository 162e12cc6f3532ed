"""window_tables: what DeepSeek-V4's attention reads per decode token: sliding window, compressed slots, C128A lists.

Its layers attend to a window of W tokens and to states that stand for 4 (C4A) or 128 tokens (C128A) each. A C4A layer
chooses states by an indexer, a C128A layer reads all of them. Windows and states of both kinds have block tables and
slots of their own. Token t of the T launched ones, of request b and at position p (as in token_requests; of padding
tokens b = p = 0), where slot(table, i, K) = table[b, i // K] * K + i % K:

    requests[t] = b                                       is_valid_token[t] = slot_mappings[0, t] >= 0
    first = max(p - W + 1, 0)
    swa_lens[t] = p + 1 - first where the token is valid, else 0
    swa_indices[t, i] = slot(window_table, first + i, window_block)                 i < swa_lens[t], else -1 (i < W)
    c4_slots[t] = slot(c4_table, p // 4, 32 * C)          where 4 divides p + 1 and slot_mappings[1, t] >= 0, else -1
    c128_slots[t] = slot(c128_table, p // 128, C)         where 128 divides p + 1 and slot_mappings[2, t] >= 0, else -1
    c128_indices[t, i] = slot(c128_table, i, C)           i < (p + 1) // 128, else -1 (i < list_width)
    c128_lens[t] = (p + 1) // 128 where slot_mappings[2, t] >= 0, else 0
    swa_lens = 0, c4_slots = c128_slots = -1              from T on, over the whole capacity

A state is written with its last token. A token without a slot (-1) is padding, of a dummy request, or recomputed. All
else keeps its contents. Rows of c128_indices lie the capacity apart, however many columns a step fills: a captured
kernel has the stride of its capture (vLLM #52448). list_width is a power of two of at least 128, up to the capacity,
and holds the longest sequence that the host knows of.

vLLM 0.33 takes 11 launches in a decode step: v1/attention/backends/mla/sparse_swa.py:build with
_compute_swa_indices_and_lens_kernel, and models/deepseek_v4/sparse_mla.py:build once per ratio, with
CompressedSlotMappingKernel (v1/attention/backends/mla/compressor_utils.py) and BuildC128ATopkMetadataKernel. Left out:
prefill chunks, the wider rows of DSpark's drafter and of images, V4.1's bounded replay, context parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.window_tables.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.decode_batch import int32, make_batch, max_tokens
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.written import Written, as_arrays
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, I64, Bool, Tensors, field

#: Columns by which FlashMLA takes lists.
LIST_ALIGNMENT = 128

WINDOW_SIZE = Axis("window_size", axes.whole(1), 128, "tokens of the sliding window (W)", used={128: "DeepSeek-V4"})
WINDOW_BLOCK = Axis(
    "window_block",
    axes.whole(1),
    64,
    "KV tokens per block of the windows",
    largest=1025,
    used={64: "vLLM", 256: "what vLLM's backend prefers"},
)
C128_BLOCK = Axis(
    "c128_block",
    axes.whole(1, 2**20),
    2,
    "C128A states per block (C), which is of 128 times as many tokens, as of C4A",
    largest=65,
    used={2: "blocks of 256 tokens, vLLM's"},
)


def num_tokens(point: Point) -> int:
    """T: the tokens that the host launches for, token padding included."""
    return max_tokens(point) + point.token_padding


AXES = slots.bounded(
    axes.BATCH_SIZE,
    axes.NEXT_N,
    axes.MAX_DECODE_LEN,
    axes.DECODE_LEN,
    axes.CONTEXT_LEN,
    axes.MAX_MODEL_LEN,
    axes.PADDING,
    axes.TOKEN_PADDING,
    axes.HOST_LENS,
    WINDOW_SIZE,
    WINDOW_BLOCK,
    C128_BLOCK,
    replace(axes.MAX_NUM_BATCHED_TOKENS, default=lambda p: max(1024, num_tokens(p))),
    axes.contents(CONTENTS),
    largest={
        "batch_size": 2049,
        "max_num_batched_tokens": 4097,
        "window_size": 1025,
        **dict.fromkeys(("next_n", "max_decode_len"), 33),
        "token_padding": 1025,
    },
)


def window_columns(point: Point) -> int:
    return cdiv(point.max_model_len, point.window_block)


def state_columns(point: Point) -> int:
    """Of both tables of states."""
    return cdiv(point.max_model_len, 128 * point.c128_block)


def list_capacity(point: Point) -> int:
    """Columns of c128_indices."""
    return cdiv(cdiv(point.max_model_len, 128), LIST_ALIGNMENT) * LIST_ALIGNMENT


def list_width(point: Point) -> int:
    """Those that a step fills, from the host's bound of its lengths."""
    states = max(axes.longest_sequence(point), point.max_decode_len) // 128
    return min(max(1 << (max(states, 1) - 1).bit_length(), LIST_ALIGNMENT), list_capacity(point))


class Inputs(Tensors):
    query_start_loc: I32["batch_size + 1"]  # non-decreasing; authoritative
    query_start_loc_cpu: I32["batch_size + 1"] = field(host=True)  # L per request where host_lens = stale
    seq_lens: I32["batch_size"]  # this step's tokens included; 0 = padding request
    positions: I64["max_num_batched_tokens"]  # 0 in padding tokens, anything behind
    slot_mappings: I64[3, "max_num_batched_tokens"]  # of windows, C4A, C128A; -1 = none, anything behind T
    window_table: I32["batch_size", window_columns]
    c4_table: I32["batch_size", state_columns]
    c128_table: I32["batch_size", state_columns]
    num_tokens: int  # T


class Outputs(Tensors):
    requests: I32["max_num_batched_tokens"] = field(read=num_tokens)
    is_valid_token: Bool["max_num_batched_tokens"] = field(read=num_tokens)
    swa_indices: I32["max_num_batched_tokens", "window_size"] = field(read=num_tokens)
    swa_lens: I32["max_num_batched_tokens"]
    c4_slots: I64["max_num_batched_tokens"]
    c128_slots: I64["max_num_batched_tokens"]
    c128_indices: I32["max_num_batched_tokens", list_capacity] = field(read=(num_tokens, list_width))
    c128_lens: I32["max_num_batched_tokens"] = field(read=num_tokens)


def _table(lens: np.ndarray, block: int, columns: int, rng: np.random.Generator) -> torch.Tensor:
    """Ids 1 .. (used blocks) in random order, each once; UNUSED behind a sequence, 0 in rows of padding."""
    table, used = np.full((len(lens), columns), slots.UNUSED), -(-lens // block)
    table[np.arange(columns) < used[:, None]] = 1 + rng.permutation(int(used.sum()))
    table[lens == 0] = 0
    return int32(table)


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    batch, rng = make_batch(point, seed), np.random.default_rng([seed, 1])
    lens, states = batch.seq_lens.numpy().astype(np.int64), 128 * point.c128_block
    start, tokens, capacity = batch.query_start_loc, num_tokens(point), point.max_num_batched_tokens
    actual = int(start[-1])
    positions, slot_mappings = (torch.full(size, slots.UNUSED) for size in ((capacity,), (3, capacity)))
    positions[:tokens], slot_mappings[:, :tokens] = 0, -1
    request = torch.repeat_interleave(torch.arange(point.batch_size), torch.diff(start))
    positions[:actual] = torch.arange(actual) - (start[1:] - batch.seq_lens)[request]
    window, c4, c128 = (
        _table(lens, block, columns, rng)
        for block, columns in (
            (point.window_block, window_columns(point)),
            (states, state_columns(point)),
            (states, state_columns(point)),
        )
    )
    for row, (table, block) in enumerate(((window, point.window_block), (c4, states), (c128, states))):
        column = positions[:actual] // block
        slot_mappings[row, :actual] = table[request, column].long() * block + positions[:actual] % block
    return Inputs(
        query_start_loc=start,
        query_start_loc_cpu=batch.host_query_start_loc,
        seq_lens=batch.seq_lens,
        positions=positions,
        slot_mappings=slot_mappings,
        window_table=window,
        c4_table=c4,
        c128_table=c128,
        num_tokens=tokens,
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """Token by token."""
    written = Written(vars(Outputs.empty(point)))
    put, x, width, states = written.put, as_arrays(x), list_width(point), point.c128_block
    token = [(0, 0)] * x.num_tokens  # request and position
    for b in range(point.batch_size):
        start, end = int(x.query_start_loc[b]), int(x.query_start_loc[b + 1])
        for t in range(start, end):
            token[t] = b, int(x.seq_lens[b]) - end + t
    for name, behind in (("swa_lens", 0), ("c4_slots", -1), ("c128_slots", -1)):
        put(name, slice(x.num_tokens, None), behind)

    for t, (b, p) in enumerate(token):
        has_window, has_c4, has_c128 = (x.slot_mappings[:, t] >= 0).tolist()
        window = range(max(p - point.window_size + 1, 0), p + 1) if has_window else range(0)
        states_before = range((p + 1) // 128)
        put("requests", t, b)
        put("is_valid_token", t, has_window)
        put("swa_lens", t, len(window))
        put("swa_indices", t, -1)
        put("swa_indices", (t, slice(len(window))), _slots(x.window_table[b], window, point.window_block))
        for name, table, ratio, block, has_slot in (
            ("c4_slots", x.c4_table, 4, 32 * states, has_c4),
            ("c128_slots", x.c128_table, 128, states, has_c128),
        ):
            last = range(p // ratio, p // ratio + 1)
            put(name, t, _slots(table[b], last, block)[0] if (p + 1) % ratio == 0 and has_slot else -1)
        put("c128_lens", t, len(states_before) if has_c128 else 0)
        put("c128_indices", (t, slice(width)), -1)
        put("c128_indices", (t, slice(len(states_before))), _slots(x.c128_table[b], states_before, states))
    return written.expected()


def _slots(row: np.ndarray, entries: range, block: int) -> np.ndarray:
    """int64 slots of entries of a sequence, by its row of a block table."""
    entry = np.arange(entries.start, entries.stop)
    return row[entry // block].astype(np.int64) * block + entry % block


def bytes_moved(point: Point, x: Inputs) -> int:
    """Per request boundaries, length, and the blocks of its windows and of its longest list; per token three slots, its
    rows and six numbers; the tails.
    """
    blocks = 0
    for b, length in enumerate(x.seq_lens.tolist()):
        query = int(x.query_start_loc[b + 1] - x.query_start_loc[b])
        if query:
            first = max(length - query - point.window_size + 1, 0)
            blocks += (length - 1) // point.window_block - first // point.window_block + 1
            blocks += cdiv(length // 128, point.c128_block)
            blocks += length // 4 - (length - query) // 4 + length // 128 - (length - query) // 128
    tokens, behind = x.num_tokens, point.max_num_batched_tokens - x.num_tokens
    per_token = 24 + 4 * (point.window_size + list_width(point)) + 4 + 1 + 4 + 8 + 8 + 4
    return 4 * (2 * point.batch_size + 1 + blocks) + tokens * per_token + behind * 20


def varied(point: Point) -> Mapping[str, Any]:
    """Other lengths up to those that the host knows of, and fewer tokens where it does not count them."""
    other: dict[str, Any] = {"context_len": {"uniform": [1, axes.longest_sequence(point)]}}
    if point.decode_len == "uniform" and point.host_lens == "stale":
        other["decode_len"] = "ragged"
    return other


operator = Operator(
    name="window_tables",
    summary="windows, compressed slots and C128A lists of DeepSeek-V4's attention, token by token",
    axes=AXES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    rules=(
        *axes.DECODE_STEP_RULES,
        Rule(
            "the step's tokens (batch_size {batch_size}, max_decode_len {max_decode_len}, token_padding "
            "{token_padding}) must not exceed max_num_batched_tokens ({max_num_batched_tokens})",
            lambda p: num_tokens(p) <= p.max_num_batched_tokens,
        ),
        Rule(
            "the KV slots of batch_size ({batch_size}) requests of max_model_len ({max_model_len}) tokens in blocks of "
            "window_block ({window_block}) or c128_block ({c128_block}) must be less than 2^31, as they are int32",
            lambda p: all(
                (p.batch_size * cdiv(p.max_model_len, block) + 1) * block < 2**31
                for block in (p.window_block, 128 * p.c128_block)
            ),
        ),
    ),
    redundant=axes.same_batch_elsewhere,
)
