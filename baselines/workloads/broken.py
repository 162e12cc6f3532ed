"""What defects of several operators do to a chain or to its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from spec_decode_bench.baselines.workloads.composition import Setup, in_sequence
from spec_decode_bench.harness.contract import Point

T = TypeVar("T")


def keeping(chain: Callable[[], Any], kept: torch.Tensor) -> Callable[[], None]:
    """The chain, and then ``kept`` as it was before it."""
    before = torch.empty_like(kept)
    return in_sequence(lambda: before.copy_(kept), chain, lambda: kept.copy_(before))


def on_changed(
    setup: Setup, point: Point, x: Any, out: Any, **changes: Callable[[], torch.Tensor]
) -> Callable[[], None]:
    """The chain on inputs some of which every launch makes anew. changes: field -> a function that returns it."""
    changed = {name: torch.empty_like(getattr(x, name)) for name in changes}
    chain = setup(point, replace(x, **changed), out)

    def launch() -> None:
        for name, change in changes.items():
            changed[name].copy_(change())
        chain()

    return launch


def rows_for_slots(x: T) -> T:
    """The inputs with the number of each row in place of its request's slot."""
    return replace(x, idx_mapping=torch.arange(len(x.idx_mapping), device=x.idx_mapping.device))


def wrapped(point: Point, idx_mapping: torch.Tensor) -> torch.Tensor:
    """Slot -1 as the last one, as an index into a tensor takes it."""
    return torch.where(idx_mapping < 0, point.max_num_seqs - 1, idx_mapping)
