"""Panels: one operator on one device in one cache state, with all points that the runs hold of it.

A point is taken as a whole from the latest run that timed it, so that variants are only compared within one run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.lines import Line2D

from spec_decode_bench.harness.analysis.cache_states import HOT
from spec_decode_bench.harness.analysis.stats import median_us
from spec_decode_bench.harness.analysis.warnings import KNOWN_FAILURES, known_failure_warnings
from spec_decode_bench.harness.records.schema import Cell, Run, axis_texts, label_parts
from spec_decode_bench.plots._style import LOOKS, device_name, group_by_generation, variant_style

#: Times that differ by less than this share look the same on a logarithmic axis.
SAME_TIMES = 0.01


def coincides(times: Mapping[Any, float], drawn: Iterable[Mapping[Any, float]]) -> bool:
    """Whether one of the curves ``drawn`` has the same times at the same points, so that this one would hide it."""
    return any(
        times.keys() == other.keys() and all(abs(us / other[x] - 1) < SAME_TIMES for x, us in times.items())
        for other in drawn
    )


@dataclass(frozen=True)
class PointCells:
    """All variants of one operator at one point in one run. cells: variant -> cell."""

    run: Run
    label: str
    axes: dict[str, Any]
    cells: dict[str, Cell]

    def timed(self, metric: str) -> list[str]:
        """Variants with a median that can be drawn."""
        return [name for name, cell in self.cells.items() if median_us(cell, metric) is not None]

    def text(self, axis: str) -> str:
        """The value of an axis as the point's label spells it; empty where the point has no such axis."""
        return axis_texts(self.label, self.axes).get(axis, "")


@dataclass(frozen=True)
class Panel:
    """cache: the state in which gpu_us was taken; other metrics are always taken with a hot cache.

    metric: whose samples are drawn: one of a GPU (gpu_us, eager_us), or cpu_us; a panel never has both.
    own:    the variants of all panels that are none of this suite's.
    """

    generation: str
    device: str
    cache: str
    operator: str
    baseline: str
    metric: str
    points: Sequence[PointCells]
    own: Sequence[str] = ()

    @property
    def taken_on(self) -> tuple[str, str, str]:
        """What panels in one row have in common."""
        return self.generation, self.device, self.cache

    def variants(self) -> list[str]:
        """The baseline, then the others in the order of the record."""
        return list(dict.fromkeys([self.baseline, *(name for point in self.points for name in point.cells)]))

    def marked(self, variant: str) -> str:
        """The variant's name, with a dagger where it has known failures."""
        return (
            f"{variant} {KNOWN_FAILURES}"
            if any(p.cells[variant].known_failures for p in self.points if variant in p.cells)
            else variant
        )

    def style(self, variant: str) -> dict[str, Any]:
        """As keyword arguments of ``Axes.plot``: the same in all panels."""
        return variant_style(variant, self.own)

    def varying(self) -> list[str]:
        """Axes with more than one value, without those that no label names, which are derived from others."""
        axes = dict.fromkeys(name for point in self.points for name in point.axes)
        named = {axis for point in self.points for axis in label_parts(point.label)}
        return [name for name in axes if name in named and len({point.text(name) for point in self.points}) > 1]

    def x_axis(self) -> str | None:
        """``batch_size``, or for operators without it the numeric axis with the most values. All must be above 0, as
        the x axis is logarithmic; None where there is no such axis.
        """
        values = {name: [point.axes.get(name) for point in self.points] for name in self.points[0].axes}
        numeric = [name for name, of_all in values.items() if all(_is_number(value) and value > 0 for value in of_all)]
        if "batch_size" in numeric:
            return "batch_size"
        return max(numeric, key=lambda name: len(set(values[name])), default=None)

    def slice(self, x_axis: str) -> tuple[str, list[PointCells]]:
        """One point for each x, all with the same values on the other axes; and these values in words.

        Of all combinations of values, the one with the most timed x, then the most timed variants, then the largest
        integers, axis by axis. The words name only axes that vary; the points are sorted by x.
        """
        others = [axis for axis in dict.fromkeys(name for one in self.points for name in one.axes) if axis != x_axis]
        groups: dict[tuple[tuple[str, str], ...], list[PointCells]] = {}
        for point in self.points:
            key = tuple(pair for pair in label_parts(point.label).items() if pair[0] != x_axis)
            groups.setdefault(key, []).append(point)

        def coverage(group: list[PointCells]) -> tuple[int, int, list[int]]:
            timed = [point for point in group if point.timed(self.metric)]
            variants = {name for point in timed for name in point.timed(self.metric)}
            values = map(group[0].axes.get, others)
            integers = [value if _is_number(value) and isinstance(value, int) else 0 for value in values]
            return len({point.axes[x_axis] for point in timed}), len(variants), integers

        chosen = sorted(max(groups.values(), key=coverage), key=lambda point: point.axes[x_axis])
        return ", ".join(f"{name}={chosen[0].text(name)}" for name in self.varying() if name != x_axis), chosen


def panels(runs: Iterable[Run], gpu_metric: str = "gpu_us") -> list[Panel]:
    """All panels with a timed cell, by generation, device, cache state and operator, the last as in the records.

    GPU runs count as timed where they have samples of ``gpu_metric``, CPU runs where they have cpu_us. Only gpu_us is
    taken in the cache state; where hot runs have the other metrics, those of cold ones are left out.
    """
    runs = list(runs)
    operators = list(dict.fromkeys(cell.operator for run in runs for cell in run.cells))
    own = sorted({cell.variant for run in runs for cell in run.cells if cell.metrics} - LOOKS.keys())
    found = []
    for generation, group in group_by_generation(runs).items():
        for device in dict.fromkeys(device_name(run.header.environment) for run in group):
            of_device = [run for run in group if device_name(run.header.environment) == device]
            metric = "cpu_us" if of_device[0].header.environment.device == "cpu" else gpu_metric
            by_cache: dict[str, list[Run]] = {}
            hot = [run for run in of_device if run.cache == HOT.name]
            for run in of_device if metric == "gpu_us" else hot or of_device:
                by_cache.setdefault(run.cache if metric == "gpu_us" else HOT.name, []).append(run)
            for (cache, of_state), operator in itertools.product(by_cache.items(), operators):
                points = _points(of_state, operator, metric)
                if any(point.timed(metric) for point in points):
                    baseline = next(iter(points[0].cells.values())).baseline
                    found.append(Panel(generation, device, cache, operator, baseline, metric, points, own))
    return found


def _points(runs: Sequence[Run], operator: str, metric: str) -> list[PointCells]:
    """Every point of the operator, from the latest run that timed it."""
    latest: dict[str, PointCells] = {}
    for run in sorted(runs, key=lambda run: run.header.started):
        for label, cells in _by_point(run, operator).items():
            point = PointCells(run, label, cells[0].axes, {cell.variant: cell for cell in cells})
            if label not in latest or point.timed(metric):
                latest[label] = point
    return sorted(latest.values(), key=lambda point: [_order(value) for value in point.axes.values()])


def _by_point(run: Run, operator: str) -> dict[str, list[Cell]]:
    points: dict[str, list[Cell]] = {}
    for cell in run.cells:
        if cell.operator == operator:
            points.setdefault(cell.point, []).append(cell)
    return points


def gpus_of(drawn: Iterable[Panel]) -> list[str]:
    """The GPU models of the panels, in their order; CPUs are left out, as their times have another scale."""
    return list(dict.fromkeys(panel.device for panel in drawn if panel.metric != "cpu_us"))


def by_operator(drawn: Sequence[Panel]) -> list[list[Panel]]:
    """Panels that show the same on several GPUs, which get one scale, together; each alone where there is one GPU, or
    where a GPU has several panels of an operator.
    """
    groups: dict[tuple[str, str, bool], list[Panel]] = {}
    for panel in drawn:
        groups.setdefault((panel.metric == "cpu_us", panel.cache, panel.operator), []).append(panel)
    twice = any(len({panel.device for panel in group}) < len(group) for group in groups.values())
    if len(gpus_of(drawn)) < 2 or twice:
        return [[panel] for panel in drawn]
    return sorted(groups.values(), key=lambda group: group[0].metric == "cpu_us")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _order(value: Any) -> tuple[bool, float, str]:
    return (False, value, "") if _is_number(value) else (True, 0.0, str(value))


def runs_of(drawn: Iterable[Panel]) -> list[Run]:
    """The runs whose cells the panels hold, each once."""
    return list({id(point.run): point.run for panel in drawn for point in panel.points}.values())


def known_failures_caption(found: Iterable[Panel]) -> str:
    """The known failures of the drawn variants, a line each; empty where there is none."""
    cells = [cell for panel in found for point in panel.points for cell in point.cells.values()]
    return "".join(f"{text}\n" for text in known_failure_warnings(cells))


# --- several GPUs in one panel ---------------------------------------------------------------------------------------

#: By Okabe and Ito.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class GpuStyles:
    """The styles of a figure that shows these panels: a colour for each GPU; variants differ in markers."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        self._colours = dict(zip(gpus_of(panels), itertools.cycle(COLOURS), strict=False))
        names = dict.fromkeys(name for panel in panels for name in panel.variants())
        marks = itertools.cycle(itertools.product(("full", "none"), MARKERS))
        self._marks = dict(zip(names, marks, strict=False))

    def of(self, panel: Panel, variant: str) -> dict[str, Any]:
        """Keyword arguments of ``Axes.plot``."""
        return self._mark(variant) | {"color": self.colour(panel)}

    def colour(self, panel: Panel) -> str:
        """Grey for a CPU."""
        return self._colours.get(panel.device, "#888888")

    def _mark(self, variant: str) -> dict[str, Any]:
        fill, marker = self._marks[variant]
        return variant_style(variant) | {"marker": marker, "fillstyle": fill}

    def handles(self, variants: Sequence[str]) -> dict[str, Any]:
        """For the legend: the GPUs, then these variants in grey. A mark may follow the name of a variant."""
        gpus = {gpu: Line2D([], [], color=colour, linewidth=3) for gpu, colour in self._colours.items()}
        return gpus | {
            name: Line2D([], [], **(self._mark(name.split()[0]) | {"color": "#555555"})) for name in variants
        }
