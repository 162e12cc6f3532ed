"""A launch that holds work of this suite beside an engine's, which no timer counts.

An engine's kernel may change state in place, where an operator reads one array and writes another, or leave its results
in fresh memory. Then the suite's own launches bring the state to where the kernel expects it, and results to where the
operator wants them. They run in every call, so that each call does the same work; their time is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

#: Marks a launch of the suite's own.
OWN = "__own__"


def own(launch: Callable[[], Any]) -> Callable[[], Any]:
    """The launch, marked as the suite's own."""

    def run() -> None:
        launch()

    setattr(run, OWN, True)
    return run


class EngineLaunch:
    """Launches in order, those of an engine and the suite's own (``own``); calling it runs them all."""

    def __init__(self, *launches: Callable[[], Any] | None) -> None:
        """launches: None is left out."""
        self._launches = [one for given in launches if given is not None for one in _flat(given)]

    @property
    def launches(self) -> Sequence[Callable[[], Any]]:
        return self._launches

    def __call__(self) -> None:
        for launch in self._launches:
            launch()

    @property
    def own(self) -> Callable[[], None] | None:
        """The suite's own launches alone; None where there are none."""
        mine = [launch for launch in self._launches if hasattr(launch, OWN)]

        def run() -> None:
            for launch in mine:
                launch()

        return run if mine else None

    def host_s(self) -> float:
        """Runs all and returns the host's seconds in the engine's launches."""
        seconds = 0.0
        for launch in self._launches:
            began = perf_counter()
            launch()
            if not hasattr(launch, OWN):
                seconds += perf_counter() - began
        return seconds


def _flat(launch: Callable[[], Any]) -> Sequence[Callable[[], Any]]:
    return launch.launches if isinstance(launch, EngineLaunch) else [launch]


def in_sequence(*launches: Callable[[], Any] | None) -> Callable[[], None]:
    """All launches in order; an EngineLaunch where one of them is the suite's own beside an engine's."""
    sequence = EngineLaunch(*launches)
    return sequence if sequence.own is not None else sequence.__call__
