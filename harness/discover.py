"""Finds operators and variants: one folder per operator in baselines/ and kernels/, one file per wrapped package in
upstream/, and files given with --variants.

A file of these folders that cannot be imported costs only its own variants; it is listed with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from os.path import relpath
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.contract import BUFFERS, COMPILER, GPU, Consumer, Operator, Variant
from spec_decode_bench.harness.errors import UsageError, did_you_mean, first_line
from spec_decode_bench.harness.import_by_content import OPERATORS, PACKAGES, ROOT, SUITE, ContentLoader
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.packages import is_there
from spec_decode_bench.harness.records.schema import Code, Reason

if TYPE_CHECKING:
    from spec_decode_bench.harness.config.work_items import Task

#: The folders with one for each operator, and that of variants that wrap the kernels of a package, for any operator.
*FOLDERS, UPSTREAM = OPERATORS
#: Modules of an operator's folder in the order in which tables show their variants; other modules follow by name.
MODULE_ORDER = ("operator", "chains", "defects", "sequence", "triton", "cuda")


class DiscoveryError(UsageError):
    """A file given with --variants cannot be used."""


@dataclass
class Catalog:
    """operators: by name. variants: in the order of the tables, defects included. broken: file -> what is wrong.
    consumers: engines' kernels that read the tables. collected: type -> objects of the types that rooms look for.
    """

    operators: dict[str, Operator] = field(default_factory=dict)
    variants: list[Variant] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    consumers: list[Consumer] = field(default_factory=list)
    collected: dict[type, list[Any]] = field(default_factory=dict)

    @property
    def complaints(self) -> list[str]:
        """What is wrong with files, a sentence for each reason."""
        by_reason: dict[str, list[str]] = {}
        for file, reason in self.broken.items():
            by_reason.setdefault(reason, []).append(file)
        sentences = []
        for reason, (first, *others) in by_reason.items():
            more = f" and {counted(len(others), 'more file')}" if others else ""
            sentences.append(f"{first}{more} cannot be used: {reason}")
        return sentences

    def of(self, operator: str) -> list[Variant]:
        return [v for v in self.variants if v.operator == operator]

    def find(self, operator: str, name: str) -> Variant:
        return next(v for v in self.variants if v.operator == operator and v.name == name)

    def refuse_broken(self, operators: Collection[str] | None) -> None:
        """A file of these operators that cannot be imported would leave out its variants; None: of any. Raises
        DiscoveryError.
        """
        for file, reason in self.broken.items():
            folder, operator = Path(file).parts[:2]
            if operators is None or folder == UPSTREAM or operator in operators:
                raise DiscoveryError(f"{file} cannot be used: {reason}")

    def refuse_wrong(self, items: Iterable[Task]) -> None:
        """Raises DiscoveryError for an operator of these that cannot be used."""
        for name in dict.fromkeys(item.operator for item in items):
            if (problem := wrong_with(self.operators[name], self.variants)) is not None:
                raise DiscoveryError(problem)

    def variants_of(self, items: Iterable[Task]) -> list[Variant]:
        """Each once, in the order of the items."""
        ids = dict.fromkeys((item.operator, name) for item in items for name in item.variants)
        return [self.find(operator, name) for operator, name in ids]


def discover(
    extra: Sequence[str | Path] = (),
    on_import: Callable[[str], None] = lambda module: None,
    operators: Collection[str] | None = None,
) -> Catalog:
    """Import the files of operators, then those of ``extra`` (--variants), with the operators of their variants.

    on_import: called with the name of each module after it was imported, or failed to be.
    operators: names of those that are needed; None for all.

    Raises DiscoveryError for a file of ``extra`` that cannot be used, or has no variant.
    """
    catalog, left_out = Catalog(), set()
    modules = _imported(_operator_files(operators), catalog, on_import)
    extras: dict[str, ModuleType] = {}
    for file in map(str, extra):
        extras[file] = import_file(Path(file))
        on_import(extras[file].__name__)
    if operators is not None:
        named = {*operators, *(mark.operator for module in extras.values() for mark in _marked(module))}
        if more := named & set(operator_names()) - set(operators):
            modules |= _imported(_operator_files(more), catalog, on_import)
        left_out = set(operator_names()) - named

    # All operators before any variant: a variant may belong to an operator of a later file.
    modules |= extras
    problems = {file: _add_operators(catalog, module) for file, module in modules.items()}
    for file, module in modules.items():
        before = len(catalog.variants)
        of_operators, of_variants = problems[file], _add_variants(catalog, module, left_out)
        if file in extras and not of_operators + of_variants and len(catalog.variants) == before:
            of_variants = ["defines no variant; mark a function with @variant(operator)"]
        if file in extras and of_operators + of_variants:
            raise DiscoveryError([*of_operators, *(f"{file}: {problem}" for problem in of_variants)][0])
        problems[file] += of_variants
        if problems[file]:
            catalog.broken[file] = "; ".join(problems[file])
    return catalog


def _imported(paths: Iterable[Path], catalog: Catalog, on_import: Callable[[str], None]) -> dict[str, ModuleType]:
    """Path -> module; the catalog is told of those that cannot be imported."""
    modules = {}
    for path in paths:
        name = ".".join((SUITE, *path.with_suffix("").parts))
        try:
            modules[str(path)] = importlib.import_module(name)
        except KeyboardInterrupt:  # the user's
            raise
        except BaseException as error:
            catalog.broken[str(path)] = _import_error(error)
        on_import(name)
    return modules


def operator_names() -> list[str]:
    """Of the suite: each has a folder of its name in baselines/."""
    return sorted(path.parent.name for path in (ROOT / FOLDERS[0]).glob("[!_]*/operator.py"))


def _operator_files(operators: Collection[str] | None) -> list[Path]:
    """Modules of operators, relative to ROOT: their folders in baselines/ and in kernels/, then files of upstream/, of
    which those that name one of them.
    """

    def order(path: Path) -> tuple[str, int, str]:
        rank = MODULE_ORDER.index(path.stem) if path.stem in MODULE_ORDER else len(MODULE_ORDER)
        return path.parent.name, rank, path.stem

    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("[!_]*/[!_]*.py"), key=order)]
    wrapping = sorted((ROOT / UPSTREAM).glob("[!_]*.py"))
    if operators is not None:
        paths = [path for path in paths if path.parent.name in operators]
        names = [f'"{name}"' for name in operators]
        wrapping = [path for path in wrapping if any(map(path.read_text(encoding="utf-8").__contains__, names))]
    return [path.relative_to(ROOT) for path in (*paths, *wrapping)]


def _add_operators(catalog: Catalog, module: ModuleType) -> list[str]:
    """Add the operators that a module knows, its own or imported; what is wrong with them."""
    operators = [value for value in vars(module).values() if isinstance(value, Operator)]
    catalog.operators |= {operator.name: operator for operator in operators}
    for kind in registry.COLLECTED:
        found = (value for value in vars(module).values() if isinstance(value, kind))
        catalog.collected.setdefault(kind, []).extend(found)
    return [problem for operator in operators if (problem := _unknown_axis(operator) or _without_edge_cases(operator))]


def _without_edge_cases(operator: Operator) -> str | None:
    if operator.edge_cases:
        return None
    return f"{_near(operator)}: {operator.name} has no edge_cases, so none of its variants could be verified"


def _near(operator: Operator) -> str:
    """The shorter way to its file: absolute, or from the working directory."""
    file = operator.defined.rpartition(":")[0]
    return min(file, relpath(file), key=len)


def wrong_with(operator: Operator, variants: Sequence[Variant]) -> str | None:
    """Why a sweep cannot use an operator, with its file; None where it can. variants: all that were found."""
    names = [v.name for v in variants if v.operator == operator.name and v.defect is None]
    if operator.baseline not in names:
        hint = did_you_mean(operator.baseline, names)
        return f"{_near(operator)}: the baseline of {operator.name}, {operator.baseline!r}, is no variant{hint}"
    return _unknown_axis(operator) or _without_edge_cases(operator)


def _unknown_axis(operator: Operator) -> str | None:
    """The first edge case or sequence that sets an axis the operator lacks.

    The value would be ignored, so the point would be another one and check nothing.
    """
    points = [(f"edge case {case.name!r}", case.point) for case in operator.edge_cases]
    points += [(f"sequence {name!r}", point) for name, steps in operator.sequences.items() for point in steps]
    axes = [axis.name for axis in operator.axes]
    for where, point in points:
        for name in point:
            if name not in axes:
                hint = did_you_mean(name, axes)
                return f"{_near(operator)}: {operator.name}: {where} has no axis {name!r} to set{hint}"
    return None


def _marked(module: ModuleType) -> list[Variant | Consumer]:
    """What the functions are marked with that a module defines, not those that it imports."""
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    marks = [getattr(value, mark, None) for value in own for mark in ("__variant__", "__consumer__")]
    return [mark for mark in marks if isinstance(mark, Variant | Consumer)]


def _add_variants(catalog: Catalog, module: ModuleType, left_out: Collection[str]) -> list[str]:
    """Add the variants and consumers of a module, but those of operators that are left out; what is wrong with them."""
    problems = []
    for mark in _marked(module):
        if mark.operator in left_out or any(mark is v for v in catalog.variants):  # or a second name of the function
            continue
        if isinstance(mark, Consumer):
            catalog.consumers.append(mark)
        elif problem := _wrong_with(mark, catalog):
            problems.append(problem)
        else:
            catalog.variants.append(mark)
    return problems


def _wrong_with(variant: Variant, catalog: Catalog) -> str | None:
    operator = catalog.operators.get(variant.operator)
    if operator is None:
        names = [name for name in dict.fromkeys((*operator_names(), *catalog.operators)) if name != variant.operator]
        return f"{variant.name}: unknown operator {variant.operator!r}{did_you_mean(variant.operator, names)}"
    axes = [axis.name for axis in operator.axes]
    if strange := next((name for name in variant.sizes if name not in axes), None):
        hint = did_you_mean(strange, axes)
        return f"{variant.name}: sizes= names {strange!r}, which is no axis of {operator.name}{hint}"
    if problem := _wrong_limit(variant, operator):
        return f"{variant.name}: {problem}"
    if any(v.id == variant.id for v in catalog.variants):
        return f"{variant.id} is defined already; choose another name"
    return None


def _wrong_limit(variant: Variant, operator: Operator) -> str | None:
    """A known failure that names nothing would excuse nothing, and stand in tables all the same."""
    case = [one.name for one in operator.edge_cases]
    names = [*case, *operator.sequences, *(f"{name}{more}" for name in case for more in BUFFERS.values())]
    for glob in variant.known_failures:
        if not any(fnmatchcase(name, glob) for name in names):
            hint = did_you_mean(glob, names)
            return f"known_failures= names {glob!r}, which is no edge case or sequence of {operator.name}{hint}"
    return (
        "a defect has no known_failures=; verify must reject it anyway"
        if variant.known_failures and variant.defect
        else None
    )


def import_file(path: Path) -> ModuleType:
    """Import a file of --variants; streams that it replaces are put back. Raises DiscoveryError."""
    name = f"variants_{path.stem}"
    loader = ContentLoader(name, str(path)) if path.suffix == ".py" else None
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None or not path.is_file():
        files = (file for file in sorted(path.parent.glob("*.py")) if file.is_file() and os.access(file, os.R_OK))
        siblings = [file.name for file in files if b"@variant" in file.read_bytes()]
        problem = "not a Python file" if path.exists() else f"no such file{did_you_mean(path.name, siblings)}"
        raise DiscoveryError(f"--variants {path}: {problem}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    streams = sys.stdout, sys.stderr
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:  # the user's
        raise
    except BaseException as error:  # a traceback would mostly show this file
        raise DiscoveryError(f"--variants {path}: cannot be imported: {_import_error(error)}") from None
    finally:
        sys.stdout, sys.stderr = streams
    return module


def _import_error(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and (old := _old_name(error)):
        return f"{old}: write {SUITE}.{old}, or from {SUITE} import variant"
    if isinstance(error, SyntaxError):
        where = f" ({Path(error.filename).name}, line {error.lineno})" if error.filename and error.lineno else ""
        return f"{type(error).__name__}: {error.msg}{where}"
    return first_line(error)


def _old_name(error: ModuleNotFoundError) -> str | None:
    """The module of this suite that an import asks for by the name that it had before spec_decode_bench."""
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    named = re.match(r"(?:from|import)\s+([\w.]+)(?:\s+import\s+(\w+))?", line)
    name = ".".join(filter(None, named.groups())) if named else ""
    while name.partition(".")[0] in PACKAGES and "." in name:  # a name alone, kernels, may be another package's
        path = ROOT.joinpath(*name.split("."))
        if path.is_dir() or path.with_suffix(".py").is_file():
            return name
        name = name.rpartition(".")[0]
    return None


def unavailable(variant: Variant | Consumer, device: str) -> Reason | None:
    """Why it cannot run on a device ("cuda" or "cpu") of this machine; None where it can."""
    for need in variant.requires:
        if need == GPU:
            missing = device != "cuda"
        elif need == COMPILER:
            missing = not (shutil.which("g++") or shutil.which("clang++"))
        else:
            missing = not is_there(need)
        if missing:
            return Reason(code=Code.NEEDS, detail=need)
    return None
