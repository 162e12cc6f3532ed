"""What a worker plans itself with files of --variants that it has imported, and which files stand behind them."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from spec_decode_bench.harness.config.captured import left_out
from spec_decode_bench.harness.config.sweep import plan
from spec_decode_bench.harness.dependencies import dependencies
from spec_decode_bench.harness.discover import ROOT, Catalog
from spec_decode_bench.harness.import_by_content import OPERATORS, SUITE
from spec_decode_bench.harness.session import proofs
from spec_decode_bench.harness.session.messages import Loaded, Sweep
from spec_decode_bench.harness.session.sources import source_hashes

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
        code=proofs.code_of(variants, catalog),
        warnings=[*catalog.complaints, *left_out(sweep.source, catalog.operators)],
    )


def files_behind(files: Iterable[str], modules: Iterable[str]) -> list[str]:
    """The files, what they import, include and name, and those of the modules that an import loaded; without installed
    packages.
    """
    found = {getattr(sys.modules.get(name), "__file__", None) for name in modules if not name.startswith(f"{SUITE}.")}
    own = {Path(name).resolve() for name in filter(None, found) if not name.startswith(_INSTALLED)}
    behind = dependencies([Path(file).resolve() for file in files] + sorted(own), ROOT, OPERATORS)
    return sorted(map(str, behind))
