"""Figures of recorded runs, one per module: ``figure(runs)``, None where the runs hold nothing to draw. They read
records only and never import torch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from spec_decode_bench.harness import registry

if TYPE_CHECKING:
    from spec_decode_bench.harness.records.schema import Run

os.environ["MPLBACKEND"] = "agg"  # figures go into files only, and matplotlib refuses to load with an unknown one

#: The figures of a set of runs, beside those that rooms register for their lines.
FIGURES = tuple(
    f"spec_decode_bench.plots.{name}"
    for name in ("latency", "speedup", "roofline", "itl_tpot", "generations", "calibration")
)
#: Those that can draw several GPUs in one panel.
BY_GPU = ("latency", "itl_tpot")
#: A copy of this process has the records, and matplotlib.
_FORK = multiprocessing.get_context("fork")


def draw_all(
    runs: Sequence[Run],
    folder: Path,
    by: str = "panel",
    figures: Sequence[str] | None = None,
    beside: Sequence[Run] = (),
) -> list[Path]:
    """Draw figures into ``folder``; the paths of the files written.

    figures: names of some; None for all.
    by:     "panel" draws each GPU in panels of its own, "gpu" in a colour of its own in the figures of BY_GPU.
    beside: recorded runs to draw in panels of their own, in the figures for which ``runs`` hold something.
    """
    return begin_drawing(runs, folder, by, figures, beside)()


def begin_drawing(
    runs: Sequence[Run],
    folder: Path,
    by: str = "panel",
    figures: Sequence[str] | None = None,
    beside: Sequence[Run] = (),
) -> Callable[[], list[Path]]:
    """Begin to draw each figure in a process of its own; what is returned waits for them. As ``draw_all``."""
    from spec_decode_bench.plots import _style  # noqa: F401  # loaded once, for all processes

    sections = {section.key: section for run in runs if (section := registry.section_of(run))}
    modules = (*FIGURES, *(figure for section in sections.values() for figure in section.figures))
    chosen = [path for path in modules if figures is None or path.rpartition(".")[2] in figures]
    tasks = [partial(_draw, path, runs, Path(folder), by, beside) for path in chosen]
    begun = list(map(_begin, tasks))
    return lambda: [path for task, sent in zip(tasks, begun, strict=True) for path in _ended(task, sent)]


def _draw(path: str, runs: Sequence[Run], folder: Path, by: str, beside: Sequence[Run]) -> list[Path]:
    """Draw the figure of a module; the paths of the files written."""
    from spec_decode_bench.plots._style import name_recorded, save

    name = path.rpartition(".")[2]
    module, options = import_module(path), {"by": by} if name in BY_GPU else {}
    drawn = module.figure(runs, **options)
    if drawn and beside:
        drawn = module.figure([*runs, *beside], **options)
        name_recorded(drawn, beside)
    return save(drawn, folder / name) if drawn else []


def _begin(task: Callable[[], list[Path]]) -> Connection | None:
    """Where the paths of the task come from, which a process does; None where the system starts none."""
    paths, end = _FORK.Pipe(duplex=False)
    try:
        _FORK.Process(target=_send, args=(task, end), daemon=True).start()
    except OSError:
        return None
    finally:
        end.close()
    return paths


def _send(task: Callable[[], list[Path]], end: Connection) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # only the command says that it was interrupted
    with suppress(Exception):
        end.send(task())


def _ended(task: Callable[[], list[Path]], paths: Connection | None) -> list[Path]:
    """The paths of a task. What its process could not draw is drawn here, which raises what it raised."""
    if paths is not None:
        with paths, suppress(EOFError):
            return paths.recv()
    return task()
