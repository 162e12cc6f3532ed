"""staged_writes: the blocks that requests got in this step, written into the block tables of all KV cache groups.

The scheduler hands out blocks on the host; the tables by request slot are on the device. Write w of the W of a step,
with first = cu_lens[w - 1] (0 for w = 0), puts its ids in a row of one group:

    g, s, c = group_ids[w], indices[w], write_starts[w]
    tables[g][s, c + i] = contents[first + i]              0 <= i < cu_lens[w] - first

All else keeps its contents, also the columns behind a write: readers go by the number of blocks. A new request writes
its row from column 0 on, a running one behind the blocks that it owns. No write is empty or passes the end of its row,
where the next slot begins (vLLM #50287), and no two have a slot and group in common. Those of a group follow one
another. A row offset has 64 bits: 65,536 slots of a million tokens are more than 2^31 entries (vLLM #57030).

vLLM 0.33: ``BlockTables.apply_staged_writes`` (v1/worker/gpu/block_table.py), by ``_apply_write_kernel``
(v1/worker/gpu/buffer_utils.py), one launch for all groups. The kernel reads all but the contents in pinned host memory
there (``memory: uva``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.staged_writes.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.context_lengths import draw_lengths, plain
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.written import Written
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, I64, Tensors, field

GROWTH = Axis(
    "growth",
    axes.probability,
    0.0625,
    "share of the decodes that get a block, in each group; rounded up",
    plain,
    idle=lambda p: p.batch_size == p.prefills,
)
AXES = slots.bounded(
    axes.BATCH_SIZE,
    replace(axes.CONTEXT_LEN, idle=lambda p: p.max_model_len <= p.block_size),
    axes.MAX_MODEL_LEN,
    slots.PREFILLS,
    slots.PREFILL_LEN,
    GROWTH,
    slots.MAX_NUM_SEQS,
    replace(slots.BLOCK_SIZE, idle=lambda p: p.max_model_len <= p.block_size),
    slots.NUM_GROUPS,
    replace(slots.GROUP_BLOCKS, idle=lambda p: p.num_groups == 1),
    slots.MEMORY,
    axes.contents(CONTENTS),
)


def num_growing(point: Point) -> int:
    """Decodes that get a block in a group."""
    # Rounded first: 0.07 * 100 is a little more than 7 in floating point.
    return math.ceil(round(point.growth * (point.batch_size - point.prefills), 6))


def chunk_blocks(point: Point) -> list[int]:
    """Blocks that a prefill chunk gets in each group."""
    return [cdiv(point.prefill_len, size) for size in slots.group_block_sizes(point)]


def num_writes(point: Point) -> int:
    """W."""
    return point.num_groups * (point.prefills + num_growing(point))


def num_contents(point: Point) -> int:
    """Ids of all writes."""
    return point.prefills * sum(chunk_blocks(point)) + point.num_groups * num_growing(point)


def longest_write(point: Point) -> int:
    """Ids of the longest write, as the host knows it. A grid may depend on it."""
    return max(chunk_blocks(point)) if point.prefills else 1


class Inputs(Tensors):
    contents: I32[num_contents]
    starts: I64["num_groups"]  # element of the flat array at which the table of a group begins
    widths: I64["num_groups"]  # columns of its rows
    group_ids_device: I32[num_writes] = field(where=slots.on_device)
    indices_device: I32[num_writes] = field(where=slots.on_device)  # request slots
    write_starts_device: I32[num_writes] = field(where=slots.on_device)  # first columns
    cu_lens_device: I32[num_writes] = field(where=slots.on_device)  # ids of all writes up to this one
    group_ids_host: I32[num_writes] = field(uva=True, where=slots.on_host)
    indices_host: I32[num_writes] = field(uva=True, where=slots.on_host)
    write_starts_host: I32[num_writes] = field(uva=True, where=slots.on_host)
    cu_lens_host: I32[num_writes] = field(uva=True, where=slots.on_host)

    group_ids = slots.in_either_memory("group_ids")
    indices = slots.in_either_memory("indices")
    write_starts = slots.in_either_memory("write_starts")
    cu_lens = slots.in_either_memory("cu_lens")


class Outputs(Tensors):
    tables: I32[slots.table_entries]  # by slot: group g is [R, widths[g]] from starts[g] on

    def views(self, point: Point) -> dict[str, torch.Tensor]:
        return {f"group {g}": table for g, table in enumerate(slots.group_tables(point, self.tables))}


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    """Group by group prefill chunks, then decodes. Of the chunks, half are the first one of their request."""
    rng, growing, chunks = np.random.default_rng(seed), num_growing(point), point.prefills
    real = point.batch_size
    indices = rng.permutation(point.max_num_seqs)[:real]
    owned = np.minimum(draw_lengths(point.context_len, real, rng), point.max_model_len)
    owned[:chunks][rng.random(chunks) < 0.5] = 0
    rows, columns, lens, ids = [], [], [], []
    for size, width, blocks in zip(
        slots.group_block_sizes(point), slots.group_widths(point), chunk_blocks(point), strict=True
    ):
        writing = np.append(np.arange(chunks), chunks + rng.permutation(real - chunks)[:growing])
        lens.append(np.append(np.full(chunks, blocks), np.ones(growing, dtype=np.int64)))
        rows.append(indices[writing])
        columns.append(np.minimum(owned[writing] // size, width - lens[-1]))
        ids.append(1 + rng.permutation(int(lens[-1].sum())))
    return Inputs(
        contents=int32(np.concatenate(ids)),
        starts=torch.tensor(slots.table_starts(point)[:-1]),
        widths=torch.tensor(slots.group_widths(point)),
        **slots.placed(
            point,
            group_ids=int32(np.repeat(np.arange(point.num_groups), chunks + growing)),
            indices=int32(np.concatenate(rows)),
            write_starts=int32(np.concatenate(columns)),
            cu_lens=int32(np.concatenate(lens).cumsum()),
        ),
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """Write by write, id by id."""
    written = Written(vars(Outputs.empty(point)))
    starts, widths, contents = x.starts.tolist(), x.widths.tolist(), x.contents.tolist()
    writes = zip(*(array.tolist() for array in (x.group_ids, x.indices, x.write_starts, x.cu_lens)), strict=True)
    first = 0
    for g, s, c, end in writes:
        for i in range(end - first):
            written.put("tables", starts[g] + s * widths[g] + c + i, contents[first + i])
        first = end
    return written.expected()


def bytes_moved(point: Point, x: Inputs) -> int:
    """Four numbers per write where they are in device memory, two per group, and each id read and written."""
    return 8 * len(x.contents) + 16 * point.num_groups + (16 * len(x.cu_lens) if point.memory == "device" else 0)


def redundant(point: Point) -> str | None:
    """Why another point of a full grid has the same writes; None where none has."""
    unused = not point.prefills and point.prefill_len != slots.PREFILL_LEN.default
    return f"prefill_len {point.prefill_len} is of no chunk" if unused else None


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


operator = Operator(
    name="staged_writes",
    summary="new blocks of a step, written into the block tables of all groups by request slot",
    axes=AXES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    redundant=redundant,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    rules=(
        axes.CONTEXT_FITS,
        axes.LENGTHS_FIT,
        slots.PREFILLS_FIT,
        Rule(
            "prefill_len ({prefill_len}) must not exceed max_model_len ({max_model_len})",
            lambda p: not p.prefills or p.prefill_len <= p.max_model_len,
        ),
        slots.SEQS_FIT,
        Rule(
            "growth ({growth}) and prefills ({prefills}) must leave a write: an engine launches nothing without one",
            lambda p: num_writes(p) > 0,
        ),
    ),
)
