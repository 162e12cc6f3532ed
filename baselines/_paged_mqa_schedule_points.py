"""The batches that break implementations of paged_mqa_schedule, and sequences of steps through the same table.

Each edit gets the operator's Inputs as CPU tensors and changes their contents in place.
"""

from __future__ import annotations

from harness.contract import HardPoint

#: Few pieces where the number of requests is the point: interpreted kernels take a while for 133 rows of a large batch.
_FEW = {"next_n": 2, "num_sms": 13, "context_len": {"uniform": [1, 9000]}}
_RAGGED = {"uniform": [1, 9000]}
#: One segment less than twice the SMs: all but one of them get a second unit.
_ONE_SHORT = {"batch_size": 4, "next_n": 1, "num_sms": 8, "context_len": 256}


def _no_work(x) -> None:
    x.context_lens.zero_()


def _example(x) -> None:
    for row, length in enumerate((1000, 0, 300, 64)):
        x.context_lens[row] = length


def _zeros_in_the_middle(x) -> None:
    x.context_lens[1:-1] = 0


def _zeros_first(x) -> None:
    x.context_lens[:-1] = 0


def _every_second_zero(x) -> None:
    x.context_lens[::2] = 0


def _only_first(x) -> None:
    x.context_lens[1:] = 0


def _fifteen_segments(x) -> None:
    for row, segments in enumerate((7, 0, 5, 3)):
        x.context_lens[row] = segments * 256


def _around_a_segment(x) -> None:
    for row in range(len(x.context_lens)):
        x.context_lens[row] = (1, 255, 256, 257, 511, 512, 513)[row % 7]


def _negative_padding(x) -> None:
    """What an unclamped chain leaves in padding rows: -1, -2, ... up to the smallest int32."""
    padding = (x.context_lens == 0).nonzero()[:, 0].unique()
    for i, row in enumerate(padding.tolist()):
        x.context_lens[row] = (-1, -2, -255, -257, -(2**31))[i % 5]


HARD_POINTS = [
    HardPoint("lengths 1000, 0, 300, 64", {"batch_size": 4, "next_n": 1, "num_sms": 4, "context_len": 1000}, _example),
    HardPoint(
        "lengths 1000, 0, 300, 64, remainder at the back",
        {"batch_size": 4, "next_n": 1, "num_sms": 4, "context_len": 1000, "remainder": "back"},
        _example,
    ),
    HardPoint("B=1", {"batch_size": 1, "context_len": 700}),
    HardPoint("B=1, one token", {"batch_size": 1, "next_n": 1, "context_len": 1}),
    HardPoint("B=1, one token, remainder at the back", {"batch_size": 1, "next_n": 1, "context_len": 1, "remainder": "back"}),
    HardPoint("B=1, one request on all SMs", {"batch_size": 1, "context_len": 163840}),
    HardPoint("no work, B=1", {"batch_size": 1, "context_len": 200}, _no_work),
    HardPoint("no work, B=31", {"batch_size": 31, "context_len": 200}, _no_work),
    HardPoint("no work, B=32", {"batch_size": 32, "context_len": 200}, _no_work),
    HardPoint("no work, B=33", {"batch_size": 33, "context_len": 200, "remainder": "back"}, _no_work),
    HardPoint("no work, B=64, remainder at the back", {"batch_size": 64, "context_len": 200, "remainder": "back"}, _no_work),
    HardPoint("no work, B=1024", {**_FEW, "batch_size": 1024, "remainder": "back", "lens_layout": "1d"}, _no_work),
    HardPoint("length 1 // compress_ratio 4 = 0", {"batch_size": 32, "next_n": 1, "compress_ratio": 4, "context_len": 1}),
    HardPoint("compress_ratio 128", {"batch_size": 9, "compress_ratio": 128, "context_len": {"uniform": [1, 163840]}}),
    HardPoint("padding rows last", {"batch_size": 9, "padding": 0.4, "context_len": _RAGGED}),
    HardPoint("zero lengths in the middle", {"batch_size": 7, "context_len": _RAGGED}, _zeros_in_the_middle),
    HardPoint("zero lengths first", {"batch_size": 7, "context_len": _RAGGED}, _zeros_first),
    HardPoint("every second length zero", {**_FEW, "batch_size": 300}, _every_second_zero),
    HardPoint("every second length zero, 1-D", {**_FEW, "batch_size": 700, "lens_layout": "1d"}, _every_second_zero),
    HardPoint("work in the first of many requests", {**_FEW, "batch_size": 520}, _only_first),
    HardPoint("work in the last of many requests", {**_FEW, "batch_size": 520}, _zeros_first),
    HardPoint("negative lengths in padding rows", {"batch_size": 9, "padding": 0.6, "context_len": 900}, _negative_padding),
    HardPoint(
        "negative lengths in padding rows, 1-D",
        {"batch_size": 9, "padding": 0.6, "context_len": 900, "lens_layout": "1d", "remainder": "back"},
        _negative_padding,
    ),
    HardPoint("length exactly k * 256", {"batch_size": 6, "context_len": 768}),
    HardPoint("length k * 256 + 1: last column", {"batch_size": 6, "context_len": 769}),
    HardPoint("lengths around one segment", {"batch_size": 14, "num_sms": 8, "context_len": 513}, _around_a_segment),
    HardPoint("fewer units than SMs", {"batch_size": 5, "context_len": 900}),
    HardPoint("fewer units than SMs, remainder at the back", {"batch_size": 5, "context_len": 900, "remainder": "back"}),
    HardPoint("as many units as SMs", {"batch_size": 8, "next_n": 1, "num_sms": 8, "context_len": 256}),
    HardPoint("SMs divide the work", {"batch_size": 8, "next_n": 1, "num_sms": 4, "context_len": 700, "remainder": "back"}),
    HardPoint("all SMs but one get a unit more", {**_ONE_SHORT, "max_model_len": 1792}, _fifteen_segments),
    HardPoint("all SMs but the first get a unit more", {**_ONE_SHORT, "max_model_len": 1792, "remainder": "back"}, _fifteen_segments),
    HardPoint("L = 1", {"batch_size": 5, "max_decode_len": 1, "context_len": _RAGGED}),
    HardPoint("L = 2, one atom", {"batch_size": 5, "next_n": 2, "context_len": _RAGGED}),
    HardPoint("L = 3 < next_n, an atom and a half", {"batch_size": 5, "max_decode_len": 3, "context_len": _RAGGED}),
    HardPoint("L = 3, three atoms", {"batch_size": 5, "next_n": 3, "atoms": 3, "context_len": _RAGGED, "remainder": "back"}),
    HardPoint("L = 40, 20 atoms", {"batch_size": 3, "next_n": 40, "num_sms": 40, "context_len": _RAGGED}),
    HardPoint("atoms not multiplied into the work", {"batch_size": 5, "atoms": 1, "context_len": _RAGGED}),
    HardPoint("1-D lengths", {"batch_size": 33, "lens_layout": "1d", "context_len": _RAGGED}),
    HardPoint("one SM", {"batch_size": 5, "num_sms": 1, "context_len": _RAGGED}),
    HardPoint("two SMs, remainder at the back", {"batch_size": 5, "num_sms": 2, "context_len": 769, "remainder": "back"}),
    HardPoint("78 SMs", {"batch_size": 12, "num_sms": 78, "context_len": _RAGGED}),
    HardPoint("66 clusters", {"batch_size": 12, "num_sms": 66, "context_len": _RAGGED, "remainder": "back"}),
    HardPoint("148 SMs", {"batch_size": 12, "num_sms": 148, "context_len": _RAGGED}),
    HardPoint("more rows than threads", {"batch_size": 40, "num_sms": 300, "context_len": _RAGGED}),
    HardPoint("B = 128", {"batch_size": 128, "num_sms": 66, "context_len": {"lognormal": {"median": 4096, "sigma": 1.0}}}),
    HardPoint("B = 256", {**_FEW, "batch_size": 256}),
    HardPoint("B = 257", {**_FEW, "batch_size": 257, "next_n": 4}),
    HardPoint("B = 1024, 1-D", {**_FEW, "batch_size": 1024, "lens_layout": "1d"}),
    HardPoint("B = 1025", {**_FEW, "batch_size": 1025, "remainder": "back"}),
    HardPoint("B = 8192: no table of lengths fits in shared memory twice", {**_FEW, "batch_size": 8192, "next_n": 1}),
    HardPoint("lengths of 2^31 - 1", {"batch_size": 2, "num_sms": 17, "max_model_len": 2**31 - 1, "context_len": 2**31 - 1}),
    HardPoint("nearly 2^30 units", {"batch_size": 63, "num_sms": 17, "max_model_len": 2**31 - 1, "context_len": 2**31 - 1}),
]

_BIG, _SMALL = {"batch_size": 40, "context_len": _RAGGED}, {"batch_size": 2, "max_decode_len": 3, "context_len": 200}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "big-padded-big": (_BIG, _BIG | {"padding": 0.5}, _BIG),
    "132-66-132 SMs": (_BIG, _BIG | {"num_sms": 66}, _BIG),
    "real-dummy-real": (_BIG, {"batch_size": 32, "next_n": 1, "compress_ratio": 4, "context_len": 1}, _BIG),
    "front-back-front": (_BIG, _BIG | {"remainder": "back"}, _BIG),
}
