"""Finds the table entry behind a wrong checksum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spec_decode_bench.decode_loop.engine_state import Consumed
from spec_decode_bench.decode_loop.expected import ExpectedBlock, tables_at
from spec_decode_bench.decode_loop.state import Part
from spec_decode_bench.decode_loop.workload import Workload


def first_difference(
    workload: Workload,
    expected: ExpectedBlock,
    step: int,
    parts: Sequence[Part],
    tables: Mapping[str, Consumed],
    names: Sequence[str],
) -> str | None:
    """``table lens, request 17: [68] is 4093, expected 4097`` for the first of the tables that differs; None if none
    does any more.

    step: in the block. tables: as the device holds them now.
    """
    right = tables_at(workload, expected, step, parts)
    for name in names:
        got, wanted = tables[name].values.cpu().numpy(), right[name].values.numpy()
        differs = (got != wanted) & _read(right[name])
        if differs.any():
            place = tuple(int(one) for one in np.argwhere(differs)[0])
            row = _row(workload, place[0], len(wanted))
            request = "" if row is None else f", request {expected.steps[step].requests[row]}"
            index = ", ".join(map(str, place))
            return f"table {name}{request}: [{index}] is {got[place]}, expected {wanted[place]}"
    return None


def _read(table: Consumed) -> np.ndarray:
    """Which entries a consumer reads."""
    values = table.values.numpy()
    used = np.ones(values.shape, dtype=bool)
    if table.row_lengths is not None:
        columns = -(-table.row_lengths.numpy().astype(np.int64) // table.unit)
        used &= np.arange(values.shape[1]) < columns[:, None]
    if table.idle is not None:
        used[values[:, 0] == table.idle, 1:] = False
    return used


def _row(workload: Workload, entry: int, entries: int) -> int | None:
    """The real request that entry or row number ``entry`` of a table belongs to; None where it belongs to none."""
    shape = workload.shape
    if shape.by_slot and entries == shape.max_num_seqs != shape.batch_size:
        return None  # by slot
    if entries in (shape.batch_size, shape.num_requests):
        row = entry
    elif entries in (shape.batch_size * shape.next_n, shape.num_tokens):
        row = entry // shape.next_n
    else:
        return None
    return row if row < shape.num_requests else None
