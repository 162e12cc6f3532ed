"""Historic bugs of dcp_lengths, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.dcp_lengths.chains import fill, op_chain, set_up
from spec_decode_bench.baselines.dcp_lengths.operator import Inputs, Outputs, ranks_of
from spec_decode_bench.baselines.workloads.broken import keeping
from spec_decode_bench.harness.contract import Point, variant


@variant(
    "dcp_lengths",
    defect="a rank that has nothing of a request gets a negative length (vllm-ascend #12840)",
    skip=lambda p: "the first rank's offset is 0" if p.cp_rank == "first" else None,
)
def negative_lengths(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    size, rank, interleave = ranks_of(point)

    def unclamped(target: torch.Tensor, lengths: torch.Tensor, _: tuple[int, int, int]) -> None:
        base = lengths // (size * interleave) * interleave
        left = lengths - base * size - rank * interleave
        target[: len(lengths)].copy_(base + left.clamp(max=interleave))
        target[len(lengths) :].zero_()

    return set_up(point, x, out, unclamped)


@variant(
    "dcp_lengths",
    defect="lengths of the graph's capture, or of the target in the drafter's passes (vLLM #36070, #54278)",
)
def lengths_of_setup(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, replace(x, seq_lens=x.seq_lens.clone()), out)


@variant("dcp_lengths", defect="rows of padding keep the lengths of a larger batch (vllm-ascend #16546)")
def padding_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.local_seq_lens[x.num_reqs :])


@variant(
    "dcp_lengths",
    defect="ranks are taken to hold single tokens in turn (vLLM #30309)",
    skip=lambda p: "they do" if p.cp_interleave == 1 else None,
)
def interleave_of_one(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    size, rank, _ = ranks_of(point)
    return set_up(point, x, out, lambda target, lengths, ranks: fill(target, lengths, (size, rank, 1)))
