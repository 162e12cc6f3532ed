"""Times of cells over commits, with the changes marked: the cells that changed most, one panel each.

The changes are those of regression/history.py.
"""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spec_decode_bench.harness.analysis.stats import median_us
from spec_decode_bench.harness.numbers import signed
from spec_decode_bench.plots._style import LABEL_PT, SMALL_PT, caption, environment_caption, new_figure, save
from spec_decode_bench.regression.history import History, Series

#: Panels of the figure: two screens at 880 px.
COLUMNS, MAX_PANELS = 3, 12
PANEL_IN = 2.15
#: Commits named below a panel; of more only some are.
MAX_NAMES = 6
SLOWER, FASTER, LEVEL, DOTS = "#D55E00", "#0072B2", "#333333", "#8a8a8a"
#: Least height of a panel, so that noise does not look like a change.
MIN_SPAN = 0.10


def draw(history: History, stem: Path) -> list[Path]:
    """Write stem.png and stem.svg."""
    return save(figure(history), stem)


def figure(history: History) -> Figure:
    shown = chosen(history)
    columns = min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    fig = new_figure(0.5 + PANEL_IN * rows, _title(history, shown))
    for number, series in enumerate(shown):
        _panel(fig.add_subplot(rows, columns, number + 1), history, series)
    runs = [run for state in history.states for run in state.runs]
    dots = "dots: a process each; line: level of a stretch; triangles: changes"
    caption(fig, f"{dots}\n{environment_caption(runs[-1:])}")
    return fig


def chosen(history: History) -> list[Series]:
    """The largest change of every variant first, then further cells that changed; where none did, the cells that vary
    most.
    """
    changed = history.changed or sorted(history.series, key=_range, reverse=True)
    first: dict[tuple[str, str], Series] = {}
    for series in changed:
        first.setdefault((series.cell.operator, series.cell.variant), series)
    leading = list(first.values())
    return [*leading, *(series for series in changed if series not in leading)][:MAX_PANELS]


def _range(series: Series) -> float:
    known = [us for us in series.median_us if us == us]
    return max(known) / min(known)


def _title(history: History, shown: list[Series]) -> str:
    time = {"gpu_us": "GPU time", "cpu_us": "CPU wall time"}.get(history.metric, history.metric)
    of = len(history.changed)
    if history.blind:
        return f"{time} of a call over commits, µs: too few records to tell a change from noise"
    if not of:
        return f"{time} of a call over commits, µs: no change found"
    which = f"the {len(shown)} most changed of {of} cells" if of > len(shown) else "the cells that changed"
    return f"{time} of a call over commits, µs: {which}"


def _panel(ax: Axes, history: History, series: Series) -> None:
    for place, state in enumerate(history.states):
        for run in state.runs:
            cell = next((one for one in run.cells if one.key == series.cell.key), None)
            if cell is not None and (us := median_us(cell, history.metric)) is not None:
                ax.plot(place, us, "o", color=DOTS, markersize=3 if len(history.states) < 50 else 1.5, zorder=2)
    places = [place for place, level in enumerate(series.level_us) if level == level]
    ax.step(places, [series.level_us[place] for place in places], where="mid", color=LEVEL, linewidth=1.2, zorder=3)
    for change in series.changes:
        slower = change.ratio > 1
        style = {"color": SLOWER if slower else FASTER, "fontsize": SMALL_PT, "ha": "center"}
        ax.plot(change.at, change.head_us, "^" if slower else "v", color=style["color"], markersize=6, zorder=4)
        text = f"{signed((change.ratio - 1) * 100, '.1f')} %"
        y, anchor = (0.98, "top") if slower else (0.02, "bottom")  # in the room that _scale leaves beside the dots
        ax.text(change.at, y, text, transform=ax.get_xaxis_transform(), va=anchor, zorder=5, **style)
    _scale(ax)
    _name_commits(ax, history)
    words = [f"{series.cell.operator} {series.cell.variant}", series.cell.point.replace(",", ", ")]
    lines = [line for text in words for line in textwrap.wrap(text, 44, break_on_hyphens=False)[:2]]
    ax.set_title("\n".join(lines), fontsize=SMALL_PT)
    ax.grid(True, axis="y", color="#e6e6e6", linewidth=0.6)
    ax.spines[["right", "top"]].set_visible(False)


def _scale(ax: Axes) -> None:
    """Room for the labels, and at least MIN_SPAN of the time from bottom to top."""
    low, high = ax.get_ylim()
    middle = (low + high) / 2
    half = max(high - low, MIN_SPAN * middle) * 0.68
    ax.set_ylim(middle - half, middle + half)
    ax.tick_params(labelsize=SMALL_PT)


def _name_commits(ax: Axes, history: History) -> None:
    """The last commit, and others at even distances before it."""
    count = len(history.states)
    step = math.ceil(count / MAX_NAMES)
    places = list(range(count - 1, -1, -step))
    ax.set_xticks(places, [history.states[place].name for place in places], rotation=30, ha="right")
    ax.set_xlim(-0.5, count - 0.5)
    ax.tick_params(axis="x", labelsize=SMALL_PT, labelrotation=30)
    ax.set_ylabel("µs", fontsize=LABEL_PT)
