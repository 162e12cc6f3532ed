"""What a worker plans itself with files of --variants that it has imported, and which files stand behind them."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from spec_decode_bench.harness.config.captured import left_out
from spec_decode_bench.harness.config.sweep import plan
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.dependencies import closure_hashes, dependencies, file_hash
from spec_decode_bench.harness.discover import ROOT, Catalog
from spec_decode_bench.harness.import_by_content import OPERATORS, SUITE
from spec_decode_bench.harness.packages import files_of
from spec_decode_bench.harness.session.messages import Loaded, Sweep
from spec_decode_bench.harness.session.sources import package_needs, source_hashes

#: Where others' packages lie.
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def loaded(sweep: Sweep, catalog: Catalog, files: Sequence[str]) -> Loaded:
    """Raises ConfigError, DiscoveryError and RecordError."""
    catalog.refuse_broken(sweep.source.config.operators)
    items = plan(sweep.source, catalog.operators, catalog.variants, sweep.only)
    catalog.refuse_wrong(items)
    variants, own = catalog.variants_of(items), {str(Path(file).resolve()) for file in files}
    return Loaded(
        own=[v.id for v in variants if str(Path(v.setup.__code__.co_filename).resolve()) in own],
        items=items,
        sources=source_hashes(items, catalog, files),
        code={variant.id: _code_of(variant, catalog) for variant in variants},
        warnings=[*catalog.complaints, *left_out(sweep.source, catalog.operators)],
    )


def _code_of(variant: Variant, catalog: Catalog) -> str:
    """A hash of the files that define variant and operator, with what they import and include, and of those of packages
    that it requires.
    """
    defined = {variant.setup.__code__.co_filename, getattr(sys.modules.get(variant.origin), "__file__", None)}
    operator = catalog.operators[variant.operator].defined.rpartition(":")[0]
    files = [Path(name).resolve() for name in (*defined, operator) if name] + list(variant.sources)
    hashes = closure_hashes(ROOT, files) | {
        name: file_hash(path) for name, path in files_of(package_needs([variant])).items()
    }
    return hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest()


def files_behind(files: Iterable[str], modules: Iterable[str]) -> list[str]:
    """The files, what they import, include and name, and those of the modules that an import loaded; without installed
    packages.
    """
    found = {getattr(sys.modules.get(name), "__file__", None) for name in modules if not name.startswith(f"{SUITE}.")}
    own = {Path(name).resolve() for name in filter(None, found) if not name.startswith(_INSTALLED)}
    behind = dependencies([Path(file).resolve() for file in files] + sorted(own), ROOT, OPERATORS)
    return sorted(map(str, behind))
