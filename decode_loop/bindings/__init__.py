"""How each operator takes part in a decode loop: a ``BINDING`` for each, and those of files of --variants."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from spec_decode_bench.decode_loop.engine_state import LoopBinding

if TYPE_CHECKING:
    from spec_decode_bench.harness.discover import Catalog


def bindings_of(catalog: Catalog) -> dict[str, LoopBinding]:
    """Operator -> its binding."""
    modules = [import_module(f"{__name__}.{path.stem}") for path in sorted(Path(__file__).parent.glob("[!_]*.py"))]
    own = [value for module in modules for value in vars(module).values() if isinstance(value, LoopBinding)]
    return {binding.operator: binding for binding in (*own, *catalog.collected.get(LoopBinding, ()))}
