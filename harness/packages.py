"""Packages of engines that variants wrap: whether they are there, and which version. Looks without importing them,
since an engine takes seconds to import and changes the process.
"""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from spec_decode_bench.harness.dependencies import DIGITS, LARGE_BYTES, file_hash
from spec_decode_bench.harness.git import git
from spec_decode_bench.harness.records.schema import Checkout

#: Beside files of a package that were taken out of a checkout or a wheel (``gate --upstream``): an Origin.
ORIGIN = "spec-decode-bench.json"
#: Python packages whose projects spell their name otherwise.
_PROJECTS = {"vllm": "vLLM", "sglang": "SGLang", "deep_gemm": "DeepGEMM", "flash_mla": "FlashMLA"}
#: Seconds of a git command.
_LIMIT_S = 60


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the files of a package come from. version: None where it is not known. checkout: None for a release."""

    version: str | None = None
    checkout: Checkout | None = None


def project(package: str) -> str:
    """The name of a package in a title: ``vLLM`` of ``vllm``."""
    return _PROJECTS.get(package, package)


def file_in(package: str, inner: str) -> Path | None:
    """``inner`` in the folder of a top-level package, such as ``v1/worker/mamba_utils.py``; None where it is missing.

    The package may be a folder with a few files of a wheel, without its ``__init__.py``.
    """
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () if (path := Path(folder) / inner).is_file()), None)


def is_there(need: str) -> bool:
    """Whether one of the alternatives is there, such as ``deep_gemm|vllm:third_party/deep_gemm/__init__.py``.

    The definitions of a Python file that a variant uses may follow, if it uses no others,
    ``vllm:v1/worker/mamba_utils.py::a_kernel,Class.method``, then a text that the file must hold: ``#ROWS``.
    """
    return any(_is_one_there(one) for one in need.split("|"))


def in_words(need: str) -> str:
    """``the Python module deep_gemm or the file vllm/third_party/deep_gemm/__init__.py``."""
    return " or ".join(map(_in_words, need.split("|")))


def _in_words(one: str) -> str:
    package, inner, definitions, text = _parts(one)
    if not inner:
        return f"the Python module {package}"
    wanted = text or ", ".join(definitions)
    return f"the file {package}/{inner}" + (f" with {wanted}" if wanted else "")


def _parts(one: str) -> tuple[str, str, list[str], str]:
    """Package, file, definitions and text of one alternative."""
    package, _, rest = one.partition(":")
    rest, _, text = rest.partition("#")
    inner, _, names = rest.partition("::")
    return package, inner, names.split(",") if names else [], text


def required(need: str, name: str) -> bool:
    """Whether a need such as ``vllm:_C.abi3.so|vllm:third_party/deep_gemm/__init__.py`` asks for the file of a package
    with a name such as ``vllm:_C.abi3.so``. It asks for all files in the folder of an ``__init__.py``, and of a module
    in that of its top-level package.
    """
    asked = [_asked(one) for one in need.split("|")]
    return any(name == one or (one.endswith((":", "/")) and name.startswith(one)) for one in asked)


def _asked(one: str) -> str:
    """The name of a file; of a folder with ``/`` or ``:`` at its end."""
    package, inner, *_ = _parts(one)
    return f"{package.partition('.')[0]}:{inner}".removesuffix("__init__.py")


def changed(need: str, name: str, base: Path, head: Path) -> bool:
    """Whether two versions of a file with this name, of which one may be missing, differ in what a need asks for."""
    asked = [_parts(one)[2] for one in need.split("|") if required(one, name)]
    if not (base.is_file() and head.is_file()):
        return bool(asked)
    return any(_code(base, definitions) != _code(head, definitions) for definitions in asked)


def _code(path: Path, definitions: Sequence[str]) -> bytes | list[str]:
    """What a file holds; of some definitions, without comments."""
    try:
        top = ast.parse(path.read_bytes()).body if definitions else []
    except SyntaxError:
        definitions = ()
    if not definitions:
        return path.read_bytes()
    statements = [definition(top, name) for name in definitions]
    return ["" if statement is None else ast.dump(statement) for statement in statements]


def definition(body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    """The statement that defines ``kernel``, or ``Class.kernel``; None where there is none."""
    first, _, inner = name.partition(".")
    statement = next((one for one in body if first in _defined(one)), None)
    return definition(getattr(statement, "body", ()), inner) if inner else statement


def _defined(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement]
    return [name for one in targets if (name := getattr(one, "name", None) or getattr(one, "id", None))]


def files_of(needs: Iterable[str]) -> dict[str, Path]:
    """Name, as in ``vllm:v1/worker/mamba_utils.py``, -> file that the needs ask for, of those that are there."""
    files: dict[str, Path] = {}
    for asked in {_asked(one) for need in needs for one in need.split("|") if _is_one_there(one)}:
        package, _, inner = asked.partition(":")
        if not asked.endswith((":", "/")):
            files[asked] = file_in(package, inner)
            continue
        spec = importlib.util.find_spec(package)
        for root in map(Path, reversed(spec.submodule_search_locations or ())):  # Python takes the first one's files
            files |= {f"{package}:{path.relative_to(root).as_posix()}": path for path in code_in(root / inner)}
    return {name: files[name] for name in sorted(files)}


def folder_of(name: str, path: Path) -> Path:
    """Of the package that a file belongs to. name, path: as ``files_of`` has them."""
    return Path(str(path).removesuffix(name.partition(":")[2]))


def code_in(folder: Path) -> list[Path]:
    """All files in it but bytecode."""
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]


def content_hash(files: Mapping[str, Path]) -> str:
    """One for all, with their names."""
    text = "".join(f"{name} {file_hash(path)}\n" for name, path in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def checkouts(needs: Sequence[str]) -> dict[str, Checkout]:
    """Distribution, as ``versions`` names it, -> where its files come from, of those that are no release."""
    by_folder: dict[Path, dict[str, Path]] = {}
    for name, path in files_of(needs).items():
        by_folder.setdefault(folder_of(name, path), {})[name] = path
    found = {}
    for folder, files in by_folder.items():
        name, version = _distribution(folder.name, next(iter(files.values())))
        version = version or _written_version(folder / "__init__.py")
        is_release = version is not None and not _are_edited(files.values(), name, folder)
        if (checkout := checkout_of(folder, files, is_release)) is not None:
            found.setdefault(name, checkout)
    return found


def _are_edited(files: Iterable[Path], distribution: str, folder: Path) -> bool:
    """Whether files are not those that a distribution installed beside ``folder``: by hash, or large ones by size. What
    no RECORD lists may be anything.
    """
    installed = {
        name: known
        for one in importlib.metadata.distributions(name=distribution, path=[str(folder.parent)])
        for name, *known in csv.reader((one.read_text("RECORD") or "").splitlines())
    }
    paths = {path.relative_to(folder.parent).as_posix(): path for path in files}
    return any(name not in installed or _is_edited(path, *installed[name]) for name, path in paths.items())


def _is_edited(path: Path, known_hash: str, known_size: str) -> bool:
    """known_hash, known_size: as a RECORD has them, "" where it does not."""
    size = path.stat().st_size
    if known_size and size != int(known_size):
        return True
    if not known_hash or size >= LARGE_BYTES:
        return False
    mode, _, value = known_hash.partition("=")
    return base64.urlsafe_b64encode(hashlib.new(mode, path.read_bytes()).digest()).rstrip(b"=").decode() != value


def checkout_of(folder: Path, files: Mapping[str, Path], is_release: bool = False) -> Checkout | None:
    """Of the folder of a package: the commit of the repository that tracks it, and a hash of the files where they are
    not those of a commit or release. None for a release. is_release: whether they are those of a version.
    """
    if (origin := _origin_of(folder)) is not None:
        return origin.checkout
    try:
        tracked = git(folder, "ls-tree", "HEAD", limit_s=_LIMIT_S)
        if tracked.returncode == 0 and tracked.stdout:
            commit, date = git(folder, "log", "-1", "--format=%H %cI", limit_s=_LIMIT_S).stdout.split()
            paths = [str(path.relative_to(folder)) for path in files.values()]
            state = git(folder, "status", "--porcelain", "--ignored", "--", *paths, limit_s=_LIMIT_S)
            return Checkout(commit, date, content_hash(files) if state.stdout else None)
    except (OSError, subprocess.SubprocessError):  # no git
        pass
    return None if is_release else Checkout(files=content_hash(files))


def _origin_of(folder: Path) -> Origin | None:
    try:
        return msgspec.json.decode((folder.parent / ORIGIN).read_bytes(), type=Origin)
    except FileNotFoundError:
        return None


def versions(needs: list[str]) -> dict[str, str]:
    """Distribution -> version, of those that are there; several versions where files of several releases are found. A
    fork that installs a package under its name goes by its own, as ``sgl-flash-mla`` for ``flash_mla``. A copy inside
    another package, which has no metadata, is named by its folder and gives the ``__version__`` of its ``__init__.py``.
    """
    found: dict[str, list[str]] = {}
    for one in (one for need in needs for one in need.split("|") if _is_one_there(one)):
        package, inner, *_ = _parts(one)
        top = package.partition(".")[0]
        path = file_in(package, inner) if inner else None
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
    if folder is not None and (origin := _origin_of(folder)) is not None:
        return top, origin.version
    versions_of: dict[str, list[str]] = {}
    for one in importlib.metadata.distributions(path=[str(folder.parent)] if folder is not None else []):
        if one.name is None:  # what an interrupted removal left of one
            continue
        if (named := top == one.name.replace("-", "_")) or top in (one.read_text("top_level.txt") or "").split():
            versions_of.setdefault(top if named else one.name, []).append(one.version)
    if versions_of:  # of several, files were unpacked over each other
        name = top if top in versions_of else next(iter(versions_of))
        return name, " and ".join(sorted(versions_of[name]))
    try:
        installed = importlib.metadata.distribution(top)
    except importlib.metadata.PackageNotFoundError:
        return top, None
    url = json.loads(installed.read_text("direct_url.json") or "{}")
    in_place = url.get("dir_info", {}).get("editable", False)
    return top, installed.version if folder is None or in_place else None


def _is_one_there(one: str) -> bool:
    package, inner, definitions, text = _parts(one)
    if inner:
        if (path := file_in(package, inner)) is None:
            return False
        names = [part for name in definitions for part in name.split(".")]
        held = path.read_text(encoding="utf-8", errors="replace") if names or text else ""
        return all(wanted in held for wanted in (*names, text))
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package of a submodule is missing
        return False


def _written_version(path: Path | None) -> str | None:
    text = path.read_text(encoding="utf-8", errors="replace") if path is not None and path.is_file() else ""
    written = re.search(r"""^__version__ = ['"]([^'"]+)['"]""", text, re.MULTILINE)
    return written[1] if written else None
