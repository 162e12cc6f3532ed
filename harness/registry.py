"""What rooms add to the instrument, which knows none of them by name.

A room registers on import of its module ``registration``. bench.py imports those of all rooms before a command runs,
and a job carries their names to worker processes, on other machines too. Every registration is light: no torch, and
whatever is slow to load is imported in the function that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

#: Modules that registered something, by name.
MODULES: list[str] = []
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
