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
    """Distribution -> version, of those that are there; several versions where files of several releases are found. A
    fork that installs a package under its name goes by its own, as ``sgl-flash-mla`` for ``flash_mla``. A copy inside
    another package, which has no metadata, is named by its folder and gives the ``__version__`` of its ``__init__.py``.
    """
    found: dict[str, list[str]] = {}
    for one in (one for need in needs for one in need.split("|") if _is_one_there(one)):
        package, _, inner = one.partition(":")
        top = package.partition(".")[0]
        path = file_in(package, inner.partition("#")[0]) if inner else None
        name, version = _distribution(top, path)
        found.setdefault(name, []).append(version or _written_version(file_in(package, "__init__.py")))
        if inner.endswith("/__init__.py") and (written := _written_version(path)):
            found.setdefault(f"{package}/{inner.removesuffix('/__init__.py')}", []).append(written)
    return {name: " and ".join(dict.fromkeys(filter(None, all_))) or "unknown" for name, all_ in found.items()}


def _distribution(top: str, path: Path | None) -> tuple[str, str | None]:
    """Name and version of what installed a top-level package: what lies beside the folder that holds ``path``, or what
    has the package's name.
    """
    spec = importlib.util.find_spec(top)
    folders = [Path(one) for one in (spec.submodule_search_locations if spec is not None else None) or ()]
    folder = next((one for one in folders if path is None or path.is_relative_to(one)), None)
    for one in importlib.metadata.distributions(path=[str(folder.parent)] if folder is not None else []):
        if one.name is None:  # what an interrupted removal left of one
            continue
        if top == one.name.replace("-", "_"):
            return top, one.version
        if top in (one.read_text("top_level.txt") or "").split():
            return one.name, one.version
    try:
        return top, importlib.metadata.version(top)  # installed in place
    except importlib.metadata.PackageNotFoundError:
        return top, None


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
