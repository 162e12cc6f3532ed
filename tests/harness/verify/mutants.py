"""Healthy chains with a flaw that shows at size alone. They pass every edge case and sequence, and what is legal and
larger must reject them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spec_decode_bench.baselines.decode_flatten.chains import merged_chain
from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.baselines.k_quant_gather.chains import op_chain as k_quant_chain
from spec_decode_bench.baselines.mamba_state_copy.chains import masked_chain
from spec_decode_bench.baselines.paged_mqa_schedule.chains import op_chain as schedule_chain
from spec_decode_bench.baselines.seq_lens_update.chains import op_chain as update_chain
from spec_decode_bench.harness.contract import Point, Variant

Setup = Callable[[Point, Any, Any], Callable[[], Any]]


@dataclass(frozen=True)
class Mutant:
    """healthy: the chain it was made of. setup: the chain with the flaw."""

    name: str
    healthy: Setup
    setup: Setup

    @property
    def variant(self) -> Variant:
        return replace(self.healthy.__variant__, name=self.name, setup=self.setup, origin=__name__)


def unwritten(name: str, healthy: Setup, parts: Callable[[Point, Any], list[Tensor]]) -> Mutant:
    """The chain never writes these views of its outputs."""

    def setup(point: Point, x: Any, out: Any) -> Callable[[], None]:
        launch, left_alone = healthy(point, x, out), parts(point, out)

        def flawed() -> None:
            before = [part.clone() for part in left_alone]
            launch()
            for part, content in zip(left_alone, before, strict=True):
                part.copy_(content)

        return flawed

    return Mutant(name, healthy, setup)


def misread(name: str, healthy: Setup, tensor: str, seen: Callable[[Point, Tensor], Tensor]) -> Mutant:
    """The chain reads ``seen(point, input)`` in place of an input."""

    def setup(point: Point, x: Any, out: Any) -> Callable[[], None]:
        # A new set-up in every launch: the chain may hold views of what it was set up with.
        return lambda: healthy(point, replace(x, **{tensor: seen(point, getattr(x, tensor))}), out)()

    return Mutant(name, healthy, setup)


def _compressed(name: str, divide: Callable[[Tensor, int], Tensor]) -> Mutant:
    """chain_clamp with another division by compress_ratio."""

    def setup(point: Point, x: Any, out: Any) -> Callable[[], None]:
        fill = chain_clamp(Point({**point, "compress_ratio": 1}), x, out)
        entries = out.buffer[: point.batch_size * point.max_decode_len]

        def flawed() -> None:
            fill()
            entries.copy_(divide(entries.long(), point.compress_ratio))

        return flawed

    return Mutant(name, chain_clamp, setup)


def _wrapped(limit: int) -> Callable[[Point, Tensor], Tensor]:
    """A table whose columns past ``limit`` are read from its start again."""
    return lambda point, table: table[:, torch.arange(table.shape[1], device=table.device) % limit]


def _first(requests: int) -> Callable[[Point, Tensor], Tensor]:
    """Lengths of which only the first ones count."""

    def seen(point: Point, lens: Tensor) -> Tensor:
        return torch.where(
            (torch.arange(len(lens), device=lens.device) < requests).view(-1, *[1] * (lens.dim() - 1)), lens, 0
        )

    return seen


MUTANTS = [
    unwritten("grid_of_8_blocks", chain_clamp, lambda p, out: [out.buffer[1024 : p.batch_size * p.max_decode_len]]),
    unwritten(
        "entry_index_of_16_bits", chain_clamp, lambda p, out: [out.buffer[2**15 : p.batch_size * p.max_decode_len]]
    ),
    unwritten(
        "rows_of_256",
        chain_clamp,
        lambda p, out: [out.buffer[: p.batch_size * p.max_decode_len].view(p.batch_size, p.max_decode_len)[:, 256:]],
    ),
    _compressed("ratio_as_shift", lambda lens, ratio: lens >> ratio.bit_length() - 1),
    _compressed("reciprocal_rounded_down", lambda lens, ratio: lens * (2**31 // ratio) >> 31),
    unwritten("tail_up_to_8192", merged_chain, lambda p, out: [out.lens[8192:]]),
    misread("columns_past_64_wrap", k_quant_chain, "block_table", _wrapped(64)),
    unwritten(
        "head_dim_of_16_with_one_scale",
        k_quant_chain,
        lambda p, out: [out.scale[1 : p.chunk_tokens]] if p.head_dim == p.quant_block_size == 16 else [],
    ),
    unwritten("layers_past_4", masked_chain, lambda p, out: [out.ssm_states[4:]]),
    unwritten("requests_past_1024", masked_chain, lambda p, out: [out.num_accepted_tokens[1024 : p.batch_size]]),
    misread("requests_past_8192", schedule_chain, "context_lens", _first(8192)),
    unwritten("tokens_past_4096", update_chain, lambda p, out: [out.positions[4096:]]),
]
