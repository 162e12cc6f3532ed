"""What the figures of decode loops share: panels of one device and one configuration, and the look of stacks."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from spec_decode_bench.decode_loop.analysis import Delta, Metric, by_point, delta, is_measured, reference_of
from spec_decode_bench.decode_loop.records import Loop, loops_of
from spec_decode_bench.decode_loop.tables import stack_failure_warnings
from spec_decode_bench.harness.analysis.warnings import KNOWN_FAILURES
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.plots._style import (
    LABEL_PT,
    WIDTH_IN,
    device_name,
    environment_caption,
    generation_of,
    group_by_generation,
)

#: Of stacks in the order of the configuration, the reference first: colours by Okabe and Ito.
_COLOURS = ("#555555", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
#: Axes of a loop that a panel holds several values of; all others set panels apart.
_INSIDE = ("concurrency", "batch_size", "model_step_us", "scheduling")


@dataclass(frozen=True)
class LoopPanel:
    """Loops of one configuration on one device. points: the stacks of each loop, the reference measured in all."""

    run: Run
    fixed: Mapping[str, Any]
    points: Sequence[Sequence[Loop]]

    @property
    def is_cpu(self) -> bool:
        return self.run.header.environment.device == "cpu"

    @property
    def stacks(self) -> list[str]:
        """The reference, then the others in the order of the configuration."""
        names = dict.fromkeys(loop.stack for point in self.points for loop in point)
        reference = self.points[0][0].reference
        return [reference, *(name for name in names if name != reference)]

    def marked(self, stack: str) -> str:
        """The stack's name, with a dagger where one of its variants has known failures."""
        limited = any(loop.known_failures for point in self.points for loop in point if loop.stack == stack)
        return f"{stack} {KNOWN_FAILURES}" if limited else stack

    def values(self, axis: str) -> list[Any]:
        """Ascending."""
        return sorted({point[0].axes[axis] for point in self.points})

    def at(self, concurrency: int, scheduling: str, model_step_us: float) -> list[Loop]:
        """The stacks of the loop with these values; none where it was not measured."""
        wanted = {"concurrency": concurrency, "scheduling": scheduling, "model_step_us": model_step_us}
        for point in self.points:
            if all(point[0].axes[name] == value for name, value in wanted.items()):
                return list(point)
        return []

    @property
    def schedulings(self) -> list[str]:
        """sync before async."""
        return sorted(self.values("scheduling"), reverse=True)

    def delta(
        self, stack: str, metric: Metric, concurrency: int, scheduling: str, model_step_us: float
    ) -> Delta | None:
        """The change of a stack in the loop with these values; None where it or the reference was not measured."""
        loops = self.at(concurrency, scheduling, model_step_us)
        reference, mine = reference_of(loops), next((loop for loop in loops if loop.stack == stack), None)
        return None if reference is None or mine is None else delta(reference, mine, metric)

    @property
    def usual_model_us(self) -> float:
        """The model step with the most loops; of several the one nearest to 10 ms."""
        steps = [point[0].axes["model_step_us"] for point in self.points]
        return max(set(steps), key=lambda us: (steps.count(us), -abs(us - 10_000)))

    def title(self) -> str:
        environment = self.run.header.environment
        device = device_name(environment).removeprefix("NVIDIA ")
        generation = generation_of(environment)
        where = "CPU miniature, no GPU time" if self.is_cpu else f"{device} ({generation})"
        graph = ", metadata in the graph" if self.fixed["graph"] == "full" else ""
        return f"{where}\n{self.run.header.name}: {self.fixed['geometry']}, next_n {self.fixed['next_n']}{graph}"


def loop_panels(runs: Sequence[Run]) -> list[LoopPanel]:
    """By generation, device and configuration. CPU miniatures only where no GPU was recorded."""
    runs = [run for run in runs if loops_of(run)]
    if any(run.header.environment.device == "cuda" for run in runs):
        runs = [run for run in runs if run.header.environment.device == "cuda"]
    found = []
    for of_generation in group_by_generation(runs).values():
        for run in sorted(of_generation, key=lambda one: device_name(one.header.environment)):
            kinds: dict[tuple, list[list[Loop]]] = {}
            for loops in by_point(run).values():
                measured = [loop for loop in loops if is_measured(loop)]
                if reference_of(measured) is not None:
                    fixed = {name: value for name, value in measured[0].axes.items() if name not in _INSIDE}
                    kinds.setdefault(tuple(fixed.items()), []).append(measured)
            found += [LoopPanel(run, dict(fixed), points) for fixed, points in kinds.items()]
    return found


def stack_styles(panels: Iterable[LoopPanel]) -> dict[str, dict[str, Any]]:
    """color and marker of every stack, in the order of the panels; the same in all of them."""
    names = dict.fromkeys(name for panel in panels for name in panel.stacks)
    return {
        name: {"color": _COLOURS[i % len(_COLOURS)], "marker": _MARKERS[i % len(_MARKERS)]}
        for i, name in enumerate(names)
    }


def title_loops(ax: Axes, panel: LoopPanel, columns: int, detail: str = "") -> None:
    width = int(13 * WIDTH_IN / columns)
    lines = [*panel.title().splitlines(), *([detail] if detail else [])]
    ax.set_title("\n".join(textwrap.fill(line, width) for line in lines), fontsize=LABEL_PT)


def runs_of(panels: Iterable[LoopPanel]) -> list[Run]:
    """The run of every panel, each once."""
    return list({id(panel.run): panel.run for panel in panels}.values())


def loop_caption(panels: Iterable[LoopPanel], stacks: Collection[str] = ()) -> str:
    """The variants of the drawn stacks, by default all, and their known failures, then the machines."""
    panels = list(panels)
    loops = [
        loop
        for panel in panels
        for point in panel.points
        for loop in sorted(point, key=lambda loop: panel.stacks.index(loop.stack))
        if not stacks or loop.stack in stacks
    ]
    variants = [
        f"{loop.stack}: {', '.join(f'{operator}/{variant}' for operator, variant in loop.operators.items())}"
        for loop in loops
    ]
    lines = [*dict.fromkeys(variants), *stack_failure_warnings(loops), environment_caption(runs_of(panels))]
    return "\n".join(lines)


#: What the host does under a scheduling.
SCHEDULINGS = {"sync": "the host waits for the accepted tokens", "async": "the host runs a step ahead"}


def scheduling_in_words(name: str) -> str:
    return "sync" if name == "sync" else f"{name}: {SCHEDULINGS[name]}"
