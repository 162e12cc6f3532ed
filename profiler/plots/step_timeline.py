"""One call of a chain and one of a fused kernel on the lanes of host and device, from a profile of any tool."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from spec_decode_bench.harness.numbers import counted, significant
from spec_decode_bench.harness.records.schema import split_key
from spec_decode_bench.plots._lanes import Bar, draw_lanes
from spec_decode_bench.plots._style import LABEL_PT, commit, finish, machine, new_figure, save
from spec_decode_bench.profiler.records import PHASES, Profile, Span, Step

#: Name of the picture, without its suffix.
TIMELINE = "timeline"
ROW_IN = 1.7
#: Kind of a span -> its words and colour, in the order of the legend. What the host does between API calls is grey.
COLOURS = {
    "python": ("host between API calls", "#DDDDDD"),
    "submit": ("API call", "#0072B2"),
    "wait": ("API call that waits for the device", "#A6CEE3"),
    "kernel": ("kernel", "#D55E00"),
    "memcpy": ("memcpy, memset", "#009E73"),
}
_SAME_COLOUR = {"memset": "memcpy", "graph": "kernel"}
_IN_WORDS = {"eager": "called", "graph": "replayed as a graph"}
_TOOLS = {"nsys": "Nsight Systems", "torch": "torch.profiler"}


def draw(profile: Profile, stem: Path) -> list[Path]:
    """Write stem.png and stem.svg; [] for a profile without two variants of an operator on a GPU."""
    drawn = figure(profile)
    return save(drawn, stem) if drawn else []


def figure(profile: Profile) -> Figure | None:
    pair = chosen(profile.steps)
    if pair is None:
        return None
    phases = [phase for phase in PHASES if all(phase in steps for steps in pair)]
    operator, _, point = split_key(pair[0][phases[0]].cell)
    fig = new_figure(0.5 + 2 * ROW_IN, textwrap.fill(f"One call of {operator} at {point}", 110))
    grid = fig.add_gridspec(2, len(phases))
    for c, phase in enumerate(phases):
        longest = max(_end(steps[phase]) for steps in pair)
        for r, steps in enumerate(pair):
            ax = fig.add_subplot(grid[r, c])
            _draw(ax, steps[phase], longest)
            ax.set_title(_title(steps[phase]), fontsize=LABEL_PT)
            if r == 1:
                ax.set_xlabel("µs since the call began", fontsize=LABEL_PT)
    handles = {words: Patch(facecolor=colour) for words, colour in COLOURS.values()}
    text = f"Traced by {_TOOLS[profile.tool]} {profile.tool_version}, which makes API calls slower; not a measurement."
    if profile.session is not None:
        environment = profile.session.environment
        text += f"\n{profile.name} — {machine(environment)} · torch {environment.torch} · {commit(environment)}"
    return finish(fig, handles, text, [])


def chosen(steps: Sequence[Step]) -> tuple[dict[str, Step], dict[str, Step]] | None:
    """By phase, the variant with the most operations and the one with the fewest, at the point where the difference is
    largest; of several such points the last, of several such variants the shortest. None where all have as many.
    """
    points: dict[tuple[str, str], dict[str, dict[str, Step]]] = {}
    for step in steps:
        if step.device and step.phase in PHASES:
            operator, variant, point = split_key(step.cell)
            points.setdefault((operator, point), {}).setdefault(variant, {})[step.phase] = step
    found = None
    for variants in points.values():
        first = next((phase for phase in PHASES if all(phase in one for one in variants.values())), None)
        if first is None:
            continue
        ranked = sorted(variants.values(), key=lambda one: (len(one[first].device), one[first].us))
        fewest, most = ranked[0], ranked[-1]
        more = len(most[first].device) - len(fewest[first].device)
        if more > 0 and (found is None or more >= found[0]):
            found = (more, (most, fewest))
    return found[1] if found else None


def _end(step: Step) -> float:
    return max(step.us, *(span.end_us for span in step.device))


def _title(step: Step) -> str:
    """Variant, launches, and where the time goes."""
    _, variant, _ = split_key(step.cell)
    busy = _busy_us(step.device)
    gaps = max(span.end_us for span in step.device) - min(span.start_us for span in step.device) - busy
    text = f"{variant}, {_IN_WORDS[step.phase]}: {counted(len(step.device), 'operation')}"
    return (
        f"{text}\n{significant(step.us)} µs; device busy {significant(busy)} µs, gaps {significant(max(gaps, 0.0))} µs"
    )


def _busy_us(spans: Sequence[Span]) -> float:
    busy, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda one: one.start_us):
        busy += max(span.end_us - max(span.start_us, until), 0.0)
        until = max(until, span.end_us)
    return busy


def _draw(ax: Axes, step: Step, longest: float) -> None:
    bars = [Bar("host", 0.0, step.us, COLOURS["python"][1])]
    for lane, spans in (("host", step.host), ("device", step.device)):
        for span in spans:
            colour = COLOURS[_SAME_COLOUR.get(span.kind, span.kind)][1]
            bars.append(Bar(lane, span.start_us, span.end_us, colour))
    draw_lanes(ax, bars, step.us, longest, before=0.03)
