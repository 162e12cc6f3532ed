"""The import name of this suite, in a clone as installed: ``from spec_decode_bench import variant``.

Its packages are the folders beside this file (installed, those of the folder spec_decode_bench), so that none of them
takes a top-level name of its own beside an engine.
"""

from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
__path__ = [str(_HERE if (_HERE / "harness").is_dir() else _HERE / "spec_decode_bench")]


def __getattr__(name: str) -> Any:
    """``variant``, whose module a command that only prints help does not load."""
    if name == "variant":
        from spec_decode_bench.harness.contract import variant

        return variant
    raise AttributeError(f"module 'spec_decode_bench' has no attribute {name!r}")
