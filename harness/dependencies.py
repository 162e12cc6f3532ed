"""The files of this suite that a file depends on: those that it imports, includes, or names in a string. It reads them
and imports none, so it works on any checkout.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from spec_decode_bench.harness.import_by_content import IN_WORKERS, OPERATORS, PACKAGES, SUITE

#: Hexadecimal digits kept of SHA-256, which are the first ones that sha256sum prints.
DIGITS = 16
#: A larger file, such as an engine's library of hundreds of megabytes, is hashed again only if it has changed.
LARGE_BYTES = 1 << 20
#: What launches, verifies and times: what it imports is part of every cell.
_ENGINE = ("harness/session/worker.py", "harness/session/evaluator.py")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|(.*))', re.MULTILINE)
_CUDA = (".cu", ".cuh")
_FILE_NAME = re.compile(r"[\w./+ -]{1,255}\.\w+")


def dependencies(files: Iterable[Path], root: Path, packages: Sequence[str]) -> set[Path]:
    """The files themselves and all that they depend on in these packages of ``root``, at any depth. A file outside of
    the packages may also import what lies beside it or in ``root``.

    A file that is missing or has a syntax error depends on nothing.
    """
    closure: set[Path] = set()
    waiting = [root / file for file in files]
    while waiting:
        file = waiting.pop()
        if file not in closure:
            closure.add(file)
            waiting += named_in(file, root, tuple(packages))
    return closure


def closure_hashes(root: Path, files: Iterable[Path]) -> dict[str, str | None]:
    """File -> hash of all that these depend on in a checkout; None for one that is missing."""
    closure = dependencies(files, root, PACKAGES)
    names = {path: str(path.relative_to(root) if path.is_relative_to(root) else path) for path in closure}
    return {name: file_hash(path) if path.is_file() else None for path, name in names.items()}


def engine(root: Path) -> list[Path]:
    """Files that, with all that they depend on, are part of every cell, relative to a checkout: of the workers, and of
    rooms whose code runs in them, without their subfolders, which hold figures and what belongs to single operators.
    """
    rooms = (root / folder for folder in IN_WORKERS if folder != "harness")
    return [*map(Path, _ENGINE), *(path.relative_to(root) for room in rooms for path in room.glob("*.py"))]


def headers(path: Path, text: str, include_path: Sequence[Path]) -> list[tuple[str, bytes]] | None:
    """(path, content) of all headers that a CUDA source includes, also through others, or (name, b"") of one that lies
    in no folder, as those of NVRTC do. None where a name is made by the preprocessor.

    include_path: the folders that are searched beside the one of the including file.
    """
    known: dict[str, bytes] = {}
    waiting = [(path.parent, text)]
    while waiting:
        folder, including = waiting.pop()
        for quoted, angled, computed in _INCLUDE.findall(including):
            if computed:
                return None
            folders = [folder, *include_path] if quoted else include_path
            name = quoted or angled
            header = next((file for one in folders if (file := one / name).is_file()), None)
            if header is None:
                known.setdefault(name, b"")
            elif str(header) not in known:
                known[str(header)] = header.read_bytes()
                waiting.append((header.parent, known[str(header)].decode("utf-8", "replace")))
    return sorted(known.items())


def include_path(source: Path) -> list[Path]:
    """Where headers of a CUDA source lie: its folder, and the one above for ``"other_operator/header.cuh"``."""
    return [source.parent, source.parent.parent]


def variant_files(root: Path, extra: Iterable[Path] = ()) -> dict[str, Path]:
    """``operator/variant`` -> the file that defines it, of all variants of a checkout and of the files ``extra``."""
    # Those of upstream/ lie beside each other, the others in the folder of their operator.
    paths = [path for folder in OPERATORS for depth in ("*.py", "*/*.py") for path in (root / folder).glob(depth)]
    return {name: path for path in (*paths, *(root / file for file in extra)) for name in _variants_in(path)}


def _variants_in(path: Path) -> Iterator[str]:
    """Of functions marked with ``@variant("operator", ...)``."""
    try:
        nodes = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError):
        return
    for node in nodes:
        for mark in getattr(node, "decorator_list", ()):
            if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "variant" and mark.args:
                operator = mark.args[0]
                if isinstance(operator, ast.Constant):
                    yield f"{operator.value}/{node.name}"


def file_hash(path: Path) -> str:
    """The first DIGITS of its SHA-256. Raises OSError."""
    status = path.stat()
    hashed = _hashed if status.st_size < LARGE_BYTES else _hashed_once
    return hashed(path, status.st_mtime_ns, status.st_size)


def _hashed(path: Path, changed_ns: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


_hashed_once = cache(_hashed)


@cache
def named_in(path: Path, root: Path, packages: tuple[str, ...]) -> tuple[Path, ...]:
    """What a file itself imports, includes or names, of these packages of ``root``."""
    return tuple(_read_names(path, root, packages))


def _read_names(path: Path, root: Path, packages: tuple[str, ...]) -> Iterator[Path]:
    if path.suffix in _CUDA and path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        yield from (Path(name) for name, _ in headers(path, text, include_path(path)) or () if Path(name).is_file())
    if path.suffix != ".py" or not path.is_file():
        return
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except SyntaxError:
        return
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FILE_NAME.fullmatch(node.value):
            yield from (file for file in [path.parent / node.value] if file.is_file())
        for folder, name in _imports(node, path, root, packages):
            yield from _modules(folder, name)


def _imports(node: ast.AST, path: Path, root: Path, packages: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """(folder in which it is searched, name with dots) of every module that a node of a file imports."""
    level, names = 0, []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        level = node.level
        names = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
    for name in (name.removeprefix(f"{SUITE}.") for name in names):
        if level:
            yield path.parents[level - 1], name
        elif name.partition(".")[0] in packages:
            yield root, name
        elif not any(path.is_relative_to(root / package) for package in packages):
            yield from ((folder, name) for folder in (path.parent, root))


def _modules(root: Path, name: str) -> Iterator[Path]:
    """The file of a module and those of the packages around it; nothing for what is not a module."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        stem = root.joinpath(*parts[:depth])
        yield from (file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file())
