"""Remembered proofs: a variant that passed its edge cases and sequences need not run them again for the same code on
the same kind of machine, nor be audited again at a point where it was. The timed point is checked in every run.

The proofs of a variant are a small file in ``$BENCH_PROOF_CACHE`` (default ``spec-decode-bench-proofs`` beside the
folder of the cubins, harness/cuda.py; ``off`` for none). Its name is a hash of all that they depend on, by content: the
files of variant, operator and checker with what they import and include, those of wrapped packages, seed, GPU model and
versions.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.dependencies import (
    DIGITS,
    closure_hashes,
    engine,
    file_hash,
    foreign_imports,
    named_in,
)
from spec_decode_bench.harness.discover import ROOT, Catalog
from spec_decode_bench.harness.import_by_content import IN_WORKERS, SUITE
from spec_decode_bench.harness.packages import files_of, folder_of
from spec_decode_bench.harness.records.schema import Audit, Environment, Proof
from spec_decode_bench.harness.session.sources import package_needs

#: Environment variable: the folder of the proofs, or "off".
FOLDER = "BENCH_PROOF_CACHE"
#: What a proof depends on of the machine, by fields of Environment.
MACHINE = (
    *("device", "processor", "python", "torch", "triton", "cuda_core", "nvrtc", "compiler_settings"),
    *("gpu", "sm", "sm_count", "memory_bytes", "driver", "cuda", "packages"),
)
#: Triton takes kernels from a folder, whose files are not hashed, if this is set.
OVERRIDE = "TRITON_KERNEL_OVERRIDE"
#: Packages whose version is part of every proof. A variant that imports another one is never remembered, unless its
#: ``requires=`` names it.
VERSIONED = ("torch", "triton", "numpy", "cuda")


class Remembered(msgspec.Struct, frozen=True):
    """Of one variant. audits: ``audit_key`` -> audit."""

    proof: Proof
    audits: dict[str, Audit] = {}


class _Entry(msgspec.Struct, frozen=True):
    """A file. checksum: of key and proofs."""

    key: str
    remembered: Remembered
    checksum: str


def audit_key(axes: Mapping[str, Any], cache: str) -> str:
    """What an audit depends on beside the variant."""
    return f"{cache} {json.dumps(axes, sort_keys=True)}"


def code_of(variants: Iterable[Variant], catalog: Catalog) -> dict[str, str]:
    """Id -> hash of all files that the verification of a variant depends on; without those for which this is not
    known.
    """
    of_all = sorted(closure_hashes(ROOT, engine(ROOT)).items())
    sources = {variant.id: _sources(variant, catalog) for variant in variants}
    return {name: _hash([of_all, sorted(files.items())]) for name, files in sources.items() if files is not None}


def read_engine() -> None:
    """Read which files the engine consists of, which are remembered, while there is time."""
    closure_hashes(ROOT, engine(ROOT))


def keys_of(code: Mapping[str, str], environment: Environment, seed: int | None) -> dict[str, str]:
    """Id -> hash of all that the verification of a variant depends on.

    code: of ``code_of``. seed: of the configuration, None where every run draws its own.
    """
    if OVERRIDE in environment.compiler_settings:
        return {}
    machine = machine_hash(environment)
    return {name: _hash([name, seed, machine, files]) for name, files in code.items()}


def machine_hash(environment: Environment) -> str:
    """Equal for machines whose proofs count for each other."""
    values = {name: getattr(environment, name) for name in MACHINE} | {"numpy": importlib.metadata.version("numpy")}
    return _hash(sorted(values.items()))


def _sources(variant: Variant, catalog: Catalog) -> Mapping[str, str | None] | None:
    """File -> hash; None for a variant that imports what has no hash and no version here."""
    needs = package_needs([variant])
    defined = {variant.setup.__code__.co_filename, getattr(sys.modules.get(variant.origin), "__file__", None)}
    operator = catalog.operators[variant.operator].defined.rpartition(":")[0]
    files = [Path(name).resolve() for name in (*defined, operator) if name] + list(variant.sources)
    hashes = closure_hashes(ROOT, files)
    wrapped = {one.partition(":")[0].partition(".")[0] for need in needs for one in need.split("|")}
    own = [ROOT / name for name in hashes if name.partition("/")[0] not in IN_WORKERS]
    if foreign_imports(own, (SUITE,)) - {*VERSIONED, *wrapped}:
        return None
    return hashes | _wrapped_files(files_of(needs))


def _wrapped_files(files: Mapping[str, Path]) -> dict[str, str]:
    """Hashes of an engine's files, and of those of the same package that they import themselves.

    files: as ``files_of`` has them. What is imported further down is known by the package's version alone.
    """
    hashes = {name: file_hash(path) for name, path in files.items()}
    for name, path in files.items():
        root = folder_of(name, path).parent
        for imported in named_in(path, root, (name.partition(":")[0],)):
            hashes[str(imported.relative_to(root))] = file_hash(imported)
    return hashes


def load(keys: Mapping[str, str]) -> dict[str, Remembered]:
    """Id -> proofs, of the keys that are remembered. A file that is damaged counts as missing."""
    folder, found = _folder(), {}
    for variant, key in keys.items() if folder is not None else ():
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            entry = msgspec.json.decode((folder / key).with_suffix(".json").read_bytes(), type=_Entry)
            if entry.key == entry.remembered.proof.key == key and entry.checksum == _hash([key, entry.remembered]):
                found[variant] = entry.remembered
    return found


def store(remembered: Remembered) -> None:
    """Remember that a variant passed, and was audited. What other runs audited is kept. A full disk or a read-only
    home only costs time.
    """
    folder, key = _folder(), remembered.proof.key
    if folder is None:
        return
    if earlier := load({"": key}):
        remembered = Remembered(remembered.proof, earlier[""].audits | remembered.audits)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(msgspec.json.encode(_Entry(key, remembered, _hash([key, remembered]))))
        os.replace(file.name, (folder / key).with_suffix(".json"))


def forget(key: str) -> None:
    """A variant that failed is verified in full the next time."""
    if (folder := _folder()) is not None:
        with suppress(OSError):
            (folder / key).with_suffix(".json").unlink()


def usable() -> bool:
    """Whether a proof that is stored now will be found again."""
    folder = _folder()
    if folder is None:
        return False
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK)
    return False


def _folder() -> Path | None:
    """None where proofs are switched off, or there is no home."""
    if (given := os.environ.get(FOLDER)) is not None:
        return None if given.lower() == "off" else Path(given)
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spec-decode-bench-proofs"
    return None


def _hash(value: object) -> str:
    # json, as a file's name may hold bytes that are no UTF-8.
    return hashlib.sha256(json.dumps(msgspec.to_builtins(value)).encode()).hexdigest()[: 2 * DIGITS]
