"""Which variants of a record are made of other code today."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from spec_decode_bench.harness.dependencies import DIGITS, dependencies, file_hash, variant_files
from spec_decode_bench.harness.import_by_content import ROOT
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.schema import Header, Run

#: Where the code of kernels lies.
KERNELS = ("kernels", "upstream")
#: More names of changed variants are not written out.
MOST_NAMES = 4


@cache
def files_of_variants() -> dict[str, Path]:
    """Id of a variant of the suite -> the file that defines it, relative to the suite."""
    return {name: path.relative_to(ROOT) for name, path in variant_files(ROOT).items()}


@cache
def code_of_variants() -> dict[str, dict[str, set[str]]]:
    """Id of a variant -> the files that make it, by name -> their hashes: of a kernel with those of its package, of
    PyTorch operators the file itself.
    """
    code = {}
    for name, own in files_of_variants().items():
        made_of = dependencies([own], ROOT, KERNELS) if own.parts[0] in KERNELS else {ROOT / own}
        code[name] = {str(path.relative_to(ROOT)): {file_hash(path)} | _without_import_name(path) for path in made_of}
    return code


@cache
def _without_import_name(path: Path) -> set[str]:
    """Hashes that a file had before the suite had one import name, which changes no code: of its text with imports
    wrapped as they are, and with those that fit on one line.
    """

    def joined(wrapped: re.Match[str]) -> str:
        line = f"from {wrapped[1]} import {' '.join(wrapped[2].split()).removesuffix(',')}\n"
        return line if len(line) <= 121 else wrapped[0]

    text = path.read_text(encoding="utf-8").replace("spec_decode_bench.", "")
    texts = text, re.sub(r"^from (\S+) import \(\n([^)]*)\)\n", joined, text, flags=re.MULTILINE)
    return {hashlib.sha256(text.encode()).hexdigest()[:DIGITS] for text in texts}


def timed_variants(run: Run) -> Iterator[tuple[Header, str]]:
    """(header, variant id) of what a run holds times of; of other lines than cells, of all its variants."""
    timed = run.header.variants if run.others else (cell.variant_id for cell in run.in_order if cell.metrics)
    yield from ((run.header, name) for name in dict.fromkeys(timed))


def code_changes(shown: Iterable[tuple[Header, str]]) -> list[str]:
    """A sentence for each GPU model whose times are of code that has changed since. Variants that the suite does not
    have are left out.

    shown: (of the record or the profile, variant id).
    """
    by_gpu: dict[str, list[tuple[Header, str]]] = {}
    for header, name in shown:
        if name in files_of_variants():
            by_gpu.setdefault(header.environment.gpu or "CPU", []).append((header, name))
    sentences = []
    for gpu, of_gpu in by_gpu.items():
        records, variants = {header.name for header, _ in of_gpu}, {name for _, name in of_gpu}
        if names := list(dict.fromkeys(name for header, name in of_gpu if _has_changed(header.sources, name))):
            verb, these = "has" if len(names) == 1 else "have", "this record" if len(records) == 1 else "these records"
            which = f": {', '.join(names)}" if len(names) <= MOST_NAMES else ""
            where = f"{gpu}: " if len(by_gpu) > 1 else ""
            sentences.append(
                f"{where}{len(names)} of {counted(len(variants), 'variant')} {verb} changed since {these}{which}"
            )
    return sentences


def _has_changed(sources: dict[str, str], variant_id: str) -> bool:
    return any(sources.get(name) not in hashes for name, hashes in code_of_variants()[variant_id].items())
