"""Edge cases of paged_mqa_schedule, and sequences of steps through the same table.

An edit changes the contents of the inputs (CPU tensors) in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.paged_mqa_schedule.operator import Inputs

_RAGGED = {"uniform": [1, 9000]}
#: Few SMs, yet enough to divide the work unevenly: Triton's interpreter is slow on 133 table rows.
_SMALL = {"num_sms": 23, "context_len": _RAGGED}
#: For large batches.
_FEW = {"next_n": 2, "num_sms": 13, "context_len": _RAGGED}
_BACK = {"remainder": "back"}
#: Lengths and ids by token.
_RUNS = {**_SMALL, "indices": "yes"}


def _set(x: Inputs, lengths: Sequence[int]) -> None:
    """The lengths in turn, each in all columns of its request."""
    for row in range(len(x.context_lens)):
        x.context_lens[row] = lengths[row % len(lengths)]


def _example(x: Inputs) -> None:
    _set(x, (1000, 0, 300, 64))


def _all_zero(x: Inputs) -> None:
    x.context_lens.zero_()


def _zeros_in_the_middle(x: Inputs) -> None:
    x.context_lens[1:-1] = 0


def _only_first(x: Inputs) -> None:
    x.context_lens[1:] = 0


def _only_last(x: Inputs) -> None:
    x.context_lens[:-1] = 0


def _every_second_zero(x: Inputs) -> None:
    x.context_lens[::2] = 0


def _fifteen_segments(x: Inputs) -> None:
    _set(x, (7 * 256, 0, 5 * 256, 3 * 256))


def _around_a_segment(x: Inputs) -> None:
    _set(x, (1, 255, 256, 257, 511, 512, 513))


def _negative_padding(x: Inputs) -> None:
    """What an unclamped chain leaves in padding rows: -1, -2, ...; and the smallest int32."""
    for row, lens in enumerate(x.context_lens):
        if lens.view(-1)[-1] == 0:
            x.context_lens[row] = (-1, -2, -255, -257, -(2**31))[row % 5]


#: What the covering array changes in generated inputs.
CONTENTS = {"negative_padding": _negative_padding, "every_second_zero": _every_second_zero}

EDGE_CASES = [
    EdgeCase("lengths 1000, 0, 300, 64", {"batch_size": 4, "next_n": 1, "num_sms": 4}, _example),
    EdgeCase(
        "lengths 1000, 0, 300, 64, remainder at the back",
        {"batch_size": 4, "next_n": 1, "num_sms": 4, **_BACK},
        _example,
    ),
    EdgeCase("B=1", {**_SMALL, "batch_size": 1, "context_len": 700}),
    EdgeCase("B=1, one token", {**_SMALL, "batch_size": 1, "next_n": 1, "context_len": 1}),
    EdgeCase(
        "B=1, one token, remainder at the back", {**_SMALL, **_BACK, "batch_size": 1, "next_n": 1, "context_len": 1}
    ),
    EdgeCase("B=1, one request on all SMs", {"batch_size": 1, "context_len": 163840}),
    EdgeCase("all lengths zero, B=1", {**_SMALL, "batch_size": 1}, _all_zero),
    EdgeCase("all lengths zero, B=31", {**_SMALL, "batch_size": 31}, _all_zero),
    EdgeCase("all lengths zero, B=32", {**_SMALL, "batch_size": 32}, _all_zero),
    EdgeCase("all lengths zero, B=33", {**_SMALL, **_BACK, "batch_size": 33}, _all_zero),
    EdgeCase("all lengths zero, B=64", {**_SMALL, **_BACK, "batch_size": 64}, _all_zero),
    EdgeCase("all lengths zero, B=1024", {**_FEW, **_BACK, "batch_size": 1024, "lens_layout": "1d"}, _all_zero),
    EdgeCase(
        "length 1 // compress_ratio 4 = 0",
        {**_SMALL, "batch_size": 32, "next_n": 1, "compress_ratio": 4, "context_len": 1},
    ),
    EdgeCase(
        "compress_ratio 128",
        {**_SMALL, "batch_size": 9, "compress_ratio": 128, "context_len": {"uniform": [1, 163840]}},
    ),
    EdgeCase("padding rows last", {**_SMALL, "batch_size": 9, "padding": 0.4}),
    EdgeCase("zero lengths in the middle", {**_SMALL, "batch_size": 7}, _zeros_in_the_middle),
    EdgeCase("zero lengths first", {**_SMALL, "batch_size": 7}, _only_last),
    EdgeCase("every second length zero", {**_FEW, "batch_size": 300}, _every_second_zero),
    EdgeCase("every second length zero, 1-D", {**_FEW, "batch_size": 700, "lens_layout": "1d"}, _every_second_zero),
    EdgeCase("work in the first of many requests", {**_FEW, "batch_size": 520}, _only_first),
    EdgeCase("work in the last of many requests", {**_FEW, "batch_size": 520}, _only_last),
    EdgeCase("negative lengths in padding rows", {**_SMALL, "batch_size": 9, "padding": 0.6}, _negative_padding),
    EdgeCase(
        "negative lengths in padding rows, 1-D",
        {**_SMALL, **_BACK, "batch_size": 9, "padding": 0.6, "lens_layout": "1d"},
        _negative_padding,
    ),
    EdgeCase("length exactly k * 256", {**_SMALL, "batch_size": 6, "context_len": 768}),
    EdgeCase(
        "length k * 256 + 1, shorter in all columns but the last", {**_SMALL, "batch_size": 6, "context_len": 769}
    ),
    EdgeCase("lengths around one segment", {**_SMALL, "batch_size": 14}, _around_a_segment),
    EdgeCase("fewer units than SMs", {"batch_size": 5, "context_len": 900}),
    EdgeCase("fewer units than SMs, remainder at the back", {**_SMALL, **_BACK, "batch_size": 5, "context_len": 200}),
    EdgeCase("as many units as SMs", {"batch_size": 8, "next_n": 1, "num_sms": 8, "context_len": 256}),
    EdgeCase("SMs divide the work", {"batch_size": 8, "next_n": 1, "num_sms": 4, "context_len": 700, **_BACK}),
    EdgeCase("all SMs but the last get a unit more", {"batch_size": 4, "next_n": 1, "num_sms": 8}, _fifteen_segments),
    EdgeCase(
        "all SMs but the first get a unit more",
        {"batch_size": 4, "next_n": 1, "num_sms": 8, **_BACK},
        _fifteen_segments,
    ),
    EdgeCase("L = 1", {**_SMALL, "batch_size": 5, "max_decode_len": 1}),
    EdgeCase("L = 2, one atom", {**_SMALL, "batch_size": 5, "next_n": 2}),
    EdgeCase("L = 3 < next_n, an atom and a half", {**_SMALL, "batch_size": 5, "max_decode_len": 3}),
    EdgeCase("L = 3, three atoms", {**_SMALL, **_BACK, "batch_size": 5, "next_n": 3, "atoms": 3}),
    EdgeCase("L = 40, 20 atoms", {**_SMALL, "batch_size": 3, "next_n": 40, "num_sms": 40}),
    EdgeCase("L = 4 not multiplied into the work", {**_SMALL, "batch_size": 5, "atoms": 1}),
    EdgeCase("1-D lengths", {**_SMALL, "batch_size": 33, "lens_layout": "1d"}),
    EdgeCase("one SM", {**_SMALL, "batch_size": 5, "num_sms": 1}),
    EdgeCase("two SMs, remainder at the back", {**_BACK, "batch_size": 5, "num_sms": 2, "context_len": 769}),
    EdgeCase("a table for more SMs than the producer cuts for", {**_SMALL, "batch_size": 9, "table_rows": 41}),
    EdgeCase(
        "a table for more SMs, all lengths zero",
        {**_SMALL, **_BACK, "batch_size": 9, "table_rows": 24 + 256},
        _all_zero,
    ),
    EdgeCase("runs of 4 tokens", {**_RUNS, "batch_size": 9}),
    EdgeCase("runs of 1 to 4 tokens, padding tokens", {**_RUNS, "batch_size": 11, "decode_len": "ragged"}),
    EdgeCase(
        "runs of 1 or 6 tokens, padding requests, remainder at the back",
        {**_RUNS, **_BACK, "batch_size": 12, "next_n": 6, "decode_len": "mixed", "padding": 0.3},
    ),
    EdgeCase("a run of 40 tokens", {**_RUNS, "batch_size": 1, "next_n": 40}),
    EdgeCase("runs of one token", {**_RUNS, "batch_size": 33, "next_n": 1}),
    EdgeCase("runs with fewer segments than SMs", {**_RUNS, "batch_size": 3, "context_len": 300}),
    EdgeCase("runs over the end of a segment", {**_RUNS, "batch_size": 6, "context_len": 258}),
    EdgeCase("runs, all lengths zero", {**_RUNS, "batch_size": 8}, _all_zero),
    EdgeCase("runs, negative lengths in padding tokens", {**_RUNS, "batch_size": 9, "padding": 0.6}, _negative_padding),
    EdgeCase("runs, compress_ratio 128", {**_RUNS, "batch_size": 9, "compress_ratio": 128}),
    EdgeCase("runs, 128 tokens", {**_FEW, "batch_size": 32, "next_n": 4, "indices": "yes"}),
    EdgeCase("runs, 129 tokens", {**_FEW, "batch_size": 43, "next_n": 3, "indices": "yes", "decode_len": "ragged"}),
    EdgeCase("runs, 258 tokens", {**_FEW, **_BACK, "batch_size": 86, "next_n": 3, "indices": "yes"}),
    EdgeCase("runs, 1028 tokens", {**_FEW, "batch_size": 257, "next_n": 4, "indices": "yes", "decode_len": "ragged"}),
    EdgeCase("runs, a table for more SMs", {**_RUNS, **_BACK, "batch_size": 9, "table_rows": 41}),
    EdgeCase("16 SMs", {**_SMALL, "batch_size": 12, "num_sms": 16}),
    EdgeCase("78 SMs", {**_SMALL, "batch_size": 12, "num_sms": 78}),
    EdgeCase("66 clusters of two SMs, remainder at the back", {**_SMALL, **_BACK, "batch_size": 12, "num_sms": 66}),
    EdgeCase("148 SMs", {**_SMALL, "batch_size": 12, "num_sms": 148}),
    EdgeCase("more table rows than threads", {**_SMALL, "batch_size": 40, "num_sms": 260}),
    EdgeCase("more table rows than threads, many requests", {**_FEW, "batch_size": 300, "num_sms": 260}),
    EdgeCase(
        "many requests of up to 2^30 tokens",
        {**_FEW, "batch_size": 129, "next_n": 1, "max_model_len": 2**30, "context_len": {"uniform": [1, 2**30]}},
    ),
    EdgeCase(
        "B = 128", {"batch_size": 128, "num_sms": 66, "context_len": {"lognormal": {"median": 4096, "sigma": 1.0}}}
    ),
    EdgeCase(  # with so many units that a share of 65 SMs is smaller
        "B = 128 on 64 SMs, remainder at the back",
        {**_FEW, **_BACK, "batch_size": 128, "num_sms": 64, "context_len": {"uniform": [9000, 20000]}},
    ),
    EdgeCase(  # where the product with a reciprocal of 29 bits is too large
        "118 * 2^23 units, one less than 15 SMs divide",
        {"batch_size": 118, "next_n": 1, "num_sms": 15, "max_model_len": 2**31 - 1, "context_len": 2**31 - 1},
    ),
    EdgeCase("B = 129", {**_FEW, **_BACK, "batch_size": 129}),
    EdgeCase(
        "B = 129 on 128 SMs, negative lengths in padding rows",
        {**_FEW, "batch_size": 129, "num_sms": 128, "padding": 0.1},
        _negative_padding,
    ),
    EdgeCase("B = 256", {**_FEW, "batch_size": 256}),
    EdgeCase("B = 257", {**_FEW, "batch_size": 257, "next_n": 4}),
    EdgeCase("B = 1024, 1-D", {**_FEW, "batch_size": 1024, "lens_layout": "1d"}),
    EdgeCase("B = 1025", {**_FEW, **_BACK, "batch_size": 1025}),
    # A kernel whose static shared memory grows with the batch cannot launch here (DeepGEMM #322).
    EdgeCase("B = 8192", {**_FEW, "batch_size": 8192, "next_n": 1, "num_sms": 5}),
    EdgeCase(
        "lengths of 2^31 - 1", {"batch_size": 2, "num_sms": 17, "max_model_len": 2**31 - 1, "context_len": 2**31 - 1}
    ),
    EdgeCase(
        "nearly 2^30 units", {"batch_size": 63, "num_sms": 17, "max_model_len": 2**31 - 1, "context_len": 2**31 - 1}
    ),
]

# Random lengths, so that a graph that keeps the lengths of its capture is wrong.
_LARGE, _LITTLE = {**_SMALL, "batch_size": 40}, {**_SMALL, "batch_size": 2, "max_decode_len": 3}
SEQUENCES = {
    "big-small-big": (_LARGE, _LITTLE, _LARGE),
    "big-padded-big": (_LARGE, _LARGE | {"padding": 0.5}, _LARGE),
    "real-dummy-real": (
        _LARGE,
        _LARGE | {"batch_size": 32, "next_n": 1, "compress_ratio": 4, "context_len": 1},
        _LARGE,
    ),
    "22-11-22 SMs in a table of 30 rows": tuple(_LARGE | {"num_sms": sms, "table_rows": 30} for sms in (22, 11, 22)),
    "22-11-22 SMs": (_LARGE | {"num_sms": 22}, _LARGE | {"num_sms": 11}, _LARGE | {"num_sms": 22}),
    "runs of 4, of 1 to 3, of 4 tokens": (
        _LARGE | {"indices": "yes"},
        _LARGE | {"indices": "yes", "max_decode_len": 3, "decode_len": "ragged", "padding": 0.2},
        _LARGE | {"indices": "yes"},
    ),
    "front-back-front": (_LARGE, _LARGE | _BACK, _LARGE),
}
