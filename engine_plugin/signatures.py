"""Signatures of an engine's functions, read from its sources without importing them.

``python -m spec_decode_bench.engine_plugin.signatures WHEEL ...`` writes those that the adapters use beside
them, a file for each wheel.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from spec_decode_bench.harness.packages import definition

#: Reads a file of the package, such as ``v1/worker/block_table.py``; None where it is missing.
Reader = Callable[[str], str | None]


def read_signatures(names: Sequence[str], read: Reader) -> dict[str, str | None]:
    """``FILE::NAME`` -> how it looks, None where it is missing.

    NAME: a function, whose parameters and defaults count, annotations do not; a dataclass or NamedTuple, whose fields
    count in their order; ``Class.attribute``, which a method assigns. A name that the file imports from another file of
    the package is looked up there.
    """
    parsed = cache(lambda file: None if (text := read(file)) is None else ast.parse(text))
    return {name: _signature(*name.split("::"), parsed) for name in names}


def _signature(file: str, name: str, parsed: Callable[[str], ast.Module | None]) -> str | None:
    module = parsed(file)
    if module is None:
        return None
    found = definition(module.body, name)
    if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"({_parameters(found.args)})"
    if isinstance(found, ast.ClassDef):
        fields = [one.target.id for one in found.body if isinstance(one, ast.AnnAssign)]
        return f"fields {', '.join(fields)}"
    if found is not None:
        return "assigned"
    if "." in name:
        owner, _, attribute = name.partition(".")
        body = definition(module.body, owner)
        return "attribute" if body is not None and attribute in _attributes(body) else None
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            package, _, rest = node.module.partition(".")
            return _signature(f"{rest.replace('.', '/')}.py", name, parsed) if package == "vllm" else None
    return None


def _parameters(arguments: ast.arguments) -> str:
    for one in ast.walk(arguments):
        if isinstance(one, ast.arg):
            one.annotation = None
    return ast.unparse(arguments)


def _attributes(owner: ast.AST) -> set[str]:
    """That its methods assign to self, or its body declares."""
    targets = []
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets += node.targets if isinstance(node, ast.Assign) else [node.target]
    names = {one.id for one in targets if isinstance(one, ast.Name)}
    is_own = lambda one: isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"  # noqa: E731
    return names | {part.attr for one in targets for part in ast.walk(one) if is_own(part)}


def file_of(version: str) -> Path:
    """Beside the adapter."""
    return Path(__file__).with_name(f"vllm_{version.replace('.', '_')}.json")


def known(version: str) -> dict[str, str]:
    """The signatures of a known version."""
    return json.loads(file_of(version).read_text(encoding="utf-8"))


def difference(expected: Mapping[str, str], found: Mapping[str, str | None]) -> str | None:
    """The first function that is missing or other than expected, in words; None where all are the same."""
    for name, signature in expected.items():
        if found[name] is None:
            return f"{name} is missing"
        if found[name] != signature:
            return f"{name} is {found[name]} and not {signature}"
    return None


def of_folder(folder: Path) -> Reader:
    """Reads files of a package's folder."""

    def read(file: str) -> str | None:
        path = folder / file
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return read


def of_wheel(path: Path) -> Reader:
    """Reads files of vLLM in a wheel."""
    wheel = zipfile.ZipFile(path)
    files = set(wheel.namelist())
    return lambda file: wheel.read(f"vllm/{file}").decode() if f"vllm/{file}" in files else None


def main(paths: Sequence[str]) -> int:
    from spec_decode_bench.engine_plugin.installation import ADAPTERS

    for path in map(Path, paths):
        named = re.match(r"vllm-([\d.]+)-", path.name)
        if named is None or named[1] not in ADAPTERS or not path.is_file():
            print(f"usage: signatures vllm-VERSION-....whl, a wheel of {' or '.join(ADAPTERS)}", file=sys.stderr)
            return 2
        version = named[1]
        found = read_signatures(ADAPTERS[version]().USED, of_wheel(path))
        if missing := [name for name, signature in found.items() if signature is None]:
            print(f"{path}: {missing[0]} is missing", file=sys.stderr)
            return 1
        file_of(version).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
