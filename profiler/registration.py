"""What this room adds: doctor's lines about profilers, and timelines of profiles to ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spec_decode_bench.harness import registry

if TYPE_CHECKING:
    from rich.console import Console

    from spec_decode_bench.profiler.records import Profile


def print_profilers(console: Console, device: str) -> None:
    from spec_decode_bench.profiler.tools import print_tools

    print_tools(console, device)


def drawer_of(path: Path) -> registry.Drawer | None:
    """Of a profile.json, or of the one in a folder. Raises RecordError."""
    from spec_decode_bench.profiler.records import PROFILE, Profile, read_document

    place = path / PROFILE if path.is_dir() else path
    return partial(_draw, read_document(place, Profile)) if place.name == PROFILE and place.is_file() else None


def _draw(profile: Profile, folder: Path, number: str) -> Sequence[Path]:
    from spec_decode_bench.profiler.plots.step_timeline import TIMELINE, draw

    return draw(profile, folder / f"{TIMELINE}{number}")


registry.DOCTOR.append(print_profilers)
registry.DRAWERS.append(drawer_of)
