"""The calibration of the timer: residuals on kernels of known duration, and where the pointer chase finds data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spec_decode_bench.harness.analysis.cache_states import CHASE_LABELS, chase_medians
from spec_decode_bench.harness.analysis.estimators import CROSS_CHECK, ESTIMATORS, RESIDUAL, residuals
from spec_decode_bench.harness.records.schema import Calibration, Run
from spec_decode_bench.plots._style import LABEL_PT, SMALL_PT, environment_caption, finish, new_figure

#: Colours of the estimators, in their order (Okabe-Ito).
STYLES = (
    {"color": "#0072B2", "marker": "o"},
    {"color": "#E69F00", "marker": "s"},
    {"color": "#009E73", "marker": "^"},
    {"color": "#CC79A7", "marker": "D"},
)


def figure(runs: Sequence[Run]) -> Figure | None:
    """None where no run was calibrated."""
    calibrated = [run for run in runs if run.header.calibration is not None and run.header.calibration.spins]
    if not calibrated:
        return None
    shared: dict[bytes, list[Run]] = {}  # the configurations of one command share a calibration
    for run in calibrated:
        shared.setdefault(msgspec.json.encode(run.header.calibration), []).append(run)
    fig = new_figure(0.5 + 2.9 * len(shared), "Timer error on kernels of known duration")
    rows = fig.subplots(len(shared), 2, squeeze=False, width_ratios=(2, 1))
    handles: dict[str, object] = {}
    for (left, right), group in zip(rows, shared.values(), strict=True):
        header = group[0].header
        name = f"{header.environment.gpu}, {', '.join(run.header.name for run in group)}"
        handles |= _draw_residuals(left, header.calibration, name)
        _draw_chases(right, header.calibration)
    note = (
        "A spin kernel reads its own duration off the GPU's global timer. Residual: measured minus true, without each "
        f"estimator's constant per launch (median over the spins). Tolerance of the graph slope: {RESIDUAL}, of the "
        f"others: {CROSS_CHECK}.\n"
    )
    return finish(fig, handles, note + environment_caption(calibrated), calibrated)


def _draw_residuals(ax: Axes, calibration: Calibration, title: str) -> dict[str, object]:
    """Returns legend handles by name."""
    found = residuals(calibration)
    times = np.geomspace(min(r.true_us for r in found) * 0.8, max(r.true_us for r in found) * 1.25, 50)
    handles: dict[str, object] = {}
    for name, tolerance, color in (("others", CROSS_CHECK, "#eeeeee"), ("graph slope", RESIDUAL, "#d4d4d4")):
        allowed = np.array([1000 * tolerance.allowed_us(us) for us in times])
        handles[f"tolerance, {name}"] = ax.fill_between(times, -allowed, allowed, color=color, linewidth=0)
    ax.axhline(0, color="#888888", linewidth=0.8)
    for estimator, style in zip(ESTIMATORS, cycle(STYLES), strict=False):
        taken = [r for r in found if r.estimator is estimator]
        if taken:
            errors = [1000 * r.error_us for r in taken]
            (handles[estimator.name],) = ax.plot([r.true_us for r in taken], errors, **style, markersize=5, linewidth=1)
    ax.set_xscale("log")
    ticks = [round(r.true_us) for r in found if r.estimator is found[0].estimator]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel("true duration (µs)", fontsize=LABEL_PT)
    ax.set_ylabel("residual (ns)", fontsize=LABEL_PT)
    ax.set_title(title, fontsize=LABEL_PT, loc="left")
    ax.tick_params(labelsize=SMALL_PT)
    ax.grid(True, color="#eeeeee", linewidth=0.6)
    return handles


def _draw_chases(ax: Axes, calibration: Calibration) -> None:
    medians = chase_medians(calibration)
    if not medians:
        ax.set_axis_off()
        return
    labels = [CHASE_LABELS[name].replace(": ", ":\n") for name in medians]
    bars = ax.bar(labels, list(medians.values()), color="#888888", width=0.6)
    ax.bar_label(bars, [f"{cycles:.0f}" for cycles in medians.values()], fontsize=SMALL_PT)
    ax.set_ylabel("cycles per hop", fontsize=LABEL_PT)
    ax.set_title("pointer chase: where the data is", fontsize=LABEL_PT, loc="left")
    ax.tick_params(labelsize=SMALL_PT)
    ax.set_ylim(0, 1.15 * max(medians.values()))
