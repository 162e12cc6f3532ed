"""Which cells stand in which panel: one operator on one device in one cache state, and within it the points, each from
one run.

Variants are only ever set against variants of the same run: a point comes whole from the latest run that timed it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.analysis.stats import is_plausible, is_timed, samples
from harness.records.schema import Cell, Run, axis_texts, label_parts
from plots._style import device_name, group_by_generation


def median_us(cell: Cell, figure: str) -> float | None:
    """None where there is no time, or one that no clock has measured."""
    median = float(np.median(samples(cell.metrics, figure))) if is_timed(cell, figure) else math.nan
    return median if is_plausible(median) else None


@dataclass(frozen=True)
class Place:
    """One operator at one point in one run, all variants."""

    run: Run
    point: str
    axes: dict[str, Any]
    cells: dict[str, Cell]

    def timed(self, figure: str) -> list[str]:
        """Variants with a median that can be drawn."""
        return [name for name, cell in self.cells.items() if median_us(cell, figure) is not None]

    def text(self, axis: str) -> str:
        """The axis value as the point's label spells it; empty where the point has no such axis."""
        return axis_texts(self.point, self.axes).get(axis, "")


@dataclass(frozen=True)
class Panel:
    """figure: whose samples are drawn, one of a GPU (gpu_us, eager_us) or cpu_us of a CPU; never both in one panel.
    cache: the state that gpu_us was taken in; nothing else knows another than "hot"."""

    generation: str
    device: str
    cache: str
    operator: str
    baseline: str
    figure: str
    places: Sequence[Place]

    @property
    def taken_on(self) -> tuple[str, str, str]:
        """What panels that stand side by side have in common."""
        return self.generation, self.device, self.cache

    def variants(self) -> list[str]:
        """The baseline, then the others in the order of the record."""
        return list(dict.fromkeys([self.baseline, *(name for place in self.places for name in place.cells)]))

    def varying(self) -> list[str]:
        """Axes with more than one value. One that no label names is derived from the others and left out."""
        axes = dict.fromkeys(name for place in self.places for name in place.axes)
        named = {axis for place in self.places for axis in label_parts(place.point)}
        return [name for name in axes if name in named and len({place.text(name) for place in self.places}) > 1]

    def x_axis(self) -> str | None:
        """``batch_size``, or for operators without it the number that takes the most values, all above 0 as the axis is
        logarithmic; None where there is no such axis."""
        values = {name: [place.axes.get(name) for place in self.places] for name in self.places[0].axes}
        numbers = [name for name, there in values.items() if all(_is_number(value) and value > 0 for value in there)]
        if "batch_size" in numbers:
            return "batch_size"
        return max(numbers, key=lambda name: len(set(values[name])), default=None)

    def slice(self, x_axis: str) -> tuple[str, list[Place]]:
        """One point per x: the combination of the other axes that covers most x, then has most timed variants, then the
        largest whole numbers, axis by axis. Returned with its name (only the axes that vary) and sorted by x.
        """
        others = [
            axis for axis in dict.fromkeys(name for place in self.places for name in place.axes) if axis != x_axis
        ]
        groups: dict[tuple[str, ...], list[Place]] = {}
        for place in self.places:
            key = tuple(pair for pair in label_parts(place.point).items() if pair[0] != x_axis)
            groups.setdefault(key, []).append(place)

        def itl_tpot(group: list[Place]) -> tuple[int, int, list[int]]:
            timed = [place for place in group if place.timed(self.figure)]
            variants = {name for place in timed for name in place.timed(self.figure)}
            counts = [
                value if _is_number(value) and isinstance(value, int) else 0 for value in map(group[0].axes.get, others)
            ]
            return len({place.axes[x_axis] for place in timed}), len(variants), counts

        chosen = sorted(max(groups.values(), key=itl_tpot), key=lambda place: place.axes[x_axis])
        return ", ".join(f"{name}={chosen[0].text(name)}" for name in self.varying() if name != x_axis), chosen


def panels(runs: Iterable[Run], gpu_figure: str = "gpu_us") -> list[Panel]:
    """All panels with at least one timed cell: by generation, device and cache state, then operator in the order of the
    records. GPU runs count as timed where they have samples of ``gpu_figure``, CPU runs where they have cpu_us.
    """
    runs = list(runs)
    operators = list(dict.fromkeys(cell.operator for run in runs for cell in run.cells))
    found = []
    for generation, group in group_by_generation(runs).items():
        for device in dict.fromkeys(device_name(run.header.environment) for run in group):
            there = [run for run in group if device_name(run.header.environment) == device]
            figure = "cpu_us" if there[0].header.environment.device == "cpu" else gpu_figure
            caches: dict[str, list[Run]] = {}
            for run in there:
                caches.setdefault(run.cache if figure == "gpu_us" else "hot", []).append(run)
            for (cache, alike), operator in itertools.product(caches.items(), operators):
                places = _places(alike, operator, figure)
                if any(place.timed(figure) for place in places):
                    baseline = next(iter(places[0].cells.values())).baseline
                    found.append(Panel(generation, device, cache, operator, baseline, figure, places))
    return found


def _places(runs: Sequence[Run], operator: str, figure: str) -> list[Place]:
    chosen: dict[str, Place] = {}
    for run in sorted(runs, key=lambda run: run.header.started):
        for point, cells in _by_point(run, operator).items():
            place = Place(run, point, cells[0].axes, {cell.variant: cell for cell in cells})
            if point not in chosen or place.timed(figure):
                chosen[point] = place
    return sorted(chosen.values(), key=lambda place: [_order(value) for value in place.axes.values()])


def _by_point(run: Run, operator: str) -> dict[str, list[Cell]]:
    points: dict[str, list[Cell]] = {}
    for cell in run.cells:
        if cell.operator == operator:
            points.setdefault(cell.point, []).append(cell)
    return points


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _order(value: Any) -> tuple[bool, float, str]:
    return (False, value, "") if _is_number(value) else (True, 0.0, str(value))


def runs_of(drawn: Iterable[Panel]) -> list[Run]:
    """The runs that the panels draw from, each once: what the caption has to name."""
    return list({id(place.run): place.run for panel in drawn for place in panel.places}.values())
