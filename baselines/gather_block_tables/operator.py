"""gather_block_tables: block tables by request slot -> tables in batch order, for all KV cache groups.

For group g and row b of the B real requests, s = idx_mapping[b]:

    null = max(num_computed_tokens[s] - reach[g], 0) // block_sizes[g]   in a group with a window (reach[g] > 0), else 0
    block_tables[g][b, c] = 0                  c < min(null, num_blocks[g, s])       below the window: may be reused
    block_tables[g][b, c] = tables[g][s, c]    null <= c < num_blocks[g, s]
    block_tables[g][b, :] = 0                  B <= b < max(batch_size, dirty)

No consumer reads columns from num_blocks on. dirty: rows that the previous step filled; a padding row that still named
blocks of a finished request had state written through it (vLLM #49757). Rows behind keep their contents.

Tables may have an entry per token instead (``entries: token``; SGLang's req_to_token, of one group): its slot in the KV
cache. A block is that of its first token, and rows of tables have widths[0] * block_sizes[0] entries:

    block_tables[0][b, c] = tables[0][s, c * block_sizes[0]] // block_sizes[0]

reach is the number of tokens below the step's first one that may still be read. Entries below the window must be 0, not
merely unread: a tile that straddles its start loads the whole block, and NaN in a reused block survives masking.

num_blocks is in pinned host memory upstream (``memory: uva``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from spec_decode_bench.baselines.gather_block_tables.cases import CONTENTS, EDGE_CASES, SEQUENCES, STRIP
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.baselines.workloads.written import as_arrays
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, I64, Tensors, field


def _hides_no_block(point: Point) -> bool:
    """Whether no block lies below the window of any group."""
    return axes.has_no_request(point) or axes.longest_sequence(point) - max(point.window, 1) <= point.block_size


def _moves_no_window(point: Point) -> bool:
    long_enough = axes.longest_sequence(point) - point.window > STRIP * point.block_size
    return point.contents == "windows_at_strips" and (_hides_no_block(point) or not (point.window and long_enough))


WINDOW = Axis(
    "window",
    axes.whole(0),
    0,
    "tokens before the step that a sliding window reaches, in every second group (0 = no window)",
    used={128: "gpt-oss"},
    idle=_hides_no_block,
)
DIRTY = Axis(
    "dirty", axes.whole(0), lambda p: p.batch_size, "rows that the previous step filled, cleared where they are padding"
)
ENTRIES = Axis(
    "entries",
    axes.choice("block", "token"),
    "block",
    "what the tables by slot have an entry for; those of tokens are slots in the KV cache (SGLang's req_to_token)",
    idle=lambda p: p.block_size == 1 or axes.has_no_request(p),
)
AXES = slots.bounded(
    axes.BATCH_SIZE,
    axes.NEXT_N,
    axes.MAX_DECODE_LEN,
    axes.CONTEXT_LEN,
    axes.MAX_MODEL_LEN,
    slots.PADDING,
    slots.MAX_NUM_SEQS,
    replace(slots.BLOCK_SIZE, idle=lambda p: p.max_model_len <= p.block_size and p.entries == "block"),
    slots.NUM_GROUPS,
    replace(slots.GROUP_BLOCKS, idle=lambda p: p.num_groups == 1),
    ENTRIES,
    WINDOW,
    DIRTY,
    slots.MEMORY,
    replace(axes.contents(CONTENTS), idle=_moves_no_window),
)
RULES = (
    *axes.DECODE_STEP_RULES,
    slots.SEQS_FIT,
    Rule("dirty ({dirty}) must not exceed max_num_seqs ({max_num_seqs})", lambda p: p.dirty <= p.max_num_seqs),
    Rule(
        "a table with an entry per {entries} is of one group: num_groups ({num_groups}) must be 1",
        lambda p: p.entries == "block" or p.num_groups == 1,
    ),
    Rule(
        "a table with an entry per {entries} has blocks as SGLang: block_size ({block_size}) must be a power of two",
        lambda p: p.entries == "block" or p.block_size & (p.block_size - 1) == 0,
    ),
)


def entries_per_block(point: Point) -> int:
    """In a row of the tables by slot."""
    return point.block_size if point.entries == "token" else 1


def _entries(point: Point) -> int:
    """Of the tables by slot."""
    return slots.table_entries(point) * entries_per_block(point)


class Inputs(Tensors):
    idx_mapping: I64[slots.num_real]  # request slot of every real row, distinct
    tables: I32[_entries]  # by slot: group g is [R, widths[g]] from starts[g] on; longer rows with an entry per token
    num_computed_tokens: I32["max_num_seqs"]  # tokens computed before the step
    starts: I64["num_groups"]
    widths: I64["num_groups"]  # row strides of both tables, in blocks
    block_sizes: I32["num_groups"]
    reach: I32["num_groups"]  # 0 = no window
    num_blocks_device: I32["num_groups", "max_num_seqs"] = field(where=slots.on_device)  # blocks owned
    num_blocks_host: I32["num_groups", "max_num_seqs"] = field(uva=True, where=slots.on_host)

    num_blocks = slots.in_either_memory("num_blocks")


class Outputs(Tensors):
    block_tables: I32[slots.table_entries]  # in batch order, laid out like the tables by slot

    def views(self, point: Point) -> dict[str, torch.Tensor]:
        tables = slots.group_tables(point, self.block_tables)
        return {f"group {g}": table[: point.batch_size] for g, table in enumerate(tables)}


def reaches(point: Point) -> list[int]:
    """Window of each group: of every second one, or of the only one; none where a group holds states."""
    attention = point.num_groups - slots.num_state_groups(point)
    return [point.window if g < attention and (g % 2 or point.num_groups == 1) else 0 for g in range(point.num_groups)]


def rows_to_write(point: Point) -> int:
    """Rows from 0 on that are filled or cleared."""
    return max(point.batch_size, point.dirty)


def naming_entries(point: Point, tables: torch.Tensor) -> list[torch.Tensor]:
    """Views [R, width] of the groups' tables by slot: the entries that name blocks."""
    if point.entries == "block":
        return slots.group_tables(point, tables)
    return [tables.view(point.max_num_seqs, -1)[:, :: point.block_size]]


def _make_tables(point: Point, step: slots.Step, seed: int) -> torch.Tensor:
    """With an entry per token: the slots of its blocks where a request has tokens, UNUSED behind them."""
    tables = slots.make_tables(point, step, seed)
    if point.entries == "block":
        return tables
    real, size = slots.num_real(point), point.block_size
    rows = step.idx_mapping[:real]
    blocks = tables.view(point.max_num_seqs, -1)
    position = torch.arange(blocks.shape[1] * size, dtype=torch.int32)
    of_tokens = torch.full((point.max_num_seqs, len(position)), slots.UNUSED, dtype=torch.int32)
    owned = blocks[rows].repeat_interleave(size, 1) * size + position % size
    of_tokens[rows] = owned.masked_fill_(position >= step.seq_lens[:real, None], slots.UNUSED)
    return of_tokens.flatten()


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    step = slots.make_step(point, seed)
    return Inputs(
        idx_mapping=step.idx_mapping[: slots.num_real(point)].clone(),
        tables=_make_tables(point, step, seed),
        num_computed_tokens=step.num_computed_tokens,
        starts=torch.tensor(slots.table_starts(point)[:-1]),
        widths=torch.tensor(slots.group_widths(point)),
        block_sizes=int32(slots.group_block_sizes(point)),
        reach=int32(reaches(point)),
        **slots.placed(point, num_blocks=slots.num_blocks(point, step)),
    )


def _null_columns(x: Inputs, g: int, s: int) -> int:
    """Columns below the window, of those that are owned."""
    reach, block = int(x.reach[g]), int(x.block_sizes[g])
    null = max(int(x.num_computed_tokens[s]) - reach, 0) // block if reach > 0 else 0
    return min(null, int(x.num_blocks[g, s]))


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    value, entries = torch.zeros(slots.table_entries(point), dtype=torch.int32), entries_per_block(point)
    untouched, may_keep = torch.ones(value.shape, dtype=torch.bool), torch.zeros(value.shape, dtype=torch.bool)
    tables = [slots.group_tables(point, flat) for flat in (value, untouched, may_keep)]
    parts = [[table.numpy() for table in groups] for groups in (naming_entries(point, x.tables), *tables)]
    x = as_arrays(x)
    for g, (source, table, kept, not_read) in enumerate(zip(*parts, strict=True)):
        for b, s in enumerate(x.idx_mapping.tolist()):
            null, owned = _null_columns(x, g, s), int(x.num_blocks[g, s])
            table[b, null:] = source[s, null:] // entries
            kept[b], not_read[b, owned:] = False, True
        for b in range(len(x.idx_mapping), rows_to_write(point)):
            kept[b] = False
    return {"block_tables": Expected(value, untouched, may_keep)}


def bytes_moved(point: Point, x: Inputs) -> int:
    """Owned entries read above the window and written all; whole rows cleared; slot, counts and two numbers a row."""
    entries = 0
    for g, width in enumerate(slots.group_widths(point)):
        for s in x.idx_mapping.tolist():
            owned = int(x.num_blocks[g, s])
            entries += 2 * owned - _null_columns(x, g, s)
        entries += (rows_to_write(point) - len(x.idx_mapping)) * width
    counts = (point.num_groups if point.memory == "device" else 0) + int(point.window > 0)
    return 4 * (entries + counts * len(x.idx_mapping)) + 8 * len(x.idx_mapping) + 24 * point.num_groups


def redundant(point: Point) -> str | None:
    if point.entries == "token" and point.block_size == 1:
        return "a block of one token has one entry either way"
    return slots.redundant(point)


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


operator = Operator(
    name="gather_block_tables",
    summary="block tables by request slot -> batch order, windows masked, stale rows cleared",
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    redundant=redundant,
)
