"""Packages of engines that variants wrap: whether they are there, and which version. Looks without importing them,
since an engine takes seconds to import and changes the process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path


def file_in(package: str, inner: str) -> Path | None:
    """``inner`` in the folder of a top-level package, such as ``v1/worker/mamba_utils.py``; None where it is missing.

    The package may be a folder with a few files of a wheel, without its ``__init__.py``.
    """
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () if (path := Path(folder) / inner).is_file()), None)


def is_there(need: str) -> bool:
    """Whether one of the alternatives is there, such as ``deep_gemm|vllm:third_party/deep_gemm/__init__.py``. A text
    that the file must hold may follow: ``vllm:v1/worker/mamba_utils.py#a_kernel``.
    """
    return any(_is_one_there(one) for one in need.split("|"))


def in_words(need: str) -> str:
    """``the Python module deep_gemm or the file vllm/third_party/deep_gemm/__init__.py``."""
    parts = (one.partition(":") for one in need.split("|"))
    return " or ".join(
        f"the file {name}/{inner.replace('#', ' with ')}" if inner else f"the Python module {name}"
        for name, _, inner in parts
    )


def versions(needs: list[str]) -> dict[str, str]:
    """Distribution -> version, of those that are there: the package, or what installs it under its own name, as
    ``sgl-flash-mla`` does with ``flash_mla``. A copy inside another package, which has no metadata of its own, is
    named by its folder and gives the ``__version__`` of its ``__init__.py``.
    """
    found = {}
    distributions = importlib.metadata.packages_distributions() if needs else {}
    for one in (one for need in needs for one in need.split("|") if _is_one_there(one)):
        package, _, inner = one.partition(":")
        name = package.partition(".")[0]
        distribution = distributions.get(name, [name])[0]
        try:
            found[package if distribution == name else distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found[package] = _written_version(file_in(package, "__init__.py")) or "unknown"
        if inner.endswith("/__init__.py") and (written := _written_version(file_in(package, inner))):
            found[f"{package}/{inner.removesuffix('/__init__.py')}"] = written
    return found


def _is_one_there(one: str) -> bool:
    name, _, inner = one.partition(":")
    if inner:
        file, _, text = inner.partition("#")
        path = file_in(name, file)
        return path is not None and (not text or text in path.read_text(encoding="utf-8", errors="replace"))
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package of a submodule is missing
        return False


def _written_version(path: Path | None) -> str | None:
    text = path.read_text(encoding="utf-8", errors="replace") if path is not None else ""
    written = re.search(r"""^__version__ = ['"]([^'"]+)['"]""", text, re.MULTILINE)
    return written[1] if written else None
