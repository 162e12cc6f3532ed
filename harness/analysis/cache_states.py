"""The cache states that a call can be timed in: how each is prepared, and how a run checks that it holds.

A new state is one entry of CACHE_STATES; harness/timing/cache.py prepares it, the configuration accepts its name as
``measure.cache``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from spec_decode_bench.harness.records.schema import Calibration

#: A pointer chase must come this close to the level that its state requires, as a share of the distance from L2 to
#: memory.
CHASE_TOLERANCE = 0.35
#: A hop in memory must take this many times the cycles of one in L2 for the two to be distinguished.
MIN_MEMORY_TO_L2 = 1.3


@dataclass(frozen=True)
class Chase:
    """A pointer chase through a ring in a cache state.

    name:     key in Calibration.chase_cycles.
    label:    name in tables and plots.
    level:    where the ring must lie: "l2" or "memory".
    is_input: whether the ring is treated as an input of the call, which the state may rewrite, or as other memory.
    """

    name: str
    label: str
    level: Literal["l2", "memory"]
    is_input: bool = True


@dataclass(frozen=True)
class CacheState:
    """What a timed call finds in the L2 cache.

    name:           value of ``measure.cache``.
    flush:          whether twice the L2 is written before each call.
    rewrite_inputs: whether the inputs are then rewritten on the device.
    chases:         the chases that must confirm the state in every run.
    """

    name: str
    flush: bool
    rewrite_inputs: bool
    chases: tuple[Chase, ...]


#: What the previous call left: the calls of a graph run back to back on the same buffers.
HOT = CacheState("hot", flush=False, rewrite_inputs=False, chases=(Chase("hot", "hot", "l2"),))
#: Nothing of the call's data.
COLD = CacheState("cold", flush=True, rewrite_inputs=False, chases=(Chase("cold", "cold", "memory"),))
#: The inputs, as a sampler or the copy of a block table leaves them in a decode step, but no other table.
SERVING = CacheState(
    "serving",
    flush=True,
    rewrite_inputs=True,
    chases=(
        Chase("serving", "serving: inputs", "l2"),
        Chase("serving_table", "serving: the rest", "memory", is_input=False),
    ),
)
CACHE_STATES = {state.name: state for state in (HOT, COLD, SERVING)}
CacheName = Literal[tuple(CACHE_STATES)]

#: Every pointer chase of a calibration -> its label, in the order of a plot. The first two are measured in any state.
CHASE_LABELS = {"l2": "in L2", "memory": "in memory"} | {
    chase.name: chase.label for state in CACHE_STATES.values() for chase in state.chases
}


def chase_medians(calibration: Calibration) -> dict[str, float]:
    """Name of a pointer chase -> median clock cycles per hop, in the order of CHASE_LABELS."""
    cycles = calibration.chase_cycles
    return {name: float(np.median(cycles[name])) for name in CHASE_LABELS if name in cycles}


def cache_state_errors(calibration: Calibration, state: CacheState) -> list[str]:
    """Why the pointer chases of a run do not confirm its cache state, one sentence each.

    Empty where they do, and where the record holds no chase.
    """
    cycles = chase_medians(calibration)
    if "l2" not in cycles or "memory" not in cycles:
        return []
    if cycles["memory"] <= MIN_MEMORY_TO_L2 * cycles["l2"]:
        return [
            f"cache state not confirmed: a hop takes {cycles['l2']:.0f} cycles in L2 and {cycles['memory']:.0f} in "
            "memory, too close to tell them apart"
        ]
    tolerance = CHASE_TOLERANCE * (cycles["memory"] - cycles["l2"])
    return [
        f"cache state {state.name} not confirmed: a hop takes {cycles[chase.name]:.0f} cycles, "
        f"{cycles[chase.level]:.0f} are expected"
        for chase in state.chases
        if chase.name in cycles and abs(cycles[chase.name] - cycles[chase.level]) > tolerance
    ]
