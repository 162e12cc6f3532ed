"""What a variant is worth in a decode loop, modelled by harness.serving: change of TPOT against the operator chain.

GPU runs with a ``serving`` section only. A dot is a variant at one batch size, with its bootstrap interval; the numbers above
a panel are the change in per cent of the lowest dot.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.records import Run
from harness.serving import Delta, Serving, delta, serving_of
from plots._axes import panel_grid, plain, title_panel, x_label
from plots._panels import Panel, Place, panels, runs_of
from plots._style import LABEL_PT, SMALL_PT, caption, environment_caption, legend_below, save, variant_style

#: Share of the space between two batch sizes that the dots of one take.
SPREAD = 0.6


def draw(runs: Sequence[Run], stem: Path) -> list[Path]:
    """Write stem.png and stem.svg; [] without a GPU run that has a serving section and a timed variant beside its chain."""
    drawn = figure(runs)
    return save(drawn, stem) if drawn else []


def figure(runs: Sequence[Run]) -> Figure | None:
    found = _found(runs)
    if not found:
        return None
    models = {serving for serving, _ in found}
    title = "Modelled change of time per output token (TPOT) against the operator chain"
    if len(models) == 1:
        title += "\n" + describe(next(iter(models)))
    fig, axes = panel_grid([panel for _, panel in found], title)
    handles: dict[str, object] = {}
    for ax, (serving, panel) in zip(axes, found, strict=True):
        handles |= _draw_panel(ax, panel, serving, describe(serving) if len(models) > 1 else "")
    legend_below(fig, handles)
    caption(fig, environment_caption(runs_of(panel for _, panel in found)))
    return fig


def describe(serving: Serving) -> str:
    """The model in words; the cost names the figure that a step waits for."""
    calls = f"{serving.calls_per_step} call{'s' if serving.calls_per_step > 1 else ''} per step"
    return (
        f"model step {serving.model_step_us / 1000:g} ms, acceptance {serving.acceptance:g}, {calls}, "
        f"{serving.scheduling} scheduling ({serving.cost_figure} counts)"
    )


def _found(runs: Sequence[Run]) -> list[tuple[Serving, Panel]]:
    """Panels with a delta to draw; runs with different models never share one."""
    by_model: dict[Serving, list[Run]] = {}
    for run in runs:
        if run.header.environment.device == "cuda" and (serving := serving_of(run.header)) is not None:
            by_model.setdefault(serving, []).append(run)
    found = [(serving, panel) for serving, group in by_model.items() for panel in panels(group, serving.cost_figure) if panel.x_axis()]
    return [(serving, panel) for serving, panel in found if any(_deltas(serving, panel, place) for place in _places(serving, panel))]


def _places(serving: Serving, panel: Panel) -> list[Place]:
    """The slice that is drawn, less the points without any delta."""
    return [place for place in panel.slice(panel.x_axis())[1] if _deltas(serving, panel, place)]


def _deltas(serving: Serving, panel: Panel, place: Place) -> dict[str, Delta]:
    """Variants other than the baseline that have a modelled delta here."""
    baseline = place.cells.get(panel.baseline)
    if baseline is None:
        return {}
    deltas = {name: delta(serving, baseline, cell) for name, cell in place.cells.items() if name != panel.baseline}
    return {name: found for name, found in deltas.items() if found is not None}


def _draw_panel(ax: Axes, panel: Panel, serving: Serving, model: str) -> dict[str, object]:
    """Returns legend handles by name."""
    x_axis, handles = panel.x_axis(), {}
    places = _places(serving, panel)
    deltas = [_deltas(serving, panel, place) for place in places]
    variants = [name for name in panel.variants() if any(name in there for there in deltas)]
    for number, variant in enumerate(variants):
        offset = SPREAD * ((number + 0.5) / len(variants) - 0.5)
        dots = [(x + offset, there[variant].tpot_us) for x, there in enumerate(deltas) if variant in there]
        style = variant_style(variant) | {"linestyle": "none"}
        handles[variant] = ax.errorbar(
            [x for x, _ in dots], [tpot.median for _, tpot in dots],
            yerr=[[tpot.median - tpot.low for _, tpot in dots], [tpot.high - tpot.median for _, tpot in dots]],
            **style, markersize=5, capsize=2,
        )  # fmt: skip
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xlim(-0.5, len(places) - 0.5)
    ax.set_xticks(range(len(places)), [plain(place.axes[x_axis]) for place in places], fontsize=LABEL_PT)
    ax.set_xlabel(x_label(x_axis), fontsize=LABEL_PT)
    ax.set_ylabel("change of TPOT (µs per output token)", fontsize=LABEL_PT)
    ax.tick_params(axis="y", labelsize=LABEL_PT)
    ax.margins(y=0.1)
    ax.grid(True, axis="y", color="#e6e6e6", linewidth=0.6)
    lowest = [min(there.values(), key=lambda one: one.tpot_us.median).percent.median for there in deltas]
    top = ax.secondary_xaxis("top")
    top.set_xticks(range(len(places)), [f"{percent:+.2g} %".replace("-", "−") for percent in lowest], fontsize=SMALL_PT)
    top.set_xlabel(f"lowest dot, in % of the TPOT with {panel.baseline}", fontsize=SMALL_PT)
    slice_name = panel.slice(x_axis)[0]
    title_panel(ax, panel, ", ".join(filter(None, (slice_name, model))))
    return handles
