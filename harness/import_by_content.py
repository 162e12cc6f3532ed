"""Imports of this suite go by the content of a source. Python takes cached bytecode for current if the source has the
time stamp, in whole seconds, and the size that it had: after a quick edit the code that runs would not be the code that
is hashed, and --resume and --trust would mix versions.
"""

from __future__ import annotations

import sys
import zlib
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: The import name of this suite.
SUITE = "spec_decode_bench"
#: Its folders of code: operators and their variants; what runs in workers; what plans, reports and draws.
OPERATORS = ("baselines", "kernels", "upstream")
IN_WORKERS = ("harness", "decode_loop")
PACKAGES = (*OPERATORS, *IN_WORKERS, "cli", "engine_plugin", "plots", "profiler", "regression")


class ContentLoader(SourceFileLoader):
    """Keeps bytecode as Python does, with a checksum of the source in place of its time stamp."""

    def path_stats(self, path: str) -> dict[str, Any]:
        content = self.get_data(path)
        return {"mtime": zlib.crc32(content), "size": len(content)}


def install() -> None:
    """For all that is imported from the packages of this checkout from now on."""
    folders = tuple(f"{ROOT / package}/" for package in PACKAGES)

    def finder(path: str) -> FileFinder:
        if not f"{path}/".startswith(folders):
            raise ImportError
        return FileFinder(path, (ContentLoader, [".py"]))

    sys.path_hooks.insert(0, finder)
    for path in [path for path in sys.path_importer_cache if f"{path}/".startswith(folders)]:
        del sys.path_importer_cache[path]
