"""`bench.py gate --upstream PACKAGE`: the sides differ in the files of a package, such as vLLM, not in the suite."""

from __future__ import annotations

import argparse
import os
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from harness.cli.planning import prepare
from harness.config.load import ConfigError
from harness.session.sources import package_needs
from harness.session.upstream_files import Side, take
from harness.wording import did_you_mean, project

#: In the folder of a gate: a folder for each side, first on the Python path of its processes.
FOLDER = "upstream"


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides of the package."""

    package: str
    base: Side
    head: Side

    @property
    def changed(self) -> set[str]:
        """Names, as in ``requires=``, of the files that differ."""
        base, head = self.base.files, self.head.files
        return {name for name in base | head if base.get(name) != head.get(name)}

    def name(self, side: str) -> str:
        """``vLLM 1a2b3c4``."""
        return f"{project(self.package)} {getattr(self, side)}"


def sides_of(options: argparse.Namespace, folder: Path) -> Upstream:
    """Takes the files of both sides into the folder of a gate, where they stay if they differ. Raises ConfigError."""
    package, checkout = options.upstream, options.checkout
    if options.head is None and checkout is None:
        raise ConfigError("gate --upstream needs --head: a checkout, a wheel, or a revision of --checkout PATH")
    specs = {"base": options.base, "head": options.head or str(checkout)}
    _, catalog = prepare(options)
    needs = package_needs(catalog.variants)
    packages = {one.partition(":")[0].partition(".")[0] for need in needs for one in need.split("|")}
    if package not in packages:
        raise ConfigError(f"--upstream {package}: no variant requires it{did_you_mean(package, sorted(packages))}")
    upstream = None
    try:
        sides = {
            side: take(f"--{side}", spec, checkout, package, needs, folder / FOLDER / side)
            for side, spec in specs.items()
        }
        upstream = Upstream(package=package, **sides)
        return upstream
    finally:
        if upstream is None or not upstream.changed:
            shutil.rmtree(folder / FOLDER, ignore_errors=True)
            with suppress(OSError):  # there is more in it
                folder.rmdir()


def python_path(folder: Path, side: str) -> str:
    """Of a process of a side."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str((folder / FOLDER / side).resolve()), *([given] if given else [])])
