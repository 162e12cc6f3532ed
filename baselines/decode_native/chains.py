"""decode_native in PyTorch operators, and the historic bugs of these chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from spec_decode_bench.baselines.dcp_lengths.chains import local_lengths
from spec_decode_bench.baselines.dcp_lengths.operator import ranks_of
from spec_decode_bench.baselines.decode_native.operator import Inputs, Outputs
from spec_decode_bench.harness.contract import Point, variant


def _end_aligned(point: Point) -> str | None:
    return "end-aligned rows only, as upstream" if point.row_alignment == "front" else None


def _full_rows_only(point: Point) -> str | None:
    if point.padding or point.decode_len != "uniform":
        return "no clamp: wrong for rows shorter than L"
    return _end_aligned(point)


def _fill(
    point: Point,
    x: Inputs,
    target: torch.Tensor,
    clamp: bool = True,
    compress_ratio: int | None = None,
    localize: bool = True,
) -> Callable[[], None]:
    """unsqueeze, sub, add, add, [clamp_], [// ratio], copy into ``target``, int32 (B, L) of any stride."""
    seq_lens, width = x.seq_lens, point.max_decode_len
    ratio = compress_ratio or point.compress_ratio
    offsets = torch.arange(point.next_n, dtype=torch.int32, device=target.device)

    def launch():
        lens = seq_lens.unsqueeze(1) - width + 1 + offsets[:width]
        if clamp:
            lens.clamp_(min=0)
        if localize and point.cp_size > 1:
            lens = local_lengths(lens, ranks_of(point))
        if ratio > 1:
            lens //= ratio
        target.copy_(lens)

    return launch


@variant("decode_native", skip=_full_rows_only, waives="no_alloc")
def chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The operator chain of vLLM 0.22, without the clamp: right only where every row has L tokens."""
    return _fill(point, x, out.views(point)["context_lens"], clamp=False)


@variant("decode_native", skip=_end_aligned, waives="no_alloc")
def chain_clamp(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The operator chain with the clamp of vLLM #51538."""
    return _fill(point, x, out.views(point)["context_lens"])


def _one_rank(point: Point) -> str | None:
    return _end_aligned(point) or (None if point.cp_size == 1 else "one context-parallel rank only")


@variant("decode_native", skip=_one_rank)
def flat_view(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One broadcast add with precomputed offsets into a view of the flat buffer (``out=``), then an in-place clamp."""
    shifted = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32, device=out.buffer.device)
    seq_lens, view = x.seq_lens.unsqueeze(1), out.views(point)["context_lens"]

    def launch():
        torch.add(seq_lens, shifted, out=view)
        view.clamp_(min=0)
        if point.compress_ratio > 1:
            view.floor_divide_(point.compress_ratio)

    return launch


# --- historic defects -------------------------------------------------------------------------------------------------


def _fill_slice(
    point: Point, x: Inputs, out: Outputs, returned: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[], Mapping[str, torch.Tensor]]:
    """The chain into a (B, L) slice of the old 2-D storage (max_num_seqs, next_n), whose row stride is next_n.

    The launch returns ``returned(slice)`` to the consumer.
    """
    rows = out.buffer.numel() // point.next_n
    storage = out.buffer[: rows * point.next_n].view(rows, point.next_n)
    view = storage[: point.batch_size, : point.max_decode_len]
    fill = _fill(point, x, view)

    def launch():
        fill()
        return {"context_lens": returned(view)}

    return launch


@variant(
    "decode_native",
    defect="a strided 2-D slice is returned to the consumer (vLLM #42135, variant A)",
    skip=_end_aligned,
    waives="no_alloc",
)
def strided_slice(point: Point, x: Inputs, out: Outputs) -> Callable[[], Mapping[str, torch.Tensor]]:
    return _fill_slice(point, x, out, lambda view: view)


@variant(
    "decode_native",
    defect=".contiguous() in every step: the address changes (vLLM #40989, rejected)",
    skip=_end_aligned,
    waives="no_alloc",
)
def contiguous_per_step(point: Point, x: Inputs, out: Outputs) -> Callable[[], Mapping[str, torch.Tensor]]:
    return _fill_slice(point, x, out, torch.Tensor.contiguous)


@variant(
    "decode_native",
    defect="no clamp: padding requests get negative lengths (vLLM #51538)",
    skip=_end_aligned,
    waives="no_alloc",
)
def missing_clamp(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return chain(point, x, out)


@variant(
    "decode_native",
    defect="rows packed at their front get lengths aligned at their end (suspected in upstream's ragged rows)",
    skip=lambda p: "front-aligned rows only" if p.row_alignment == "end" else None,
    waives="no_alloc",
)
def end_aligned_front_rows(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return chain_clamp(point, x, out)


@variant(
    "decode_native",
    defect="the shared seq_lens are divided by compress_ratio in place (like vLLM 0.19's clamped table)",
    skip=_end_aligned,
    waives="no_alloc",
)
def ratio_in_place(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """``lens //= ratio`` on the shared tensor: the lengths written here are right, those that the next consumer
    reads are not.
    """
    fill = chain_clamp(point, x, out)

    def launch():
        fill()
        x.seq_lens.floor_divide_(point.compress_ratio)

    return launch


_RATIOS: list[int] = []


@variant(
    "decode_native",
    defect="a host constant, here compress_ratio, is kept from the first capture (like TRT-LLM #16219)",
    skip=_end_aligned,
    waives="no_alloc",
)
def ratio_of_first_capture(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    _RATIOS.append(point.compress_ratio)
    return _fill(point, x, out.views(point)["context_lens"], compress_ratio=_RATIOS[0])


@variant(
    "decode_native",
    defect="the local length of a request is expanded, as if it grew with every token (vLLM #46076)",
    skip=lambda p: _end_aligned(p) or ("one rank" if p.cp_size == 1 else None),
    waives="no_alloc",
)
def local_length_expanded(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    local, ranks = x.seq_lens.clone(), ranks_of(point)
    expand = _fill(point, replace(x, seq_lens=local), out.views(point)["context_lens"], localize=False)

    def launch() -> None:
        local.copy_(local_lengths(x.seq_lens, ranks))
        expand()

    return launch
