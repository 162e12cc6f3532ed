"""The ruler itself: how far each estimator misses known times, and where the pointer chase finds the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis import estimators
from harness.records.schema import Calibration, Run
from plots._style import (
    LABEL_PT,
    SMALL_PT,
    TITLE_PT,
    caption,
    environment_caption,
    legend_below,
    new_figure,
    save,
    stamp,
)

#: Estimator -> how it is drawn. Okabe-Ito.
_LOOKS = {
    "graph": {"color": "#0072B2", "marker": "o"},
    "events": {"color": "#E69F00", "marker": "s"},
    "cupti": {"color": "#009E73", "marker": "^"},
}
_NAMES = {
    "graph": "slope over copies in a graph",
    "events": "events around queued launches",
    "cupti": "CUPTI durations",
}


def draw(runs: Sequence[Run], stem: Path) -> list[Path]:
    """Write stem.png and stem.svg; [] where no run was calibrated."""
    drawn = figure(runs)
    return save(drawn, stem) if drawn else []


def figure(runs: Sequence[Run]) -> Figure | None:
    calibrated = [run for run in runs if run.header.calibration is not None and run.header.calibration.spins]
    if not calibrated:
        return None
    fig = new_figure(0.5 + 2.9 * len(calibrated))
    fig.suptitle("The ruler against known times", fontsize=TITLE_PT)
    rows = fig.subplots(len(calibrated), 2, squeeze=False, width_ratios=(2, 1))
    handles: dict[str, object] = {}
    for (left, right), run in zip(rows, calibrated, strict=True):
        name = f"{run.header.environment.gpu or 'unnamed GPU'}, {run.header.name}"
        handles |= _residuals(left, run.header.calibration, name)
        _chase(right, run.header.calibration)
    legend_below(fig, handles)
    caption(
        fig,
        "A spin kernel reads its own duration off the global timer. Residual: measured minus true, each estimator's constant per "
        "launch (median over the spins) taken off. Band: max(50 ns, 1 %).\n" + environment_caption(calibrated),
    )
    stamp(fig, calibrated)
    return fig


def _residuals(ax: Axes, calibration: Calibration, name: str) -> dict[str, object]:
    found = estimators.residuals(calibration)
    times = np.geomspace(min(r.true_us for r in found) * 0.8, max(r.true_us for r in found) * 1.25, 50)
    allowed = 1000 * np.maximum(estimators.RESIDUAL_US, estimators.RESIDUAL_SHARE * times)
    handles: dict[str, object] = {"tolerance": ax.fill_between(times, -allowed, allowed, color="#dddddd", linewidth=0)}
    ax.axhline(0, color="#888888", linewidth=0.8)
    for estimator, look in _LOOKS.items():
        mine = [r for r in found if r.estimator == estimator]
        if mine:
            errors = [1000 * r.error_us for r in mine]
            (handles[_NAMES[estimator]],) = ax.plot(
                [r.true_us for r in mine], errors, **look, markersize=5, linewidth=1
            )
    ax.set_xscale("log")
    ax.set_xticks(
        ticks := [round(r.true_us) for r in found if r.estimator == found[0].estimator], [str(t) for t in ticks]
    )
    ax.minorticks_off()
    ax.set_xlabel("true duration (µs)", fontsize=LABEL_PT)
    ax.set_ylabel("residual (ns)", fontsize=LABEL_PT)
    ax.set_title(name, fontsize=LABEL_PT, loc="left")
    ax.tick_params(labelsize=SMALL_PT)
    ax.grid(True, color="#eeeeee", linewidth=0.6)
    return handles


def _chase(ax: Axes, calibration: Calibration) -> None:
    words = {"l2": "in L2", "memory": "in memory", "hot": "hot", "cold": "cold"}
    words |= {"serving": "serving:\ninputs", "serving_table": "serving:\nthe rest"}
    states = [state for state in words if state in calibration.chase_cycles]
    if not states:
        ax.set_axis_off()
        return
    medians = [float(np.median(calibration.chase_cycles[state])) for state in states]
    bars = ax.bar([words[state] for state in states], medians, color="#888888", width=0.6)
    ax.bar_label(bars, [f"{value:.0f}" for value in medians], fontsize=SMALL_PT)
    ax.set_ylabel("cycles per hop", fontsize=LABEL_PT)
    ax.set_title("pointer chase: where the data lies", fontsize=LABEL_PT, loc="left")
    ax.tick_params(labelsize=SMALL_PT)
    ax.set_ylim(0, 1.15 * max(medians))
