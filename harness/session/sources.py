"""Hashes of the files that a run's cells depend on, so that a resumed run never mixes versions of code or traces.

The commit is not enough: a file of --variants or a new kernel is untracked, a modified one is only "dirty", a trace may
be anywhere. Of installed packages, the files are checked that variants name in ``requires``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config.work_items import Cells
from harness.contract import COMPILER, GPU, Variant
from harness.discover import FOLDERS, ROOT, UPSTREAM, Catalog
from harness.packages import DIGITS, file_hash, files_of
from harness.records.schema import RecordError
from harness.wording import printable

#: The engine as one entry; a path of a file cannot end so.
ENGINE = "harness/"
_SUFFIXES = (".py", ".cu", ".cuh")
#: How a file of an operator's folder names another folder: an import, or an include of CUDA.
_OTHER_FOLDER = re.compile(rf'\b(?:{"|".join(FOLDERS)})\.(\w+)|#include "(\w+)/')


def source_hashes(items: Sequence[Cells], catalog: Catalog, variant_files: Iterable[str]) -> dict[str, str]:
    """File -> hash: of the engine, the folders of the operators and of those they import, the files of ``--variants``,
    the sources of the variants, the files of packages that they require, and every file that an axis names, such as a
    trace. Paths inside the repository are relative to it. Raises RecordError for a file that cannot be read.
    """
    files = dict.fromkeys(_files(_closure({item.operator for item in items})))
    files |= dict.fromkeys(Path(file) for file in variant_files)
    variants = catalog.variants_of(items)
    files |= dict.fromkeys(_upstream(variants))
    files |= dict.fromkeys(source for variant in variants for source in variant.sources)
    texts = {text for item in items for text in _texts(list(item.axes.values()))}
    files |= dict.fromkeys(Path(text) for text in sorted(texts) if _is_file(text))
    engine = hashlib.sha256("".join(_hash(path) for path in _code(ROOT / "harness")).encode()).hexdigest()[:DIGITS]
    of_packages = files_of(package_needs(variants))
    return (
        {ENGINE: engine} | {_name(path): _hash(path) for path in files} | {n: _hash(p) for n, p in of_packages.items()}
    )


def package_needs(variants: Iterable[Variant]) -> list[str]:
    """What they require of packages."""
    return [need for variant in variants for need in variant.requires if need not in (GPU, COMPILER)]


def _closure(operators: Collection[str]) -> list[str]:
    """Names of operator folders, with those that they import or include; ``workloads`` is one of them."""
    closure, pending = set(), set(operators)
    while pending:
        folder = pending.pop()
        closure.add(folder)
        for path in _files([folder]):
            text = path.read_text(encoding="utf-8", errors="replace")
            pending |= {name for names in _OTHER_FOLDER.findall(text) for name in names if name} - closure
    return sorted(closure)


def _upstream(variants: Sequence[Variant]) -> list[Path]:
    """All of upstream/ where a variant of it is in the run: its files share what starts with an underscore."""
    used = any(variant.is_upstream for variant in variants)
    return _code(ROOT / UPSTREAM) if used else []


def _files(folders: Iterable[str]) -> list[Path]:
    return [path for name in folders for folder in FOLDERS for path in _code(ROOT / folder / name)]


def _code(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())


def _texts(value: Any) -> Iterator[str]:
    """Every text inside a value of an axis."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or with a null
        return False


def _name(path: Path) -> str:
    return printable(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path))


def _hash(path: Path) -> str:
    try:
        return file_hash(path)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None
