"""`bench.py gate --upstream PACKAGE`: the sides differ in the files of a package, such as vLLM, not in the suite."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.discover import Catalog
from spec_decode_bench.harness.errors import did_you_mean
from spec_decode_bench.harness.packages import changed, project
from spec_decode_bench.harness.records.schema import split_key
from spec_decode_bench.harness.session.sources import package_needs
from spec_decode_bench.regression.upstream_files import Side, take

#: In the folder of a gate: a folder for each side, first on the Python path of its processes.
FOLDER = "packages"


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides of the package. changed: ids of the variants that require a file which differs."""

    package: str
    base: Side
    head: Side
    changed: tuple[str, ...]

    def name(self, side: str) -> str:
        """``vLLM 1a2b3c4``."""
        return f"{project(self.package)} {getattr(self, side)}"

    def changed_cells(self, keys: Sequence[str]) -> list[str]:
        """The keys of the variants that changed."""
        return [key for key in keys if "/".join(split_key(key)[:2]) in self.changed]


def sides_of(options: argparse.Namespace, folder: Path, catalog: Catalog) -> Upstream:
    """Takes the files of both sides into the folder of a gate. Raises ConfigError."""
    package, checkout = options.upstream, options.checkout
    if options.head is None and checkout is None:
        raise ConfigError("gate --upstream needs --head: a checkout, a wheel, or a revision of --checkout PATH")
    specs = {"base": options.base, "head": options.head or str(checkout)}
    needs = package_needs(catalog.variants)
    packages = {one.partition(":")[0].partition(".")[0] for need in needs for one in need.split("|")}
    if package not in packages:
        raise ConfigError(f"--upstream {package}: no variant requires it{did_you_mean(package, sorted(packages))}")
    if (folder / FOLDER).exists():
        raise ConfigError(f"{folder / FOLDER} exists already; remove it, or choose another --out")
    try:
        base, head = (
            take(f"--{side}", spec, checkout, package, needs, folder / FOLDER / side) for side, spec in specs.items()
        )
    except ConfigError:
        discard(folder)
        raise
    files = {name for name in base.files | head.files if base.files.get(name) != head.files.get(name)}
    reached = {
        need
        for need in set(needs)
        for name in files
        if changed(need, name, *(folder / FOLDER / side / name.replace(":", "/") for side in specs))
    }
    variants = tuple(one.id for one in catalog.variants if not reached.isdisjoint(package_needs([one])))
    return Upstream(package=package, base=base, head=head, changed=variants)


def discard(folder: Path) -> None:
    """The files of both sides, of a gate that does not begin."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    with suppress(OSError):  # there is more in it
        folder.rmdir()


@contextmanager
def first_on_path(folder: Path, side: str) -> Iterator[None]:
    """The files of a side are where this process looks first."""
    entry = str(folder / FOLDER / side)
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(entry)


def python_path(folder: Path, side: str) -> str:
    """Of a process of a side."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str((folder / FOLDER / side).resolve()), *([given] if given else [])])
