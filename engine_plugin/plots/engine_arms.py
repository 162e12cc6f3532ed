"""Change of an engine's ITL with the suite's kernels, and with its own by packed launches: a panel for each record.

Bars of the second row show the host's time of the replaced part, which is where the change comes from.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spec_decode_bench.engine_plugin.analysis import Arm, all_compared
from spec_decode_bench.engine_plugin.records import blocks_of
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.plots._axes import draw_intervals, same_y, style_changes
from spec_decode_bench.plots._style import LABEL_PT, environment_caption, finish, new_figure

#: Arm -> its colour and marker, in the order of the legend; an engine's own functions come first.
LOOKS = {"engine": ("#999999", "s"), "packed": ("#117733", "h"), "suite": ("#882255", "D")}
HEIGHT_IN = 4.6
#: Width of the bars or dots of one batch size, as a share of the distance between two.
SPREAD = 0.7


def figure(runs: Sequence[Run]) -> Figure | None:
    """None without a record in which arms can be compared."""
    found = [(run, arms) for run in runs if (arms := all_compared(blocks_of(run)))]
    if not found:
        return None
    fig = new_figure(HEIGHT_IN, "What changes in a server: ITL, and the host's time of the replaced part")
    grid, handles = fig.add_gridspec(2, len(found), height_ratios=(3, 2)), {}
    changes, hosts = [], []
    for column, (run, arms) in enumerate(found):
        changes.append(fig.add_subplot(grid[0, column]))
        hosts.append(fig.add_subplot(grid[1, column]))
        handles |= _draw_changes(changes[-1], arms) | _draw_host(hosts[-1], arms)
        changes[-1].set_title(_title(run), fontsize=LABEL_PT)
        hosts[-1].set_xlabel("batch size", fontsize=LABEL_PT)
    changes[0].set_ylabel("change of ITL (µs)", fontsize=LABEL_PT)
    hosts[0].set_ylabel("host (µs)", fontsize=LABEL_PT)
    same_y(changes)
    same_y(hosts)
    kept = "; ".join(
        f"{_title(run).splitlines()[0]}: "
        + ", ".join(f"{arm.kept} of {arm.of} palindromes at {arm.batch}" for arm in arms if arm.change is None)
        for run, arms in found
    )
    text = (
        f"95 % intervals by a bootstrap over palindromes of blocks of steps; packed: the engine's own kernels\n{kept}"
    )
    handles = {name: handles[name] for name in LOOKS if name in handles}
    measured = [run for run, _ in found]
    return finish(fig, handles, f"{text}\n{environment_caption(measured)}", measured)


def _title(run: Run) -> str:
    engine = run.header.config["engine"]
    drafts = f" + {engine['method']}, {engine['num_drafts']} drafts" if engine["method"] else ""
    return f"{engine['model']}, {engine['layers']} layers{drafts}\nvLLM {run.header.environment.packages['vllm']}"


def _places(arms: Sequence[Arm], names: Sequence[str]) -> dict[tuple[int, str], float]:
    """(batch size, arm) -> x; batch sizes are at equal distances."""
    sizes = list(dict.fromkeys(arm.batch for arm in arms))
    step = SPREAD / len(names)
    return {
        (size, name): x + step * (n - (len(names) - 1) / 2)
        for x, size in enumerate(sizes)
        for n, name in enumerate(names)
    }


def _sizes(ax: Axes, arms: Sequence[Arm]) -> None:
    sizes = list(dict.fromkeys(arm.batch for arm in arms))
    ax.set_xticks(range(len(sizes)), [str(size) for size in sizes], fontsize=LABEL_PT)
    ax.set_xlim(-0.5, len(sizes) - 0.5)


def _draw_changes(ax: Axes, arms: Sequence[Arm]) -> dict[str, object]:
    """Returns legend handles by arm."""
    changed, handles = [arm for arm in arms if arm.change is not None], {}
    names = [name for name in LOOKS if any(arm.name == name for arm in changed)]
    places = _places(arms, names)
    for name in names:
        of_arm, (color, marker) = [arm for arm in changed if arm.name == name], LOOKS[name]
        x = [places[arm.batch, name] for arm in of_arm]
        style = {"color": color, "marker": marker, "linestyle": "none"}
        handles[name] = draw_intervals(ax, x, [arm.change for arm in of_arm], **style)
    style_changes(ax)
    _sizes(ax, arms)
    return handles


def _draw_host(ax: Axes, arms: Sequence[Arm]) -> dict[str, object]:
    names, handles = [name for name in LOOKS if any(arm.name == name for arm in arms)], {}
    places = _places(arms, names)
    for name in names:
        of_arm = [arm for arm in arms if arm.name == name]
        x, host = [places[arm.batch, name] for arm in of_arm], [sum(arm.host_us.values()) for arm in of_arm]
        bars = ax.bar(x, host, width=SPREAD / len(names), color=LOOKS[name][0], zorder=2)
        ax.bar_label(bars, [f"{us:.0f}" for us in host], fontsize=LABEL_PT)
        handles[name] = bars
    style_changes(ax, margin=0.2)
    _sizes(ax, arms)
    return handles
