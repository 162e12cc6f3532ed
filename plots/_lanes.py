"""What happened on the lanes of host and device, drawn over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.axes import Axes

from spec_decode_bench.plots._style import LABEL_PT, SMALL_PT

_LANES = {"host": 1.0, "device": 0.0}
_HEIGHT = 0.7
#: Shown around what the axis is about, as a share of it.
_MARGIN = 0.12

#: Share of the axis below which a bar has no edge of its own.
_NARROW = 0.005
EDGE_STYLE = {"color": "black", "linewidth": 0.8, "linestyle": ":"}


@dataclass(frozen=True)
class Bar:
    """Something on a lane, "host" or "device", from ``start`` to ``end``."""

    lane: str
    start: float
    end: float
    colour: str


def draw_lanes(ax: Axes, bars: Iterable[Bar], length: float, longest: float, before: float = _MARGIN) -> None:
    """Bars from 0 to ``longest`` and a margin around; dotted lines at 0 and ``length``. All in the unit of the axis.

    before: margin on the left, as a share of ``longest``.
    """
    left, right = -before * longest, (1 + _MARGIN) * longest
    for bar in bars:
        if bar.end > left and bar.start < right:
            # A white edge parts neighbours, but would hide what is hardly wider than itself.
            narrow = bar.end - bar.start < _NARROW * longest
            ax.barh(
                _LANES[bar.lane],
                bar.end - bar.start,
                left=bar.start,
                height=_HEIGHT,
                color=bar.colour,
                edgecolor=bar.colour if narrow else "white",
                linewidth=0.3,
            )
    for edge in (0.0, length):
        ax.axvline(edge, **EDGE_STYLE)
    ax.set_xlim(left, right)
    ax.set_ylim(-0.5, 1.5)
    ax.set_yticks(list(_LANES.values()), list(_LANES), fontsize=LABEL_PT)
    ax.tick_params(axis="x", labelsize=SMALL_PT)
