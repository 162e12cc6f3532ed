"""What rooms add to the instrument, which knows none of them by name.

A room registers on import of its module ``registration``. That of a room with a section is imported once a
configuration or a record has the section (``ROOMS``), and a job carries its name to worker processes, on other machines
too. No registration imports torch; what is slow to load is imported in the function that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from spec_decode_bench.harness.config.load import LoadedConfig, Located
    from spec_decode_bench.harness.config.work_items import Planned, Task
    from spec_decode_bench.harness.discover import Catalog
    from spec_decode_bench.harness.records.schema import Outcome, Run
    from spec_decode_bench.harness.report.table import Table


@dataclass(frozen=True)
class Section:
    """A section of a configuration that says what to measure instead of a sweep.

    key, schema: of the section; help: what it is, in a line.
    noun:        what one work item is called, such as "loop".
    item, line:  kind of its work items, which a session runs, and of their lines in a record.
    check:       (file, configuration as plain values): raises ConfigError where the section cannot stand so.
    plan:        (source, catalog, globs of --only) -> work items. Raises ConfigError.
    points:      (work items, catalog) -> the points of operators that they depend on.
    figures:     modules of figures that ``plot`` and ``run`` draw of its lines.
    without_gpu: the source cut to what a CPU runs of it in seconds.
    show:        prints the results of one run or several; returns the tables of its table.md.
    """

    key: str
    schema: type
    help: str
    noun: str
    item: type
    line: type[Outcome]
    check: Callable[[Located, Mapping[str, Any]], None]
    plan: Callable[[LoadedConfig, Catalog, Sequence[str]], list[Planned]]
    points: Callable[[Sequence[Any], Catalog], list[Task]]
    figures: Sequence[str]
    without_gpu: Callable[[LoadedConfig], LoadedConfig]
    show: Callable[[Console, Sequence[Run]], list[Table]]


#: Modules that registered something, by name.
MODULES: list[str] = []
#: Key of a section -> the module that registers it.
ROOMS: dict[str, str] = {}
#: Key of a section -> what a room does with it, of the modules that are imported.
SECTIONS: dict[str, Section] = {}
#: Types of objects that are collected from the files of operators and variants (``Catalog.collected``).
COLLECTED: list[type] = []
#: Lines that doctor prints: (console, device) -> None.
DOCTOR: list[Callable[[Any, str], None]] = []
#: Draws a file that is no record: (folder, number of the picture, "" for the only one) -> files written.
Drawer = Callable[[Path, str], Sequence[Path]]
#: What ``plot`` draws beside records: path of a file or folder -> what draws it, None for another one.
DRAWERS: list[Callable[[Path], Drawer | None]] = []


def load(modules: Sequence[str]) -> None:
    """Import modules that register something, each once."""
    for name in modules:
        if name not in MODULES:
            MODULES.append(name)
            import_module(name)


def section(key: str) -> Section:
    """Of a key in ROOMS."""
    load([ROOMS[key]])
    return SECTIONS[key]


def section_of(run: Run) -> Section | None:
    """What a record holds the lines of; None for a sweep."""
    kinds = {type(line) for line in run.others}
    return next((section for section in SECTIONS.values() if section.line in kinds), None)
