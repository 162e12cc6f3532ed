"""Did the calls that were timed do the work? Spot checks around every timed stage, where whole buffers would disturb
it.

Comparing or poisoning whole outputs moves tens of megabytes through L2 and would change what is timed next. So a few
elements, drawn anew every time, are made wrong before a stage and must be right after it. Nothing a variant can see
says which. Whole buffers are compared before the first and after the last sample.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.checks import Mismatch
from harness.verify.buffers import any_of, as_integers
from harness.verify.equality import required
from harness.verify.fixture import Fixture

#: Elements that are made wrong in a buffer before a stage, and sets of them that are drawn once per point: with the
#: sets at hand a stage costs a launch before it and a few behind it, where drawing places anew would cost dozens.
WATCHED, SETS = 16, 128


@dataclass(frozen=True)
class _Watched:
    """One output. place: an index tensor per axis, [SETS, WATCHED] each. wanted: what the launch has to leave there."""

    name: str
    buffer: Tensor
    place: tuple[Tensor, ...]
    wanted: Tensor
    wrong: Tensor


class OutputProbe:
    """Watches the outputs of one point for launches on the contents of ``case``."""

    def __init__(self, bench: Fixture, case: int = 0) -> None:
        #: Its own, so that nothing a variant seeds or reads says which set is next.
        self._random = random.SystemRandom()
        self._watched: list[_Watched] = []
        self._armed: list[tuple[_Watched, int]] = []
        for name, expected in bench.cases[case].expected.items():
            must = required(expected)
            places = must.reshape(-1).nonzero().reshape(-1)
            if len(places):
                places = places[torch.randint(len(places), (SETS, WATCHED), device=places.device)]
                place = tuple(torch.unravel_index(places, must.shape))
                wanted = as_integers(expected.value)[place]
                self._watched.append(
                    _Watched(name, as_integers(bench.outputs.buffers[name].tensor), place, wanted, ~wanted)
                )

    def arm(self, replayed: bool = False) -> None:
        """Make some elements wrong. replayed: a graph will run, which writes nothing on the host."""
        self._armed = []
        for one in self._watched:
            if not (replayed and one.buffer.device.type == "cpu"):
                chosen = self._random.randrange(SETS)
                one.buffer[tuple(axis[chosen] for axis in one.place)] = one.wrong[chosen]
                self._armed.append((one, chosen))

    def check(self, stage: str) -> None:
        """Raises Mismatch where an element is still wrong: the calls of this stage did not write it."""
        stale = [one.buffer[tuple(axis[i] for axis in one.place)] != one.wanted[i] for one, i in self._armed]
        if any_of(flags.any() for flags in stale):
            (one, i), flags = next(
                (armed, flags) for armed, flags in zip(self._armed, stale, strict=True) if bool(flags.any())
            )
            first = [int(axis[i][flags][0]) for axis in one.place]
            raise Mismatch(
                "every_call", f"{one.name}{first} was made wrong before the {stage} calls and still is after them"
            )
