"""Hashes of the files that a run's cells depend on, so that a resumed run never mixes versions of code or traces.

The commit is not enough: a file of --variants or a new kernel is untracked, a modified one is only "dirty", a trace may
be anywhere. Of installed packages, the files are checked that variants name in ``requires``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spec_decode_bench.harness.config.captured import path_of
from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.contract import CAPTURE, COMPILER, GPU, Variant
from spec_decode_bench.harness.dependencies import DIGITS, dependencies, file_hash
from spec_decode_bench.harness.discover import FOLDERS, ROOT, UPSTREAM, Catalog
from spec_decode_bench.harness.import_by_content import IN_WORKERS, OPERATORS
from spec_decode_bench.harness.packages import files_of
from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.records.schema import RecordError

#: All that runs in workers, as one entry; a path of a file cannot end so.
ENGINE = "harness/"
_SUFFIXES = (".py", ".cu", ".cuh")


def source_hashes(items: Sequence[Task], catalog: Catalog, variant_files: Iterable[str]) -> dict[str, str]:
    """File -> hash: of the engine, the folders of the operators, the files of ``--variants`` and the sources of the
    variants with all that they import or include, the files of packages that they require, and every file that an axis
    names, such as a trace. Paths inside the repository are relative to it. Raises RecordError for a file that cannot be
    read.
    """
    variants = catalog.variants_of(items)
    begin = [*_files({item.operator for item in items}), *_upstream(variants)]
    begin += [source for variant in variants for source in variant.sources]
    extra = {Path(file).resolve(): Path(file) for file in variant_files}
    closure = dependencies([*begin, *extra], ROOT, OPERATORS)
    files = dict.fromkeys(sorted(extra.get(path, path) for path in closure))
    texts = {text for item in items for text in _texts(list(item.axes.values()))}
    files |= dict.fromkeys(Path(text) for text in sorted(texts) if _is_file(text))
    files |= dict.fromkeys(path_of(item.axes[CAPTURE]["file"]) for item in items if CAPTURE in item.axes)
    code = [path for folder in IN_WORKERS for path in _code(ROOT / folder)]
    engine = hashlib.sha256("".join(map(_hash, code)).encode()).hexdigest()[:DIGITS]
    named = {_name(path): path for path in files} | files_of(package_needs(variants))
    return {ENGINE: engine} | {name: _hash(path) for name, path in named.items()}


def package_needs(variants: Iterable[Variant]) -> list[str]:
    """What they require of packages."""
    return [need for variant in variants for need in variant.requires if need not in (GPU, COMPILER)]


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
