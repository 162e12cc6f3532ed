"""decode_native: 2-D per-token context lengths, for a paged-MQA-logits kernel that takes next_n > 1 natively.

    context_lens[b, j] = max(seq_lens[b] - L + 1 + j, 0) // compress_ratio          j = 0 .. L-1,  L = max_decode_len

int32 (B, L), contiguous, a view of the first B * L elements of one flat persistent buffer, so that every (B, L) has the
same address. Contiguity matters: the consumer addresses element (b, j) as b * next_n + j and takes no stride. The rest
of the buffer keeps what it held. The block table needs no expansion. Entries of padding requests must be 0: consumers
read uint32, and -1 becomes 4 * 10^9 tokens of work (vLLM #51538, flashinfer #5015).

Rows are aligned at their END with the batch maximum L, as upstream does, so the last column is the request's length.
For a ragged row packed at the FRONT the true length at column j is seq_lens[b] - decode_lens[b] + 1 + j; that
convention is ``row_alignment: front`` here (columns past the row are 0). vLLM splits native batches into uniform ones,
so its ragged rows are padding only, where both conventions give zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baselines.decode_native._forms import context_lens, native_chain
from baselines.workloads import axes
from baselines.workloads.decode_batch import make_batch
from harness.contract import Axis, Expected, HardPoint, Operator, Point, Rule, variant

ROW_ALIGNMENT = Axis(
    "row_alignment", axes.choice("end", "front"), "end", "which end of a ragged row its tokens are packed at"
)


@dataclass(frozen=True)
class Inputs:
    seq_lens: Tensor  # [B] int32; 0 = padding request
    decode_lens: Tensor  # [B] int32


@dataclass(frozen=True)
class Outputs:
    buffer: Tensor  # [max_num_batched_tokens] int32


def make_inputs(point: Point, seed: int) -> Inputs:
    batch = make_batch(point, seed)
    return Inputs(batch.seq_lens, batch.decode_lens)


def make_outputs(point: Point) -> Outputs:
    return Outputs(torch.empty(point.max_num_batched_tokens, dtype=torch.int32))


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    entries = point.batch_size * point.max_decode_len
    return {"context_lens": out.buffer[:entries].view(point.batch_size, point.max_decode_len)}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    front, capacity = point.row_alignment == "front", point.max_num_batched_tokens
    lens = context_lens(x.seq_lens.tolist(), x.decode_lens.tolist(), point.max_decode_len, front, point.compress_ratio)
    value = torch.tensor(lens + [0] * (capacity - len(lens)), dtype=torch.int32)
    return {"buffer": Expected(value, untouched=torch.arange(capacity) >= len(lens))}


def bytes_moved(point: Point, x: Inputs) -> int:
    """seq_lens once (and decode_lens where rows are aligned at their front), B * L entries written once."""
    per_request = 1 if point.row_alignment == "end" else 2
    return 4 * (point.batch_size * per_request + point.batch_size * point.max_decode_len)


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


def _end_aligned(point: Point) -> str | None:
    return "end-aligned rows only, as upstream" if point.row_alignment == "front" else None


def _full_rows_only(point: Point) -> str | None:
    if point.padding or point.decode_len != "uniform":
        return "no clamp: wrong for rows shorter than L"
    return _end_aligned(point)


def _chain(point: Point, x: Inputs, target: Tensor, clamp: bool = True, compress_ratio: int | None = None):
    return native_chain(x.seq_lens, target, point.next_n, compress_ratio or point.compress_ratio, clamp)


@variant("decode_native", skip=_full_rows_only, waives="no_alloc")
def chain(point, x, out):
    """The operator chain of vLLM 0.22, without the clamp: right only where every row has L tokens."""
    return _chain(point, x, views(point, out)["context_lens"], clamp=False)


@variant("decode_native", skip=_end_aligned, waives="no_alloc")
def chain_clamp(point, x, out):
    """The operator chain with the clamp of vLLM #51538: what runs today."""
    return _chain(point, x, views(point, out)["context_lens"])


@variant("decode_native", skip=_end_aligned)
def flat_view(point, x, out):
    """The flat buffer's view as ``out=`` of one broadcast add with offsets shifted beforehand, clamped in place."""
    shifted = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32, device=out.buffer.device)
    seq_lens, view = x.seq_lens.unsqueeze(1), views(point, out)["context_lens"]

    def launch():
        torch.add(seq_lens, shifted, out=view)
        view.clamp_(min=0)
        if point.compress_ratio > 1:
            view.floor_divide_(point.compress_ratio)

    return launch


# --- historic defects -------------------------------------------------------------------------------------------------


def _two_dimensional(point: Point, out: Outputs) -> Tensor:
    """The old 2-D storage (max_num_seqs, next_n), sliced to (B, L): row stride next_n."""
    rows = out.buffer.numel() // point.next_n
    return out.buffer[: rows * point.next_n].view(rows, point.next_n)[: point.batch_size, : point.max_decode_len]


def _chain_into_slice(point: Point, x: Inputs, out: Outputs, hand_on):
    """The chain into a slice of the 2-D storage; the consumer is handed what ``hand_on`` makes of the slice."""
    view = _two_dimensional(point, out)
    fill = _chain(point, x, view)

    def launch():
        fill()
        return {"context_lens": hand_on(view)}

    return launch


@variant(
    "decode_native",
    defect="a strided 2-D slice is handed on as it is (vLLM #42135, variant A)",
    skip=_end_aligned,
    waives="no_alloc",
)
def strided_slice(point, x, out):
    return _chain_into_slice(point, x, out, lambda view: view)


@variant(
    "decode_native",
    defect=".contiguous() per step: the address moves (vLLM #40989, rejected)",
    skip=_end_aligned,
    waives="no_alloc",
)
def contiguous_per_step(point, x, out):
    return _chain_into_slice(point, x, out, Tensor.contiguous)


@variant(
    "decode_native",
    defect="no clamp: padding requests get negative lengths (vLLM #51538)",
    skip=_end_aligned,
    waives="no_alloc",
)
def missing_clamp(point, x, out):
    return _chain(point, x, views(point, out)["context_lens"], clamp=False)


@variant(
    "decode_native",
    defect="rows packed at their front get lengths aligned at their end (suspected in upstream's ragged rows)",
    skip=lambda p: "front-aligned rows only" if p.row_alignment == "end" else None,
    waives="no_alloc",
)
def end_aligned_front_rows(point, x, out):
    return _chain(point, x, views(point, out)["context_lens"])


@variant(
    "decode_native",
    defect="the shared seq_lens are divided by compress_ratio in place (the kind of vLLM 0.19's clamped table)",
    skip=_end_aligned,
    waives="no_alloc",
)
def ratio_in_place(point, x, out):
    """``lens //= ratio`` where lens is the step's own tensor: the lengths here are right, those of the next reader
    are not.
    """
    fill = _chain(point, x, views(point, out)["context_lens"])

    def launch():
        fill()
        x.seq_lens.floor_divide_(point.compress_ratio)

    return launch


_RATIOS: list[int] = []


@variant(
    "decode_native",
    defect="a host constant is kept from the first capture: here compress_ratio (the kind of TRT-LLM #16219)",
    skip=_end_aligned,
    waives="no_alloc",
)
def ratio_of_first_capture(point, x, out):
    _RATIOS.append(point.compress_ratio)
    return _chain(point, x, views(point, out)["context_lens"], compress_ratio=_RATIOS[0])


# --- points that break implementations --------------------------------------------------------------------------------


def _seq_len_below_row(x: Inputs) -> None:
    x.seq_lens.clamp_(max=2)


def _all_padding(x: Inputs) -> None:
    x.seq_lens.zero_()
    x.decode_lens.zero_()


HARD_POINTS = [
    HardPoint("B=1", {"batch_size": 1, "context_len": 700}),
    HardPoint("L = 1", {"batch_size": 5, "max_decode_len": 1, "context_len": 900}),
    HardPoint("L < next_n", {"batch_size": 5, "max_decode_len": 3, "context_len": 900}),
    HardPoint("L = next_n, not a power of two", {"batch_size": 5, "next_n": 6, "context_len": 900}),
    HardPoint("B * L = capacity", {"batch_size": 8, "max_num_batched_tokens": 32, "context_len": 300}),
    HardPoint("seq_len = L", {"batch_size": 4, "context_len": 4}),
    HardPoint("seq_len < L", {"batch_size": 4, "context_len": 900, "padding": 0.2}, _seq_len_below_row),
    HardPoint("padding rows", {"batch_size": 7, "padding": 0.4, "context_len": {"uniform": [4, 3000]}}),
    HardPoint("all rows padding", {"batch_size": 4, "context_len": 200, "padding": 0.5}, _all_padding),
    HardPoint(
        "compress_ratio 4", {"batch_size": 6, "padding": 0.2, "compress_ratio": 4, "context_len": {"uniform": [1, 20]}}
    ),
    HardPoint(
        "compress_ratio 128",
        {"batch_size": 6, "padding": 0.2, "compress_ratio": 128, "context_len": {"uniform": [1, 1000]}},
    ),
    HardPoint(
        "ragged rows, end-aligned", {"batch_size": 9, "decode_len": "ragged", "context_len": {"uniform": [4, 900]}}
    ),
    HardPoint(
        "ragged rows, front-aligned",
        {
            "batch_size": 9,
            "decode_len": "ragged",
            "row_alignment": "front",
            "padding": 0.2,
            "context_len": {"uniform": [4, 900]},
        },
    ),
    HardPoint(
        "B = 257", {"batch_size": 257, "max_decode_len": 3, "padding": 0.1, "context_len": {"uniform": [1, 163840]}}
    ),
]

# Lengths that differ from batch to batch: a graph that kept those of its capture must not come out right.
_BIG = {"batch_size": 9, "context_len": {"uniform": [4, 2000]}}
_SMALL = {"batch_size": 2, "max_decode_len": 3, "context_len": {"uniform": [4, 200]}}
SEQUENCES = {"big-small-big": (_BIG, _SMALL, _BIG), "big-padded-big": (_BIG, _BIG | {"padding": 0.5}, _BIG)}

operator = Operator(
    name="decode_native",
    summary="(B, L) context lengths for kernels that take several query tokens per request",
    axes=(*axes.DECODE_STEP, axes.COMPRESS_RATIO, ROW_ALIGNMENT, axes.MAX_NUM_BATCHED_TOKENS),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="chain_clamp",
    hard_points=HARD_POINTS,
    sequences=SEQUENCES,
    rules=(
        *axes.DECODE_STEP_RULES,
        Rule(
            "batch_size x max_decode_len ({batch_size} x {max_decode_len}) must not exceed max_num_batched_tokens "
            "({max_num_batched_tokens})",
            lambda p: p.batch_size * p.max_decode_len <= p.max_num_batched_tokens,
        ),
    ),
    redundant=axes.same_batch_elsewhere,
)
