"""How this program was called."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

#: The command that `pip install .` adds.
INSTALLED = "spec-decode-bench"


def program() -> list[str]:
    """The words that this program was called by: those of a clone, or the installed command."""
    if Path(sys.argv[0]).stem == INSTALLED:
        return [INSTALLED if shutil.which(INSTALLED) else sys.argv[0]]
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return words if Path(words[-1]).name == "bench.py" else ["python", "bench.py"]
