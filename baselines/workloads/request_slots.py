"""Steps over request slots: a request keeps its slot for life, and its state and block tables are arrays by slot.

Rows of a step are in batch order: decodes first, then prefill chunks, then padding rows, with slot -1 and no token.
Shapes and host integers depend on the point alone; the seed decides slots, lengths and contents. Slots that the batch
does not use hold UNUSED, which is never legal, nor are its sums with the tokens of a row, which int32 holds.

Tables of all KV cache groups lie in one flat int32 array: group g is [max_num_seqs, width of g] from table_starts[g].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads.context_lengths import draw_lengths, plain
from spec_decode_bench.baselines.workloads.decode_batch import int32, num_query_tokens, query_lens
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Axis, Point, Rule

UNUSED = 0x7FFF0000
#: CUDA's limit for the second and third dimension of a grid. Programs of a row take its strips in turn.
MAX_GRID_Y = 65535

PADDING = Axis(
    "padding", axes.probability, 0.0, "share of the rows that is padding, rounded up; 1 is an idle rank", plain
)
PREFILLS = Axis("prefills", axes.whole(0), 0, "requests that run a chunk of their prompt instead of a decode")
PREFILL_LEN = Axis(
    "prefill_len", axes.whole(1), 512, "tokens of each prefill chunk", largest=4097, idle=lambda p: not p.prefills
)
MAX_NUM_SEQS = Axis(
    "max_num_seqs",
    axes.whole(1),
    lambda p: max(256, p.batch_size),
    "request slots, and capacity of the per-request buffers (R)",
)
BLOCK_SIZE = replace(axes.BLOCK_SIZE, doc="KV tokens per block of the first group", idle=axes.has_no_request)
NUM_GROUPS = Axis("num_groups", axes.whole(1), 1, "KV cache groups (G)", largest=9)
GROUP_BLOCKS = Axis(
    "group_blocks",
    axes.choice("same", "mixed"),
    "same",
    "block sizes of the groups: all block_size (same), or 1, 2 and 4 times that in turn (mixed)",
    idle=lambda p: p.num_groups - num_state_groups(p) <= 1 or axes.has_no_request(p),
)
BLOCKS_PER_KV_BLOCK = Axis(
    "blocks_per_kv_block",
    axes.one_of(1, 2, 4),
    1,
    "blocks of a table that are one block of the KV cache manager: their ids follow one another",
    idle=axes.has_no_request,
)
STATE_GROUPS = Axis(
    "state_groups",
    axes.whole(0),
    0,
    "how many of the groups, the last ones, hold recurrent states in blocks of mamba_block_size",
    largest=8,
)
MEMORY = Axis(
    "memory",
    axes.choice("device", "uva"),
    "device",
    "where the arrays are that an engine keeps in pinned host memory and reads over the bus (uva)",
)

#: Axes and rules of a step over request slots.
STEP = (
    axes.BATCH_SIZE,
    axes.CONTEXT_LEN,
    axes.MAX_MODEL_LEN,
    axes.NEXT_N,
    axes.MAX_DECODE_LEN,
    axes.DECODE_LEN,
    PADDING,
    PREFILLS,
    PREFILL_LEN,
    MAX_NUM_SEQS,
)
#: The same without padding, of operators whose rows are all real.
REAL_STEP = (
    axes.BATCH_SIZE,
    axes.NEXT_N,
    axes.MAX_DECODE_LEN,
    axes.DECODE_LEN,
    axes.CONTEXT_LEN,
    axes.MAX_MODEL_LEN,
    PREFILLS,
    PREFILL_LEN,
    MAX_NUM_SEQS,
)
#: With padding, but without idle ranks.
BUSY_STEP = tuple(axes.PADDING if axis is PADDING else axis for axis in STEP)
#: Sizes worth verifying of an operator over request slots: more rows and tokens than 14 and 16 bits count, and a
#: reference in Python still takes less than a second.
_LARGEST_PART = {
    "batch_size": 2**14 + 1,
    "max_num_batched_tokens": 2**16 + 1,
    **dict.fromkeys(("next_n", "max_decode_len", "prefills"), 129),
    "num_groups": 9,
}
#: Of one that is made of others: large enough for its parts to get in each other's way.
_LARGEST = {
    **dict.fromkeys(("batch_size", "max_num_seqs", "max_num_batched_tokens"), 4097),
    **dict.fromkeys(("dirty", "history_len", "mamba_block_size"), 1025),
    **dict.fromkeys(("prefill_len", "prefills", "window", "block_size", "num_heads_q", "num_sms"), 257),
    **dict.fromkeys(("next_n", "max_decode_len", "token_padding", "num_sm_parts"), 33),
    **dict.fromkeys(("state_groups", "look_ahead"), 5),
    "num_groups": 9,
    "max_model_len": 2**18 + 1,
}
GROUPS = (BLOCK_SIZE, NUM_GROUPS, GROUP_BLOCKS)
SEQS_FIT = Rule(
    "batch_size ({batch_size}) must not exceed max_num_seqs ({max_num_seqs}): slots are distinct",
    lambda p: p.batch_size <= p.max_num_seqs,
)
PREFILLS_FIT = Rule(
    "prefills ({prefills}) must not exceed the real requests of batch_size ({batch_size})",
    lambda p: p.prefills <= num_real(p),
)
STEP_RULES = (
    *axes.DECODE_STEP_RULES,
    PREFILLS_FIT,
    Rule(
        "prefill_len ({prefill_len}) must not exceed max_model_len ({max_model_len})",
        lambda p: not p.prefills or p.prefill_len <= p.max_model_len,
    ),
    SEQS_FIT,
)
TOKENS_FIT = Rule(
    "the step's tokens (batch_size {batch_size}, max_decode_len {max_decode_len}, prefills {prefills} x {prefill_len}) "
    "must not exceed max_num_batched_tokens ({max_num_batched_tokens})",
    lambda p: num_tokens(p) <= p.max_num_batched_tokens,
)
SLOTS_FIT = Rule(
    "the KV slots of batch_size ({batch_size}) requests of max_model_len ({max_model_len}) tokens in blocks of "
    "block_size ({block_size}) tokens must be less than 2^31, as they are computed in 32 bits",
    lambda p: _slots_fit(p),
)


def bounded(*all_axes: Axis, largest: Mapping[str, int] = _LARGEST_PART) -> tuple[Axis, ...]:
    """The axes of an operator over request slots, with bounds for the sizes that verify tries."""
    return tuple(replace(axis, largest=largest.get(axis.name, axis.largest)) for axis in all_axes)


def composed(*all_axes: Axis) -> tuple[Axis, ...]:
    """The same of an operator that is made of others."""
    return bounded(*all_axes, largest=_LARGEST)


def redundant(point: Point) -> str | None:
    """Why another point of a full grid has the same step; None where none has."""
    real = num_real(point)
    if point.get("padding", 0) and real == point.batch_size:
        return f"padding {point.padding:g} makes no padding row in a batch of {point.batch_size}"
    decodes, pattern = real - point.get("prefills", 0), point.get("decode_len", "uniform")
    if pattern != "uniform" and (decodes <= 1 or point.max_decode_len == 1):
        return f"a {pattern} step of {decodes} decode(s) is uniform"
    return None


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """CPU tensors of B rows and R slots."""

    idx_mapping: torch.Tensor  # [B] int64, request slot of each row, distinct; -1 in padding rows
    query_start_loc: torch.Tensor  # [R + 1] int32, query starts; the tail repeats the number of tokens
    num_computed_tokens: torch.Tensor  # [R] int32 by slot, tokens computed before the step
    prompt_lens: torch.Tensor  # [R] int32 by slot, tokens of the prompt
    seq_lens: torch.Tensor  # [B] int32, tokens after the step: computed + query; 0 in padding rows


def num_real(point: Point) -> int:
    """Requests of the step, without padding."""
    return point.batch_size - (axes.num_padding_requests(point) if "padding" in point else 0)


def decode_lens(point: Point) -> np.ndarray:
    """Query tokens of the decodes in no particular order; max_decode_len occurs if there is a decode."""
    return query_lens(*_pattern(point))


def _pattern(point: Point) -> tuple[str, int, int]:
    """Arguments of query_lens."""
    decodes = num_real(point) - point.get("prefills", 0)
    return point.get("decode_len", "uniform"), decodes, point.max_decode_len


def num_tokens(point: Point) -> int:
    """A: query tokens of the step."""
    return num_query_tokens(*_pattern(point)) + point.get("prefills", 0) * _chunk(point)


def longest_row(point: Point) -> int:
    """Query tokens of the longest row, as the host knows it. A grid may depend on it, a result may not."""
    return max(point.max_decode_len, _chunk(point) if point.get("prefills", 0) else 1)


def row_tiling(point: Point) -> tuple[int, int]:
    """Tokens of a row that a Triton program takes at a time, and the programs that share the longest row."""
    longest = longest_row(point)
    tokens = 16 if longest <= 16 else 64
    return tokens, min(cdiv(longest, tokens), MAX_GRID_Y)


def warps_per_row(point: Point) -> int:
    """Warps that share the longest row, 32 tokens each in turn."""
    return min(cdiv(longest_row(point), 32), MAX_GRID_Y)


def _chunk(point: Point) -> int:
    return point.get("prefill_len", 1)


def make_step(point: Point, seed: int) -> Step:
    """Contexts are clipped to [query tokens, max_model_len]. The prompt of a decode has ended; of the prefill chunks,
    half are their prompt's last one.
    """
    rng = np.random.default_rng(seed)
    rows, real, slots = point.batch_size, num_real(point), point.max_num_seqs
    decodes, chunk = real - point.get("prefills", 0), _chunk(point)
    query = np.full(real, chunk, dtype=np.int64)
    query[:decodes] = rng.permutation(decode_lens(point))
    lens = np.clip(draw_lengths(point.context_len, real, rng), query, point.max_model_len)
    prompts = np.maximum((rng.random(real) * (lens - query)).astype(np.int64), 1)
    more = rng.integers(0, 2, real) * rng.integers(1, 2 * chunk + 1, real)
    prompts[decodes:] = np.minimum(lens + more, point.max_model_len)[decodes:]

    idx_mapping = np.full(rows, -1)
    idx_mapping[:real] = rng.permutation(slots)[:real]
    starts = np.zeros(slots + 1, dtype=np.int64)
    starts[1 : real + 1] = query.cumsum()
    starts[real + 1 :] = starts[real]
    return Step(
        idx_mapping=torch.from_numpy(idx_mapping),
        query_start_loc=int32(starts),
        num_computed_tokens=by_slot(idx_mapping[:real], lens - query, slots),
        prompt_lens=by_slot(idx_mapping[:real], prompts, slots),
        seq_lens=int32(np.append(lens, np.zeros(rows - real))),
    )


def token_ids(rng: np.random.Generator, vocab_size: int, *shape: int) -> torch.Tensor:
    """int64 of ``shape``. A few ids recur, as in text; 0 is one of them."""
    drawn = rng.integers(0, vocab_size, shape)
    return torch.from_numpy(np.where(rng.random(shape) < 0.3, drawn % 3, drawn))


def by_token(point: Point, tokens: torch.Tensor) -> torch.Tensor:
    """[max_num_batched_tokens]: ``tokens``, and UNUSED behind them."""
    return torch.nn.functional.pad(tokens, (0, point.max_num_batched_tokens - len(tokens)), value=UNUSED)


def positions(point: Point, step: Any) -> torch.Tensor:
    """[max_num_batched_tokens] int64: positions of a step's tokens. step: anything with its lengths and boundaries."""
    ends, query = step.seq_lens.tolist(), torch.diff(step.query_start_loc).tolist()
    return by_token(point, torch.cat([torch.arange(end - query[b], end) for b, end in enumerate(ends)]))


def by_slot(idx_mapping: np.ndarray, values: np.ndarray, slots: int, unused: int = UNUSED) -> torch.Tensor:
    """int32 [slots]: ``values`` at the slots ``idx_mapping``, ``unused`` elsewhere."""
    array = np.full(slots, unused, dtype=np.int64)
    array[idx_mapping] = values
    return int32(array)


def in_either_memory(name: str) -> property:
    """Of inputs or outputs that hold an array on the device or, where memory = uva, in pinned memory: the one it is."""

    def array(self: Any) -> torch.Tensor:
        on_device = getattr(self, f"{name}_device")
        return getattr(self, f"{name}_host") if on_device is None else on_device

    return property(array)


def on_device(point: Point) -> bool:
    """Whether such arrays are in the device's memory."""
    return point.memory == "device"


def on_host(point: Point) -> bool:
    return not on_device(point)


def placed(point: Point, **arrays: torch.Tensor) -> dict[str, torch.Tensor | None]:
    """The fields of such arrays: <name>_device and <name>_host, one of which is None."""
    here, other = ("device", "host") if on_device(point) else ("host", "device")
    fields = {f"{name}_{here}": array for name, array in arrays.items()}
    return fields | {f"{name}_{other}": None for name in arrays}


def share_blocks(x: Any, entries: int = 1) -> None:
    """Every second request has the blocks of the one before it in the columns that both own, as prefix caching makes
    them. x: inputs with tables by slot. entries: of a block in a row.
    """
    rows = x.idx_mapping[x.idx_mapping >= 0]
    for start, width in zip(x.starts.tolist(), (x.widths * entries).tolist(), strict=True):
        columns = start + torch.arange(width)
        before, behind = (columns + width * slots[:, None] for slots in (rows[:-1:2], rows[1::2]))
        owned = (x.tables[before] < UNUSED) & (x.tables[behind] < UNUSED)
        shared = owned.view(-1, width // entries, entries).all(2).repeat_interleave(entries, 1)
        x.tables[behind] = torch.where(shared, x.tables[before], x.tables[behind])


def rows_of_slots(idx_mapping: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(row of each slot, 0 where it has none; whether it has one), both [slots]. Row -1 goes to a scratch entry behind
    the last slot, so no mask has to be read back.
    """
    rows = torch.full((slots + 1,), -1, dtype=torch.int64, device=idx_mapping.device)
    rows[idx_mapping] = torch.arange(len(idx_mapping), device=idx_mapping.device)
    return rows[:slots].clamp(min=0), rows[:slots] >= 0


# --- block tables of several groups -----------------------------------------------------------------------------------


def group_block_sizes(point: Point) -> list[int]:
    """Tokens per block of each group; those of recurrent states come last."""
    states = num_state_groups(point)
    attention = range(point.num_groups - states)
    sizes = [point.block_size << (g % 3 if point.group_blocks == "mixed" else 0) for g in attention]
    return sizes + [point.mamba_block_size] * states if states else sizes


def group_widths(point: Point) -> list[int]:
    """Columns of each group's table: enough for max_model_len, and k scratch columns for states."""
    columns = zip(group_block_sizes(point), _scratch_columns(point), strict=True)
    return [cdiv(point.max_model_len, size) + scratch for size, scratch in columns]


def _slots_fit(point: Point) -> bool:
    """Block ids are 1 .. (used blocks). A block that ranks share has cp_size times as many tokens."""
    together = point.get("blocks_per_kv_block", 1)
    sizes = [size * together for size in group_block_sizes(point)[: point.num_groups - num_state_groups(point)]]
    most = (num_real(point) * cdiv(point.max_model_len, size) * size + size for size in sizes)
    return max((*most, *(size * point.get("cp_size", 1) for size in sizes)), default=0) < 2**31


def num_state_groups(point: Point) -> int:
    return point.get("state_groups", 0)


def _scratch_columns(point: Point) -> list[int]:
    """Of each group: behind its last scheduled token, one per draft where the group holds states."""
    states = num_state_groups(point)
    return [0] * (point.num_groups - states) + [point.get("next_n", 1) - 1] * states


def table_starts(point: Point) -> list[int]:
    """Element of the flat array at which each group's table starts, and its length behind them."""
    starts = [0]
    for width in group_widths(point):
        starts.append(starts[-1] + point.max_num_seqs * width)
    return starts


def table_entries(point: Point) -> int:
    """Of the tables of all groups."""
    return table_starts(point)[-1]


def group_tables(point: Point, flat: torch.Tensor) -> list[torch.Tensor]:
    """Views [R, width] of the groups' tables."""
    starts, widths = table_starts(point), group_widths(point)
    return [flat[start : start + point.max_num_seqs * width].view(-1, width) for start, width in zip(starts, widths)]  # noqa: B905


def num_blocks(point: Point, step: Step) -> torch.Tensor:
    """[G, R] int32: blocks that each slot owns in each group; UNUSED in slots that the batch does not use."""
    real = num_real(point)
    idx_mapping, lens = step.idx_mapping[:real].numpy(), step.seq_lens[:real].numpy().astype(np.int64)
    columns = zip(group_block_sizes(point), _scratch_columns(point), strict=True)
    return torch.stack(
        [by_slot(idx_mapping, -(-lens // size) + scratch, point.max_num_seqs) for size, scratch in columns]
    )


def make_tables(point: Point, step: Step, seed: int) -> torch.Tensor:
    """The flat array of slot-ordered tables, int32: in each group ids 1 .. (used blocks) in random order, each once, in
    the columns that a request owns; UNUSED elsewhere. Blocks of one block of the manager's follow one another.
    """
    together = point.get("blocks_per_kv_block", 1)
    flat = torch.full((table_starts(point)[-1],), UNUSED, dtype=torch.int32)
    rng, real = np.random.default_rng([seed, 1]), num_real(point)
    owned = num_blocks(point, step)
    for g, table in enumerate(group_tables(point, flat)):
        idx_mapping = step.idx_mapping[:real].numpy()
        counts, columns = owned[g].numpy()[idx_mapping], np.arange(table.shape[1])
        kv_blocks = -(-counts // together)
        ids = rng.permutation(np.arange(1, int(kv_blocks.sum()) + 1, dtype=np.int32))
        rows = np.full((real, table.shape[1]), UNUSED, dtype=np.int32)
        rows[columns < kv_blocks[:, None]] = ids
        if together > 1:
            rows = rows[:, columns // together] * together + columns % together
            rows[columns >= counts[:, None]] = UNUSED
        table.numpy()[idx_mapping] = rows
    return flat
