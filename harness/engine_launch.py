"""A launch that holds work of this suite beside an engine's, which no timer counts.

An engine's kernel may change state in place, where an operator reads one array and writes another, or leave its results
in fresh memory. Then the suite's own launches bring the state to where the kernel expects it, and results to where the
operator wants them. They run in every call, so that each call does the same work; their time is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import groupby
from time import perf_counter
from typing import Any

#: Marks a launch of the suite's own.
OWN = "__own__"


def own(launch: Callable[[], Any]) -> Callable[[], Any]:
    """The launch, marked as the suite's own."""

    @functools.wraps(launch)
    def run() -> None:
        launch()

    setattr(run, OWN, True)
    return run


class EngineLaunch:
    """Launches in order, those of an engine and the suite's own (``own``); calling it runs them all.

    own: the suite's own launches alone; None where there are none.
    """

    def __init__(self, *launches: Callable[[], Any] | None) -> None:
        """launches: None is left out."""
        self.launches = [one for given in launches if given is not None for one in _flat(given)]
        mine = [launch for launch in self.launches if hasattr(launch, OWN)]
        self.own = EngineLaunch(*(launch.__wrapped__ for launch in mine)) if mine else None

    def __call__(self) -> None:
        for launch in self.launches:
            launch()

    def engine_s(self, synchronize: Callable[[], None] | None = None) -> float:
        """Runs all and returns the host's seconds in the engine's launches.

        synchronize: waits for the device; then each run of the engine's launches begins on an idle device, and its
        time includes its end there.
        """
        seconds = 0.0
        for mine, launches in groupby(self.launches, lambda launch: hasattr(launch, OWN)):
            if synchronize is not None:
                synchronize()
            began = perf_counter()
            for launch in launches:
                launch()
            if not mine:
                if synchronize is not None:
                    synchronize()
                seconds += perf_counter() - began
        return seconds


def _flat(launch: Callable[[], Any]) -> Sequence[Callable[[], Any]]:
    return launch.launches if isinstance(launch, EngineLaunch) else [launch]


def own_launches(launch: Callable[[], Any]) -> Callable[[], None] | None:
    """The suite's own launches among those of a variant; None where there are none."""
    return launch.own if isinstance(launch, EngineLaunch) else None
