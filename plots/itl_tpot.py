"""Modelled change of TPOT against the baseline (harness/analysis/itl_tpot.py), with bootstrap intervals.

For GPU runs with an ``itl_tpot`` section. A dot is a variant at one batch size; the numbers above a panel are the
change of the lowest dot in per cent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spec_decode_bench.harness.analysis.itl_tpot import Delta, ServingModel, delta, described, serving_model_of
from spec_decode_bench.harness.numbers import signed
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.plots._axes import (
    draw_intervals,
    inner_width,
    panel_grid,
    plain,
    same_y,
    style_changes,
    title_panel,
    title_shared,
    x_label,
)
from spec_decode_bench.plots._panels import (
    GpuStyles,
    Panel,
    PointCells,
    by_operator,
    known_failures_caption,
    panels,
    runs_of,
)
from spec_decode_bench.plots._style import LABEL_PT, SMALL_PT, environment_caption, finish

#: Width of the dots of a batch size, as a share of the distance between two batch sizes.
SPREAD = 0.6
#: Inches that a number above a panel needs.
TICK_IN = 0.35


def figure(runs: Sequence[Run], by: str = "panel") -> Figure | None:
    """None without a GPU run that has an itl_tpot section and times of a variant and its baseline.

    by: of several GPUs, "panel" draws each in a panel of its own, on one scale, and "gpu" each in a colour.
    """
    found = _found(runs)
    if not found:
        return None
    models = {one.model for one in found}
    title = "Modelled change of time per output token (TPOT) against the baseline"
    if len(models) == 1:
        title += "\n" + described(found[0].model)
    drawings = {id(one.panel): one for one in found}
    groups = [[drawings[id(panel)] for panel in group] for group in by_operator([one.panel for one in found])]
    shared = by == "gpu" and any(len(group) > 1 for group in groups)
    styles = GpuStyles([one.panel for one in found]) if shared else None
    # What is drawn into each axes: all GPUs, or one after the other.
    drawn = groups if shared else [[one] for group in groups for one in group]
    fig, axes = panel_grid([of_axes[0].panel for of_axes in drawn], title, max_columns=2)
    of_drawing = {id(one): ax for ax, of_axes in zip(axes, drawn, strict=True) for one in of_axes}
    handles: dict[str, object] = {}
    for ax, of_axes in zip(axes, drawn, strict=True):
        handles |= _draw_panel(ax, of_axes, styles)
        details = [", ".join(filter(None, _details(one, len(models) > 1))) for one in of_axes]
        if shared:
            title_shared(ax, [one.panel for one in of_axes], details)
        else:
            title_panel(ax, of_axes[0].panel, details[0])
    for group in groups:
        same_y([of_drawing[id(one)] for one in group])
    handles = styles.handles(list(handles)) if styles else handles
    all_panels = [one.panel for one in found]
    text = known_failures_caption(all_panels) + environment_caption(runs_of(all_panels))
    return finish(fig, handles, text, runs_of(all_panels))


@dataclass(frozen=True)
class _Drawing:
    """What one panel shows. deltas: x -> variant -> its modelled delta."""

    model: ServingModel
    panel: Panel
    slice_name: str
    deltas: dict[float, dict[str, Delta]]


def _found(runs: Sequence[Run]) -> list[_Drawing]:
    """Panels with a delta to draw. Runs with different models are never in one panel."""
    by_model: dict[ServingModel, list[Run]] = {}
    for run in runs:
        if run.header.environment.device == "cuda" and (model := serving_model_of(run.header)) is not None:
            by_model.setdefault(model, []).append(run)
    found = []
    for model, group in by_model.items():
        for panel in panels(group, model.cost_metric):
            if (x_axis := panel.x_axis()) is None:
                continue
            slice_name, points = panel.slice(x_axis)
            deltas = {
                point.axes[x_axis]: of_point for point in points if (of_point := _deltas(model, panel.baseline, point))
            }
            if deltas:
                found.append(_Drawing(model, panel, slice_name, deltas))
    return found


def _deltas(model: ServingModel, baseline: str, point: PointCells) -> dict[str, Delta]:
    timed = point.timed(model.cost_metric)
    if baseline not in timed:
        return {}
    deltas = {name: delta(model, point.cells[baseline], point.cells[name]) for name in timed if name != baseline}
    return {name: found for name, found in deltas.items() if found is not None}


def _details(one: _Drawing, several_models: bool) -> list[str]:
    return [one.slice_name, described(one.model)] if several_models else [one.slice_name]


def _draw_panel(ax: Axes, drawings: Sequence[_Drawing], styles: GpuStyles | None) -> dict[str, object]:
    """Returns legend handles by name. Batch sizes are at equal distances, so that all have the same room for dots.

    drawings: one, or with ``styles`` one for each GPU.
    """
    handles = {}
    first = drawings[0]
    sizes = sorted({x for one in drawings for x in one.deltas})
    rows = [
        (one, variant)
        for variant in dict.fromkeys(name for one in drawings for name in one.panel.variants())
        for one in drawings
        if any(variant in of_point for of_point in one.deltas.values())
    ]
    for number, (one, variant) in enumerate(rows):
        offset = SPREAD * ((number + 0.5) / len(rows) - 0.5)
        tpots = {x: of_point[variant].tpot_us for x, of_point in one.deltas.items() if variant in of_point}
        style = (styles.of(one.panel, variant) if styles else one.panel.style(variant)) | {"linestyle": "none"}
        places = [sizes.index(x) + offset for x in tpots]
        handles[one.panel.marked(variant)] = draw_intervals(ax, places, list(tpots.values()), **style)
    style_changes(ax, margin=0.1)
    ax.set_xlim(-0.5, len(sizes) - 0.5)
    # A number at each batch size, or at every second or third of them, so that they do not overlap.
    shown = range(0, len(sizes), math.ceil(len(sizes) * TICK_IN / inner_width(ax)))
    ax.set_xticks(shown, [plain(sizes[x]) for x in shown], fontsize=LABEL_PT)
    ax.set_xlabel(x_label(first.panel.x_axis()), fontsize=LABEL_PT)
    ax.set_ylabel("change of TPOT (µs per output token)", fontsize=LABEL_PT)
    if len(drawings) == 1:
        lowest = [
            min(of_point.values(), key=lambda delta: delta.tpot_us.median).percent.median
            for of_point in first.deltas.values()
        ]
        top = ax.secondary_xaxis("top")
        top.set_xticks(shown, [_percent(lowest[x]) for x in shown], fontsize=SMALL_PT)
        top.set_xlabel(
            f"lowest dot, in % of the TPOT with {first.panel.marked(first.panel.baseline)}", fontsize=SMALL_PT
        )
    return handles


def _percent(value: float) -> str:
    digits = 0 if abs(value) >= 10 else 1 if abs(value) >= 1 else 2
    return signed(value, f".{digits}f")
