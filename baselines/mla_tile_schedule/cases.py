"""Edge cases of mla_tile_schedule, and sequences of steps through the same buffers.

An edit changes the contents of the inputs (CPU tensors) in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.mla_tile_schedule.operator import Inputs

#: 16 heads per rank (tensor parallelism 8) on 132 SMs: a part for every SM.
_TP8 = {"num_heads_q": 16}
_OLD = {"layout": "old"}
_LONG = {"lognormal": {"median": 4096, "sigma": 1.0}}


def _all_padding(x: Inputs) -> None:
    x.seq_lens.zero_()


def _zeros_between(x: Inputs) -> None:
    """Every second request and both ends are padding; the last two are."""
    x.seq_lens[::2] = 0
    x.seq_lens[-2:] = 0


def _one_long_row(x: Inputs) -> None:
    x.seq_lens.fill_(1)
    x.seq_lens[len(x.seq_lens) // 2] = 163840


def _long_row_first(x: Inputs) -> None:
    x.seq_lens.fill_(64)
    x.seq_lens[0] = 163840


def _long_row_last(x: Inputs) -> None:
    x.seq_lens.zero_()
    x.seq_lens[-1] = 163840


def _last_two_longer(x: Inputs) -> None:
    """With P = B + 1 only part B - 1 is stretched, and moves the last part within reach of the batch's end."""
    x.seq_lens[-2:] = 640


def _far_ends(x: Inputs) -> None:
    """Costs 10, 10, 22, 10, 22, ..., 1, 1, ..., 273 and 33 parts of cost 32.

    First 36 ends that no part reaches, later 33 ends up to the last one within a part's reach.
    """
    blocks = [9, *[9, 21] * 17, 9]
    x.seq_lens.zero_()
    x.seq_lens[:36] = x.seq_lens.new_tensor(blocks) * 64
    x.seq_lens[-1] = 272 * 64


def _specified(x: Inputs) -> None:
    x.seq_lens.copy_(x.seq_lens.new_tensor([1000, 64, 0, 5000]))


def _both(name: str, point: dict, edit: Callable[[Inputs], None] | None = None) -> list[EdgeCase]:
    """The edge case in the new and in the old layout."""
    return [EdgeCase(name, point, edit), EdgeCase(f"{name}, old layout", point | _OLD, edit)]


#: What the covering array changes in generated inputs.
CONTENTS = {"zeros_between": _zeros_between}

EDGE_CASES = [
    *_both("four requests, four parts", {"batch_size": 4, "num_sm_parts": 4, "context_len": 900}, _specified),
    EdgeCase("B=1", {"batch_size": 1, "context_len": 700}),
    *_both("B=1, one block, 132 parts", {"batch_size": 1, "max_decode_len": 1, "context_len": 64} | _TP8),
    *_both("B=1, 131 parts share a request", {"batch_size": 1, "max_decode_len": 1, "context_len": 163840} | _TP8),
    *_both("padding requests last", {"batch_size": 9, "padding": 0.4, "context_len": {"uniform": [4, 9000]}}),
    *_both("all requests are padding", {"batch_size": 9, "context_len": 200}, _all_padding),
    *_both("zeros between long rows", {"batch_size": 19, "context_len": {"uniform": [4, 30000]}}, _zeros_between),
    *_both(
        "zeros between long rows, B = 300", {"batch_size": 300, "context_len": {"uniform": [4, 30000]}}, _zeros_between
    ),
    EdgeCase("lengths exactly 64 m", {"batch_size": 8, "context_len": 640}),
    EdgeCase("lengths 64 m + 1", {"batch_size": 8, "context_len": 641}),
    EdgeCase("length 1", {"batch_size": 8, "max_decode_len": 1, "context_len": 1}),
    *_both(
        "lengths of 2^31 - 1", {"batch_size": 2, "num_sms": 13, "max_model_len": 2**31 - 1, "context_len": 2**31 - 1}
    ),
    EdgeCase(  # where the product with a reciprocal of 29 bits is too large
        "30 * 2^25 blocks, which 15 parts divide",
        {"batch_size": 30, "num_sms": 15, "num_sm_parts": 15, "max_model_len": 2**31 - 1, "context_len": 2**31 - 1},
    ),
    *_both("one long row among short ones", {"batch_size": 33, "num_sm_parts": 33, "context_len": 4}, _one_long_row),
    EdgeCase(
        "100 parts of one long row among stretched ones",
        {"batch_size": 128, "num_sm_parts": 132, "context_len": 4},
        _one_long_row,
    ),
    EdgeCase(
        "stretched parts more than 32 requests apart",
        {"batch_size": 256, "num_sm_parts": 33, "overhead": 1, "max_decode_len": 1, "context_len": 64} | _OLD,
        _far_ends,
    ),
    EdgeCase("long row first", {"batch_size": 17, "context_len": 4}, _long_row_first),
    *_both("long row last, zeros before", {"batch_size": 17, "context_len": 4}, _long_row_last),
    EdgeCase("every part ends on a request", {"batch_size": 32, "context_len": 4096}),
    EdgeCase(
        "every part is stretched to a request's end", {"batch_size": 128, "num_sm_parts": 33, "context_len": 1024}
    ),
    EdgeCase(
        "full tile, the last part moves to its end",
        {"batch_size": 128, "num_sm_parts": 129, "context_len": 320},
        _last_two_longer,
    ),
    *_both("more parts than blocks", {"batch_size": 5, "max_decode_len": 1, "context_len": 100} | _TP8),
    *_both("P = 1", {"batch_size": 7, "num_sm_parts": 1, "context_len": {"uniform": [4, 9000]}}),
    EdgeCase("P = 2", {"batch_size": 40, "num_sm_parts": 2, "context_len": {"uniform": [4, 9000]}}),
    EdgeCase("P = 31", {"batch_size": 40, "num_sm_parts": 31, "context_len": _LONG}),
    EdgeCase("P = 32", {"batch_size": 40, "num_sm_parts": 32, "context_len": _LONG}),
    EdgeCase("P = 33", {"batch_size": 40, "max_decode_len": 2, "context_len": _LONG}),
    EdgeCase("P = 32, B = 129", {"batch_size": 129, "num_sm_parts": 32, "context_len": _LONG}),
    EdgeCase("P = 8, overhead 1", {"batch_size": 40, "num_sm_parts": 8, "overhead": 1, "context_len": _LONG}),
    *_both("P = 132", {"batch_size": 65, "max_decode_len": 1, "context_len": _LONG} | _TP8),
    EdgeCase(
        "P = 188, all rows used",
        {"batch_size": 30, "num_sms": 188, "num_sm_parts": 188, "context_len": {"uniform": [4, 2000]}},
    ),
    *_both("P = 257", {"batch_size": 40, "num_sms": 257, "num_sm_parts": 257, "context_len": _LONG}),
    *_both("P = 512, all rows used", {"batch_size": 65, "num_sms": 512, "num_sm_parts": 512, "context_len": _LONG}),
    *_both(
        "more CTAs than SMs",
        {"batch_size": 5, "next_n": 67, "max_decode_len": 67, "context_len": {"uniform": [67, 9000]}},
    ),
    *_both("overhead 3", {"batch_size": 19, "padding": 0.2, "overhead": 3, "context_len": {"uniform": [4, 3000]}}),
    EdgeCase("batch at capacity", {"batch_size": 16, "max_num_seqs": 16, "context_len": {"uniform": [4, 3000]}}),
    EdgeCase("B = 1023", {"batch_size": 1023, "context_len": _LONG}),
    EdgeCase("B = 1024", {"batch_size": 1024, "context_len": _LONG}),
    EdgeCase("B = 1025", {"batch_size": 1025, "max_num_seqs": 1025, "padding": 0.1, "context_len": _LONG}),
    *_both("B = 4095", {"batch_size": 4095, "max_num_seqs": 4095, "context_len": _LONG}),
]

# Random lengths, so that a graph that keeps the lengths of its capture is wrong.
_BIG = {"batch_size": 40, "max_decode_len": 1, "context_len": {"uniform": [4, 2000]}}
_SMALL = {"batch_size": 3, "context_len": {"uniform": [4, 200]}}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "big-small-big, old layout": (_BIG | _OLD, _SMALL | _OLD, _BIG | _OLD),
    "big-padded-big": (_BIG, _BIG | {"padding": 0.5}, _BIG),
    "fewer parts each step": tuple(_BIG | {"batch_size": 12, "max_decode_len": rows} for rows in (1, 2, 3, 4)),
}
