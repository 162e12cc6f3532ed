"""Did the calls that were timed do the work? Spot checks around every timed stage, where whole buffers would disturb it.

Comparing or poisoning whole outputs moves tens of megabytes through L2 and would change what is timed next. So a few
elements, drawn anew every time, are made wrong before a stage and must be right after it. Nothing a variant can see says
which. Whole buffers are compared before the first and after the last sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.proof.verify import Bench, Mismatch, required

#: Elements per buffer and stage, and how many candidates are drawn once per point.
WATCHED, CANDIDATES = 16, 2048

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_integers(tensor: Tensor) -> Tensor:
    """The same memory, element by element, as integers: equality of bits for every dtype. Writes leave no version behind."""
    return tensor.data.view(_INTEGERS[tensor.element_size()])


class Witness:
    """Watches the outputs of one point for launches on the contents of ``case``."""

    def __init__(self, bench: Bench, case: int = 0) -> None:
        self._watched: list[tuple[str, Tensor, tuple[Tensor, ...], Tensor]] = []
        self._armed: list[tuple[str, Tensor, tuple[Tensor, ...], Tensor]] = []
        for name, expected in bench.cases[case].expected.items():
            must = required(expected)
            places = must.reshape(-1).nonzero().reshape(-1)
            if len(places):
                places = places[torch.randint(len(places), (CANDIDATES,), device=places.device)]
                index = tuple(torch.unravel_index(places, must.shape))
                self._watched.append((name, as_integers(bench.outputs.buffers[name].tensor), index, as_integers(expected.value)[index]))

    def arm(self, replayed: bool = False) -> None:
        """Make some elements wrong. replayed: a graph will run, which writes nothing on the host."""
        self._armed = []
        for name, buffer, index, wanted in self._watched:
            if not (replayed and buffer.device.type == "cpu"):
                rows = torch.randint(CANDIDATES, (WATCHED,), device=buffer.device)
                place = tuple(axis[rows] for axis in index)
                buffer[place] = ~wanted[rows]
                self._armed.append((name, buffer, place, wanted[rows]))

    def check(self, stage: str) -> None:
        """Raises Mismatch where an element is still wrong: the calls of this stage did not write it."""
        for name, buffer, place, wanted in self._armed:
            stale = buffer[place] != wanted
            if bool(stale.any()):
                first = [int(axis[stale][0]) for axis in place]
                raise Mismatch("every_call", f"{name}{first} was made wrong before the {stage} calls and still is after them")
