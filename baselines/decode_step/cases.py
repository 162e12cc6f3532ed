"""Edge cases of decode_step, and sequences of steps through the same buffers.

An edit changes the contents of the inputs (CPU tensors) in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spec_decode_bench.baselines.decode_flatten.cases import (
    all_padding,
    drafts_overhang,
    minus_one_padding_rows,
    padding_in_the_middle,
    seq_len_below_decode_len,
)
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.decode_flatten.operator import Inputs

_NATIVE = {"decode_path": "native"}
_OLD = {"layout": "old"}
#: Fewer SMs, columns and entries than a real GPU and server have, because Triton's interpreter is slow on them.
_SMALL = {
    "num_sms": 7,
    "max_model_len": 16384,
    "max_num_batched_tokens": 500,
    "num_heads_q": 16,
    "context_len": {"uniform": [4, 9000]},
}
_RAGGED = {"decode_len": "ragged", "padding": 0.3}
_LONGEST = {"max_model_len": 2**31 - 1, "context_len": 2**31 - 1}
#: For large batches.
_LARGE = _SMALL | {"max_num_batched_tokens": 4096, "max_model_len": 1024, "context_len": {"uniform": [4, 1024]}}


def _both(name: str, point: dict, edit: Callable[[Inputs], None] | None = None) -> list[EdgeCase]:
    """The edge case on both paths."""
    return [EdgeCase(name, _SMALL | point, edit), EdgeCase(f"{name}, native", _SMALL | _NATIVE | point, edit)]


def _one_long_row(x: Inputs) -> None:
    x.seq_lens.clamp_(max=4)
    x.seq_lens[len(x.seq_lens) // 2] = 16384


def _longest_first(x: Inputs) -> None:
    """The longest request has the same length for every seed; the others do not."""
    x.seq_lens[0] = 9000


def _around_a_segment(x: Inputs) -> None:
    """Lengths around a multiple of 256, so that the tokens of a request cross a segment, and around a block of 64."""
    for b in range(len(x.seq_lens)):
        x.seq_lens[b] = (255, 256, 257, 258, 259, 512, 515, 64, 65)[b % 9]


def _around_a_segment_of_the_last_of_four(x: Inputs) -> None:
    """Its segments of 256 tokens begin behind 3 * 64 tokens, and every 1024."""
    for b in range(len(x.seq_lens)):
        x.seq_lens[b] = 192 + (0, 1, 2, 1024, 1025, 1026, 1027, 1028, 2049, 0)[b % 10]


def _rows_over_segments(x: Inputs) -> None:
    x.seq_lens.copy_(x.seq_lens.new_tensor([300, 770, 513]))


def _all_but_the_last_short(x: Inputs) -> None:
    x.seq_lens[:-1].clamp_(max=2)


EDGE_CASES = [
    *_both("B=1", {"batch_size": 1, "context_len": 700}),
    *_both("B=1, one token", {"batch_size": 1, "next_n": 1, "context_len": 1}),
    EdgeCase("B=1, one request on 132 SMs", {"batch_size": 1, "context_len": 16384, "max_model_len": 16384}),
    EdgeCase("B = 1, L = 40, T > A", _SMALL | {"batch_size": 1, "next_n": 40, "token_padding": 9}),
    *_both("all requests are padding, B=32", {"batch_size": 32, "next_n": 2}, all_padding),
    EdgeCase("all requests are padding, old layout", _SMALL | {"batch_size": 5, **_OLD}, all_padding),
    *_both("padding rows last", {"batch_size": 9, "padding": 0.4}),
    *_both("padding row in the middle", {"batch_size": 6, "padding": 0.1, "context_len": 900}, padding_in_the_middle),
    EdgeCase("padding rows hold -1", _SMALL | {"batch_size": 6, "padding": 0.3}, minus_one_padding_rows),
    *_both("ragged", {"batch_size": 9, "decode_len": "ragged"}),
    *_both(
        "ragged, padded, old layout, remainder at the back", _RAGGED | {"batch_size": 9, "remainder": "back", **_OLD}
    ),
    *_both("short step, L < next_n", {"batch_size": 7, "max_decode_len": 3}),
    *_both("L = 1", {"batch_size": 7, "max_decode_len": 1}),
    EdgeCase(
        "L = 33",
        _SMALL | {"batch_size": 3, "next_n": 40, "max_decode_len": 33, "decode_len": "ragged"},
        _rows_over_segments,
    ),
    EdgeCase("a row of 300 tokens", _SMALL | {"batch_size": 1, "next_n": 300, "context_len": 600}),
    EdgeCase(
        "a row of 300 tokens, seq_len < decode_len",
        _SMALL | {"batch_size": 1, "next_n": 300, "context_len": 600},
        seq_len_below_decode_len,
    ),
    EdgeCase("token padding, T > A", _SMALL | {"batch_size": 5, "token_padding": 3}),
    EdgeCase("ragged, padded, T > A", _SMALL | _RAGGED | {"batch_size": 5, "token_padding": 17}),
    EdgeCase("T = capacity", _SMALL | {"batch_size": 8, "max_num_batched_tokens": 32}),
    EdgeCase("B * L = capacity, native", _SMALL | _NATIVE | {"batch_size": 8, "max_num_batched_tokens": 32}),
    EdgeCase(
        "blocks of 16, 70 padding tokens, capacity 1025",
        _SMALL
        | {
            "batch_size": 3,
            "block_size": 16,
            "max_model_len": 9000,
            "token_padding": 70,
            "max_num_batched_tokens": 1025,
        },
    ),
    EdgeCase("capacity not a multiple of 4", _SMALL | {"batch_size": 3, "max_num_batched_tokens": 1027}),
    EdgeCase(
        "source stride > W, W not a multiple of 4",
        _SMALL | {"batch_size": 4, "max_model_len": 9088, "table_padding": 10},
    ),
    EdgeCase("source narrower than destination", _SMALL | {"batch_size": 4, "table_columns": 141, "context_len": 9000}),
    EdgeCase(
        "source wider than destination",
        _SMALL | {"batch_size": 4, "max_model_len": 4096, "table_columns": 71, "context_len": 4096},
    ),
    *_both(
        "drafts overhang max_model_len", {"batch_size": 3, "max_model_len": 4096, "context_len": 4096}, drafts_overhang
    ),
    *_both("lengths around a segment", {"batch_size": 18}, _around_a_segment),
    *_both("seq_len < decode_len", {"batch_size": 4}, seq_len_below_decode_len),
    *_both(
        "work in the last request alone", {"batch_size": 20, "next_n": 2, "context_len": 3000}, _all_but_the_last_short
    ),
    *_both("the longest row stays, the others change", {"batch_size": 9}, _longest_first),
    *_both("one long row among short ones", {"batch_size": 17, "next_n": 2}, _one_long_row),
    *_both("stale host lengths", {"batch_size": 6, "decode_len": "ragged", "host_lens": "stale"}),
    *_both("fewer units than SMs", {"batch_size": 1, "num_sms": 23, "context_len": 300}),
    EdgeCase("one SM", _SMALL | {"batch_size": 5, "num_sms": 1}),
    EdgeCase(
        "more schedule rows than threads", _SMALL | _NATIVE | {"batch_size": 3, "num_sms": 260, "num_heads_q": 512}
    ),
    EdgeCase("L = 8 on 128 SMs, native", _SMALL | _NATIVE | {"batch_size": 3, "next_n": 8, "num_sms": 128}),
    EdgeCase("one part", _SMALL | {"batch_size": 7, "num_sm_parts": 1}),
    EdgeCase(
        "lengths of 2^30",
        {"batch_size": 2, "num_sms": 13, "block_size": 2**20, "max_model_len": 2**30, "context_len": 2**30},
    ),
    *_both(
        "lengths of 2^31 - 1", {"batch_size": 2, "num_sms": 13, "block_size": 2**20, "num_heads_q": 128, **_LONGEST}
    ),
    EdgeCase("B = 257, ragged", _LARGE | {"batch_size": 257, "decode_len": "ragged"}),
    EdgeCase("B = 257, ragged, native", _LARGE | _NATIVE | {"batch_size": 257, "decode_len": "ragged"}),
    EdgeCase("B = 1024, native", _LARGE | _NATIVE | {"batch_size": 1024}),
]

_CP = {"batch_size": 9, "cp_size": 4, "cp_rank": "last"}
_CP_LARGE = _LARGE | {"batch_size": 257, "decode_len": "ragged", "cp_size": 2, "cp_rank": "last"}
EDGE_CASES += [
    *_both("CP = 4, last rank", _CP),
    *_both(
        "CP = 8, interleave 64, first rank, padding rows, old layout",
        _CP | _OLD | {"cp_size": 8, "cp_interleave": 64, "cp_rank": "first", "padding": 0.3},
    ),
    *_both(
        "CP = 2, interleave 128, last rank, ragged, old layout, remainder at the back",
        _CP | _OLD | _RAGGED | {"cp_size": 2, "cp_interleave": 128, "block_size": 128, "remainder": "back"},
    ),
    *_both("CP = 4, lengths below the interleave", _CP | {"cp_interleave": 64, "context_len": {"uniform": [1, 63]}}),
    *_both(
        "CP = 4, lengths below the interleave, first rank",
        _CP | {"cp_interleave": 64, "cp_rank": "first", "context_len": {"uniform": [1, 63]}},
    ),
    *_both(
        "CP = 4, interleave 64, lengths around a segment",
        _CP | {"batch_size": 20, "cp_interleave": 64},
        _around_a_segment_of_the_last_of_four,
    ),
    *_both("CP = 4, seq_len < decode_len", _CP | {"batch_size": 4}, seq_len_below_decode_len),
    *_both("CP = 4, all requests are padding", _CP | {"batch_size": 4}, all_padding),
    EdgeCase("CP = 4, interleave 16, T > A", _SMALL | _CP | _RAGGED | {"cp_interleave": 16, "token_padding": 17}),
    *_both(
        "CP = 8, lengths of 2^31 - 1", {"batch_size": 2, "num_sms": 13, "block_size": 2**20, "cp_size": 8, **_LONGEST}
    ),
    EdgeCase("CP = 2, B = 257, ragged", _CP_LARGE),
    EdgeCase("CP = 2, B = 257, ragged, native", _CP_LARGE | _NATIVE),
]

# Random lengths, and random rows on the native path, so that a graph that keeps those of its capture is wrong.
_BIG = _SMALL | {"batch_size": 12, "context_len": {"uniform": [4, 2000]}}
_LITTLE = _SMALL | {"batch_size": 2, "max_decode_len": 3, "context_len": {"uniform": [4, 1500]}}
_ROWS = _NATIVE | {"decode_len": "ragged"}
_BIG_ROWS, _LITTLE_ROWS = _BIG | _ROWS, _LITTLE | _ROWS | {"batch_size": 5}
#: All lengths are 1 on every seed.
_DUMMY = _SMALL | {"batch_size": 12, "max_decode_len": 1, "context_len": 1}
_STRIPS = _LARGE | {
    "batch_size": 265,
    "next_n": 1,
    "block_size": 1,
    "max_model_len": 2100,
    "context_len": {"mix": [[0.8, {"uniform": [1, 9]}], [0.2, 2100]]},
}
SEQUENCES = {
    "big-small-big": (_BIG, _LITTLE, _BIG),
    "big-small-big, native": (_BIG_ROWS, _LITTLE_ROWS, _BIG_ROWS),
    "flatten-native-flatten": (_BIG, _LITTLE_ROWS, _BIG | {"decode_len": "ragged"}),
    "native-flatten-native": (_BIG_ROWS, _LITTLE, _BIG_ROWS | {"padding": 0.5}),
    "big-padded-big": (_BIG, _BIG | {"padding": 0.5, "decode_len": "ragged", "token_padding": 3}, _BIG),
    "real-dummy-real": (_BIG, _DUMMY, _BIG),
    "fewer parts each step": tuple(
        _BIG | {"max_decode_len": rows, "num_sms": 23, "num_heads_q": 128} for rows in (1, 2, 4)
    ),
    # Large batches as a sequence, whose steps are launched once: interpreting so many rows takes seconds.
    "1024-257-128 requests": tuple(_LARGE | {"batch_size": size, "decode_len": "ragged"} for size in (1024, 257, 128)),
    # More requests than there are programs for two strips of a row.
    "rows of three strips-two strips": (_STRIPS, _STRIPS | {"context_len": {"uniform": [1, 1500]}}),
}
