"""Compares the arms of a measurement by the palindromes in which they took turns.

In A B C C B A the blocks of each arm have the same mean place, so that a linear drift, such as of growing contexts, is
the same for all of them. Two things are not linear, and a palindrome with one of them is left out: a prefill in its
middle, and a host that changes its speed. The latter shows in the host's time of the functions that are replaced, each
arm of which has its own usual time: now and then all of an engine's Python takes 1.3 to 1.6 times as long for hundreds
of steps. Which arm is faster decides nothing there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spec_decode_bench.engine_plugin.records import EngineBlock
from spec_decode_bench.harness.analysis.stats import Interval, median_interval

#: The host's slowest block of a palindrome may take this many times as long as its fastest.
STEADY = 1.15
#: Blocks of a slower host than this, in units of its usual speed, count as slow.
SLOW = 1.2
#: Fewer palindromes give no interval.
FEWEST = 6


@dataclass(frozen=True)
class Palindrome:
    """blocks: in the order of time. pace: the host's time in each of them, in units of what is usual for its arm."""

    blocks: tuple[EngineBlock, ...]
    pace: tuple[float, ...]

    @property
    def arms(self) -> list[str]:
        """As the plan has them: each turn begins with the next one."""
        names = _arms(self.blocks)
        first = -self.blocks[0].turn % len(names)
        return names[first:] + names[:first]

    @property
    def is_steady(self) -> bool:
        """Whether nothing happened in it that could favour an arm."""
        return not any(block.prefill_us for block in self.blocks[1:]) and max(self.pace) <= STEADY * min(self.pace)

    def itl_us(self, arm: str) -> float:
        """Mean over the blocks of an arm of their medians."""
        return float(np.mean([np.median(block.itl_us) for block in self.blocks if block.arm == arm]))


@dataclass(frozen=True)
class Arm:
    """An arm at a batch size, over the steady palindromes; times in microseconds.

    itl, change: median with its interval; the change is the difference from the first arm in the same palindrome, None
                 for that arm itself.
    unfiltered:  the change over all palindromes, steady or not.
    tokens:      of a request in a step, mean over all blocks of the batch size: acceptance does not depend on the arm.
    host_us:     operator -> median over the steps of all blocks. launches: operator -> of a step.
    kept, of:    palindromes. slow: share of the kept ones with a slow host.
    """

    name: str
    batch: int
    itl: Interval
    change: Interval | None
    unfiltered: Interval | None
    tokens: float
    host_us: dict[str, float]
    launches: dict[str, int]
    kept: int
    of: int
    slow: float

    @property
    def tpot(self) -> Interval:
        return _scaled(self.itl, self.tokens)

    @property
    def tpot_change(self) -> Interval | None:
        return None if self.change is None else _scaled(self.change, self.tokens)


def _scaled(interval: Interval, tokens: float) -> Interval:
    return Interval(interval.median / tokens, interval.low / tokens, interval.high / tokens)


def palindromes(blocks: Iterable[EngineBlock]) -> list[Palindrome]:
    """The complete ones among the measured blocks of one batch size."""
    measured = [block for block in blocks if block.mode == "measure" and block.itl_us and block.finding is None]
    names = set(_arms(measured))
    turns: dict[tuple[int, int], list[EngineBlock]] = defaultdict(list)
    for block in measured:
        turns[block.process, block.turn].append(block)
    complete = []
    for turn in turns.values():
        order = [block.arm for block in turn]
        if len(order) == 2 * len(names) and order == order[::-1] and set(order) == names:
            complete.append(turn)
    if not complete:
        return []
    # Of an arm in units of all arms: within palindromes, since its own median may lie in either mode.
    shares = [{arm: _mean_host(turn, arm) / _mean_host(turn, *names) for arm in names} for turn in complete]
    usual = {arm: float(np.median([share[arm] for share in shares])) for arm in names}
    pace = [[_host_us(block) / usual[block.arm] for block in turn] for turn in complete]
    unit = float(np.median(pace))
    return [
        Palindrome(tuple(turn), tuple(one / unit for one in of_turn))
        for turn, of_turn in zip(complete, pace, strict=True)
    ]


def _mean_host(turn: Sequence[EngineBlock], *arms: str) -> float:
    return float(np.mean([_host_us(block) for block in turn if block.arm in arms]))


def _arms(blocks: Iterable[EngineBlock]) -> list[str]:
    return list(dict.fromkeys(block.arm for block in blocks))


def _host_us(block: EngineBlock) -> float:
    """Of a step, in the functions of all operators."""
    return float(sum(np.median(us) for us in block.host_us.values()))


def compared(blocks: Sequence[EngineBlock], batch: int) -> list[Arm]:
    """The arms at a batch size, the first of the plan first; none with fewer than FEWEST steady palindromes."""
    here = [block for block in blocks if block.batch == batch]
    found = palindromes(here)
    steady = [one for one in found if one.is_steady]
    if len(steady) < FEWEST:
        return []
    names = found[0].arms
    tokens = float(np.mean([block.tokens for block in here if block.tokens is not None] or [np.nan]))
    slow = float(np.mean([np.median(one.pace) > SLOW for one in steady]))
    arms = []
    for name in names:
        is_other = name != names[0]
        arms.append(
            Arm(
                name=name,
                batch=batch,
                itl=median_interval([one.itl_us(name) for one in steady]),
                change=_change(steady, name, names[0]) if is_other else None,
                unfiltered=_change(found, name, names[0]) if is_other else None,
                tokens=tokens,
                host_us=_host_by_operator([block for one in steady for block in one.blocks if block.arm == name]),
                launches=next((block.launches for block in here if block.arm == name and block.launches), {}),
                kept=len(steady),
                of=len(found),
                slow=slow,
            )
        )
    return arms


def _change(turns: Iterable[Palindrome], arm: str, first: str) -> Interval:
    return median_interval([one.itl_us(arm) - one.itl_us(first) for one in turns])


def _host_by_operator(blocks: Sequence[EngineBlock]) -> dict[str, float]:
    names = dict.fromkeys(name for block in blocks for name in block.host_us)
    return {name: float(np.median(np.concatenate([block.host_us.get(name, []) for block in blocks]))) for name in names}


def all_compared(blocks: Sequence[EngineBlock]) -> list[Arm]:
    """The arms at every batch size, smallest first."""
    return [arm for batch in sorted({block.batch for block in blocks}) for arm in compared(blocks, batch)]
