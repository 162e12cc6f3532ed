"""Requests in a capture file: their context lengths, and how many tokens each step gave them.

A request is a row that keeps its slot (``idx_mapping``; without it, its place in the batch) from one captured step to
the next while its context does not shrink. The steps between two captured ones are not known. Rows of a prefill chunk,
which have more tokens than a decode, and padding rows do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from spec_decode_bench.harness.config.captured import read
from spec_decode_bench.harness.errors import CaptureError

if TYPE_CHECKING:
    from spec_decode_bench.harness.captures import Capture, Entry

#: What an entry must have to tell contexts, and to tell tokens of a step; each with query_start_loc.
CONTEXTS, COUNTS = ("num_computed_tokens", "seq_lens"), ("num_sampled", "num_accepted_tokens")


@dataclass(frozen=True)
class CapturedRequests:
    """Those of the first step, in its order, then others as they appear.

    prompts: int64 [requests], computed tokens before the first step in which a request was seen.
    outputs: int64 [requests], tokens that it is seen to have got from there on, at least 1.
    running: bool [requests], whether it was in the last step, so that its end is not known.
    counts:  tokens that each request got in each step; empty where no operator was captured that knows them.
    """

    prompts: np.ndarray
    outputs: np.ndarray
    running: np.ndarray
    counts: tuple[int, ...]


def captured_requests(file: str) -> CapturedRequests:
    """Raises ValueError where the file is no capture, or holds no decode."""
    try:
        return _of(read(file))
    except CaptureError as error:
        raise ValueError(f"the capture {error}") from None


@lru_cache(maxsize=2)
def _of(capture: Capture) -> CapturedRequests:
    first: list[int] = []
    last: list[int] = []
    here: dict[int, int] = {}  # slot -> request
    for entry, field in _first_of_steps(capture, CONTEXTS):
        before, here = here, {}
        for slot, computed in _contexts(capture, entry, field):
            request = before.get(slot)
            if request is None or computed < last[request]:
                request = len(first)
                first.append(computed)
                last.append(computed)
            here[slot], last[request] = request, computed
    if not first:
        raise ValueError(f"the capture {capture.path} holds no decode with its context lengths")
    counts = [count for entry, field in _first_of_steps(capture, COUNTS) for count in _counts(capture, entry, field)]
    prompts, running = np.array(first), np.zeros(len(first), dtype=bool)
    running[list(here.values())] = True
    return CapturedRequests(prompts, np.array(last) - prompts + 1, running, tuple(counts))


def _first_of_steps(capture: Capture, wanted: tuple[str, ...]) -> Iterator[tuple[Entry, str]]:
    """In each step the first call of one operator, the same in all, that has a field of ``wanted``; and that field."""
    operator, step = None, None
    for entry in capture.entries:
        field = next((name for name in wanted if {name, "query_start_loc"} <= entry.fields), None)
        if field is None or entry.step == step or entry.operator != (operator or entry.operator):
            continue
        operator, step = entry.operator, entry.step
        yield entry, field


def _decodes(capture: Capture, entry: Entry) -> Iterator[tuple[int, int, int]]:
    """(row, slot, query tokens) of the decodes of a step; without slots a row is its own."""
    query = np.diff(entry.array("query_start_loc")).tolist()
    longest = 1 + capture.header.speculative.num_drafts if capture.header.speculative else max(query, default=0)
    by_slot = "idx_mapping" in entry.fields
    slots = entry.array("idx_mapping").tolist() if by_slot else range(len(entry.array("seq_lens")))
    for row, slot in enumerate(slots):
        if slot >= 0 and 0 < query[row] <= longest:
            yield row, slot, query[row]


def _contexts(capture: Capture, entry: Entry, field: str) -> Iterator[tuple[int, int]]:
    """(slot, computed tokens) of the decodes of a step."""
    values = entry.array(field)
    for row, slot, query in _decodes(capture, entry):
        yield slot, int(values[slot] if field == "num_computed_tokens" else values[row] - query)


def _counts(capture: Capture, entry: Entry, field: str) -> list[int]:
    """Tokens of the decodes that had drafts; those of the step before where the field tells of that."""
    counts = entry.array(field).tolist()
    return [counts[row] for row, _, query in _decodes(capture, entry) if query > 1 and counts[row] > 0]
