"""every_call: spot-checks that timed calls wrote their outputs.

Comparing or poisoning whole outputs would move tens of megabytes through L2 and change what is timed next. Instead a
few random elements are made wrong before each timed stage and must be right after it; a variant cannot know which. Of
an output with few elements it is every second time one alone, as a launch may guess from the others that it ran before.
Whole buffers are compared before the first and after the last sample.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.verify.buffers import any_of, as_integers
from spec_decode_bench.harness.verify.equality import required, unravelled
from spec_decode_bench.harness.verify.fixture import Fixture

#: Elements of a buffer that are made wrong before a stage, and sets of such elements. The sets are drawn once per
#: point: a stage then costs one launch before it and a few after it, where drawing elements would cost dozens.
ELEMENTS, SETS = 16, 128
#: Of an output of up to so many elements, half of the sets hold one.
FEW = 4 * ELEMENTS


@dataclass(frozen=True)
class _ProbedOutput:
    """One output and the elements to probe, [SETS, ELEMENTS] each.

    index:   an index tensor per dimension.
    correct: what the launch must write there, as integers. wrong: what the probe writes before.
    """

    name: str
    buffer: Tensor
    index: tuple[Tensor, ...]
    correct: Tensor
    wrong: Tensor

    def at(self, chosen: int) -> tuple[Tensor, ...]:
        return tuple(dimension[chosen] for dimension in self.index)


class OutputProbe:
    """Probes the outputs of one point, for launches on the first batch of the fixture."""

    def __init__(self, fixture: Fixture) -> None:
        #: The system's source: a variant that seeds or reads Python's generator does not learn which set is next.
        self._random = random.SystemRandom()
        self._outputs: list[_ProbedOutput] = []
        self._armed: list[tuple[_ProbedOutput, int]] = []
        for name, expected in fixture.batches[0].expected.items():
            must = required(expected)
            positions = must.reshape(-1).nonzero().reshape(-1)
            if len(positions):
                chosen = torch.randint(len(positions), (SETS, ELEMENTS), device=positions.device)
                if len(positions) <= FEW:
                    chosen[SETS // 2 :] = chosen[SETS // 2 :, :1]
                positions = positions[chosen]
                index = unravelled(positions, must.shape)
                correct = as_integers(expected.value)[index]
                buffer = as_integers(fixture.outputs.buffers[name].tensor)
                self._outputs.append(_ProbedOutput(name, buffer, index, correct, wrong=~correct))

    def arm(self, replayed: bool = False) -> None:
        """Make a set of elements wrong. replayed: a graph will run, which writes nothing on the host."""
        self._armed = []
        for output in self._outputs:
            if not (replayed and output.buffer.device.type == "cpu"):
                chosen = self._random.randrange(SETS)
                output.buffer[output.at(chosen)] = output.wrong[chosen]
                self._armed.append((output, chosen))

    def check(self, stage: str) -> None:
        """Raise Mismatch where an element is still wrong: the calls of this stage did not write it."""
        stale = [output.buffer[output.at(chosen)] != output.correct[chosen] for output, chosen in self._armed]
        if not any_of(flags.any() for flags in stale):
            return
        for (output, chosen), flags in zip(self._armed, stale, strict=True):
            if bool(flags.any()):
                first = [int(dimension[flags][0]) for dimension in output.at(chosen)]
                raise Mismatch(
                    "every_call",
                    f"{output.name}{first} was overwritten with a wrong value before the {stage} calls, which did not "
                    "write it",
                )
