"""The look of every figure: colours of variants, order of GPU generations, captions, and files that are reproducible.

Figures are drawn with matplotlib's object interface on the Agg canvas, without pyplot or windows.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from spec_decode_bench.harness.records.schema import Environment, Run

# A dollar in a name is a dollar; no figure has formulas.
matplotlib.rcParams["text.parse_math"] = False

GENERATIONS = ("Ampere", "Ada", "Hopper", "Blackwell", "CPU")

#: Width of every figure: 1350 px at 150 dpi, which GitHub shows with little shrinking.
WIDTH_IN, DPI = 9.0, 150
TITLE_PT, LABEL_PT, SMALL_PT = 10, 8, 7
#: What surrounds the curve of a variant with the times of another one, which is drawn over both.
HALO_STYLE = {"markersize": 6.5, "linewidth": 3, "zorder": 1.5}
COPY_BOUND_STYLE = {"color": "#888888", "linestyle": "--", "linewidth": 1.0}

#: Variant of this suite -> its colour and marker. Colours by Okabe and Ito and from Paul Tol's muted scheme, which are
#: distinguishable with every common colour vision deficiency. The variants of an operator differ in colour.
LOOKS = {
    "cuda_fused": ("#0072B2", "o"),
    "cuda_mapped": ("#56B4E9", "v"),
    "cuda_sequence": ("#56B4E9", "X"),
    "cuda_replayed": ("#332288", "o"),
    "sglang_cuda": ("#332288", "v"),
    "sglang_dsa_triton": ("#E69F00", "o"),
    "triton_sequence": ("#E69F00", "X"),
    "triton_uniform": ("#E69F00", "^"),
    "triton_fused": ("#882255", "D"),
    "flash_mla_sgl": ("#117733", "X"),
    "vllm": ("#117733", "h"),
    "vllm_align": ("#117733", "o"),
    "deep_gemm": ("#661100", "^"),
    "flash_mla_fp8": ("#661100", "P"),
    "vllm_cuda": ("#661100", "D"),
    "vllm_triton": ("#661100", "v"),
    "flash_mla": ("#AA4499", "o"),
    "vllm_call": ("#AA4499", "p"),
    "vllm_varlen": ("#AA4499", "s"),
    "op_chain": ("#CC79A7", "X"),
    "pointer_lists": ("#CC79A7", "^"),
    "blocking_copy": ("#009E73", "o"),
    "flat_view": ("#009E73", "P"),
    "masked_chain": ("#009E73", "D"),
    "per_layer_chain": ("#009E73", "^"),
    "chain": ("#000000", "v"),
    "exact_length": ("#000000", "s"),
    "hoisted_chain": ("#000000", "X"),
    "host_loop": ("#000000", "o"),
    "chain_clamp": ("#999933", "v"),
    "merged_chain": ("#999933", "o"),
    "compiled_chain": ("#8C6239", "D"),
    "fresh_copy": ("#8C6239", "o"),
}
#: Of all other variants, in turn: what no variant of this suite has.
OWN_COLOURS = ("#D55E00", "#88CCEE", "#DDCC77", "#44AA99")
OWN_MARKERS = ("*", "<", ">", "d", "H")
#: Words in the names of kernels, which get a solid line; a chain of framework operators gets a dash-dotted one.
KERNEL_WORDS = {"cuda", "triton", "fused", "vllm", "gemm", "mla"}


def variant_style(name: str, own: Sequence[str] = ()) -> dict[str, Any]:
    """color, marker and linestyle of a variant, as keyword arguments of ``Axes.plot``.

    own: all variants without an entry in LOOKS, in the order in which they get their colours.
    """
    place = own.index(name) if name in own else 0
    of_its_own = OWN_COLOURS[place % len(OWN_COLOURS)], OWN_MARKERS[place % len(OWN_MARKERS)]
    color, marker = LOOKS.get(name, of_its_own)
    return {"color": color, "marker": marker, "linestyle": "-." if KERNEL_WORDS.isdisjoint(name.split("_")) else "-"}


def generation_of(environment: Environment) -> str:
    if environment.generation:
        return environment.generation
    return "CPU" if environment.device == "cpu" else f"unknown generation ({environment.sm or environment.gpu})"


def group_by_generation(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Generation -> runs: known generations in the order of GENERATIONS, then unknown ones alphabetically."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(generation_of(run.header.environment), []).append(run)
    known = [name for name in GENERATIONS if name in groups]
    return {name: groups[name] for name in known + sorted(set(groups) - set(known))}


def device_name(environment: Environment) -> str:
    """``NVIDIA H200``, or the CPU's name."""
    return environment.processor if environment.device == "cpu" else environment.gpu


def machine(environment: Environment) -> str:
    if environment.device == "cpu":
        return f"CPU: {environment.processor}"
    return f"{environment.gpu} · driver {environment.driver or 'unknown'}"


def commit(environment: Environment) -> str:
    """Such as ``commit 0123abc+``; the plus means uncommitted changes."""
    return f"commit {environment.commit or 'unknown'}{'+' if environment.dirty else ''}"


def environment_caption(runs: Iterable[Run]) -> str:
    """One line per machine, software and commit, with the names of the runs."""
    names: dict[str, list[str]] = {}
    for run in runs:
        environment = run.header.environment
        where = f"{machine(environment)} · torch {environment.torch} · {commit(environment)}"
        names.setdefault(where, []).append(run.header.name)
    return "\n".join(f"{', '.join(dict.fromkeys(of_runs))} — {where}" for where, of_runs in names.items())


def new_figure(height_in: float, title: str = "", width_in: float = WIDTH_IN) -> Figure:
    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=TITLE_PT)
    return figure


def finish(fig: Figure, handles: Mapping[str, Any], text: str, runs: Iterable[Run]) -> Figure:
    """The figure with a legend, a caption, and a warning where one of its runs is not calibrated."""
    if handles:
        legend_below(fig, handles)
    caption(fig, text)
    mark_uncalibrated(fig, runs)
    return fig


def legend_below(fig: Figure, handles: Mapping[str, Any]) -> None:
    """One legend for all panels, below them. handles: name -> artist."""
    widest_in = 0.65 + 0.08 * max(map(len, handles), default=1)
    rows = math.ceil(len(handles) / max(1, int(fig.get_figwidth() / widest_in))) or 1
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.01), "ncols": math.ceil(len(handles) / rows) or 1}
    fig.legend(list(handles.values()), list(handles), **place, fontsize=LABEL_PT, frameon=False)


def caption(fig: Figure, text: str) -> None:
    """Small grey text below everything else. To be called last, as it depends on where the figure ends."""
    fig.get_layout_engine().execute(fig)
    renderer = fig.canvas.get_renderer()
    bottom = min([0.0, *(legend.get_window_extent(renderer).y0 for legend in fig.legends)])
    wrapped = "\n".join(
        textwrap.fill(line, int(fig.get_figwidth() * 17), subsequent_indent="    ") for line in text.splitlines()
    )
    y = bottom / fig.bbox.height - 0.08 / fig.get_figheight()
    fig.text(0.01, y, wrapped, fontsize=SMALL_PT, color="#555555", ha="left", va="top")


def mark_uncalibrated(fig: Figure, runs: Iterable[Run]) -> None:
    """A red line above the figure where a run is not calibrated."""
    reasons = [f"{run.header.name}: {reason}" for run in runs for reason in run.uncalibrated]
    if reasons:
        text = f"UNCALIBRATED — {reasons[0]}" + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")
        wrapped = textwrap.fill(text, int(fig.get_figwidth() * 13))
        fig.draw_without_rendering()
        renderer = fig.canvas.get_renderer()
        tops = [fig.bbox.height, *(legend.get_window_extent(renderer).y1 for legend in fig.legends)]
        y = max(tops) / fig.bbox.height + 0.08 / fig.get_figheight()
        fig.text(0.01, y, wrapped, fontsize=LABEL_PT, color="#B00020", weight="bold", ha="left", va="bottom")


def name_recorded(fig: Figure, runs: Iterable[Run]) -> None:
    """Say in the title which devices' panels show these runs, which were recorded earlier."""
    devices = dict.fromkeys(device_name(run.header.environment) for run in runs)
    text = f"{fig.get_suptitle()}\nPanels of {', '.join(devices)}: runs recorded earlier, nothing of this one"
    fig.suptitle(text, fontsize=TITLE_PT)


def _freeze_layout(fig: Figure) -> None:
    """Replace the layout by its rounded positions: the last bits of its solver differ between processes, and with them
    the ids in an SVG.
    """
    fig.get_layout_engine().execute(fig)
    fig.set_layout_engine("none")
    for axes in fig.axes:
        axes.set_position([round(value, 6) for value in axes.get_position().bounds])


def _bounds(fig: Figure) -> Bbox:
    """In inches: the full width, and the height including legend and caption."""
    fig.draw_without_rendering()
    drawn = fig.get_tightbbox(fig.canvas.get_renderer())
    return Bbox(
        [[min(0, drawn.x0) - 0.05, drawn.y0 - 0.08], [max(fig.get_figwidth(), drawn.x1) + 0.05, drawn.y1 + 0.08]]
    )


def save(fig: Figure, path_stem: Path) -> list[Path]:
    """Write ``path_stem``.png and .svg, and clear the figure. Raises OSError where the folder cannot be written.

    The same figure gives the same bytes: no date, no version, no random ids.
    """
    path_stem = Path(path_stem)
    path_stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [path_stem.with_name(f"{path_stem.name}.{suffix}") for suffix in ("png", "svg")]
    _freeze_layout(fig)
    bounds = _bounds(fig)
    with matplotlib.rc_context({"svg.hashsalt": path_stem.name}):
        fig.savefig(paths[0], dpi=DPI, bbox_inches=bounds, metadata={"Software": None})
        fig.savefig(paths[1], bbox_inches=bounds, metadata={"Date": None, "Creator": None})
    fig.clear()
    return paths
