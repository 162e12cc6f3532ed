"""Finds operators and variants: the folders of baselines/ and kernels/, one per operator, and files named with
--variants.

A file that cannot be imported costs only its own variants; it is listed with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from harness.contract import COMPILER, GPU, Operator, Variant
from harness.wording import did_you_mean, first_line

ROOT = Path(__file__).parent.parent
FOLDERS = ("baselines", "kernels")
#: Modules of an operator's folder in the order in which tables show their variants; others follow by name.
MODULE_ORDER = ("operator", "chains", "defects", "triton", "cuda")


class DiscoveryError(Exception):
    """A file named with --variants cannot be used."""


@dataclass
class Catalog:
    """operators by name; variants in the order found, healthy and defective; broken: file -> why it has none."""

    operators: dict[str, Operator] = field(default_factory=dict)
    variants: list[Variant] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)

    def of(self, operator: str) -> list[Variant]:
        return [v for v in self.variants if v.operator == operator]

    def find(self, operator: str, name: str) -> Variant:
        return next(v for v in self.variants if v.operator == operator and v.name == name)


def discover(extra: Sequence[str | Path] = (), imported: Callable[[str], None] = lambda module: None) -> Catalog:
    """Import everything there is; ``imported`` is told each module's name. Raises DiscoveryError for a file of
    ``extra`` only.
    """
    catalog = Catalog()
    modules: list[tuple[str, ModuleType]] = []
    for path in _modules():
        file, module = str(path), ".".join(path.with_suffix("").parts)
        try:
            modules.append((file, importlib.import_module(module)))
        except (
            Exception,
            SystemExit,
            GeneratorExit,
        ) as error:  # whatever a kernel file raises on import is its own affair
            catalog.broken[file] = _reason(error)
        imported(module)
    for path in extra:
        modules.append((str(path), _import_file(Path(path))))
        imported(modules[-1][1].__name__)
    misnamed: dict[str, list[str]] = {}
    for name, module in modules:
        found = [value for value in vars(module).values() if isinstance(value, Operator)]
        catalog.operators |= {operator.name: operator for operator in found}
        misnamed[name] = [problem for operator in found if (problem := _misnamed_axis(operator))]
    for name, module in modules:
        before = len(catalog.variants)
        problems = misnamed[name] + _add_variants(catalog, module)
        if name in map(str, extra):
            if not problems and len(catalog.variants) == before:
                problems = ["defines no variant; mark a function with @variant(operator)"]
            if problems:
                raise DiscoveryError(f"{name}: {problems[0]}")
        elif problems:
            catalog.broken[name] = "; ".join(problems)
    return catalog


def _modules() -> list[Path]:
    """Files of all operators' folders, relative to ROOT: all of baselines/ before all of kernels/."""

    def order(path: Path) -> tuple:
        rank = MODULE_ORDER.index(path.stem) if path.stem in MODULE_ORDER else len(MODULE_ORDER)
        return path.parent.name, rank, path.stem

    return [
        path.relative_to(ROOT)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).glob("[!_]*/[!_]*.py"), key=order)
    ]


def _misnamed_axis(operator: Operator) -> str | None:
    """A hard point or a step of a sequence with an axis that the operator lacks: it would be another point, and
    prove nothing.
    """
    points = [(f"hard point {hard.name!r}", hard.point) for hard in operator.hard_points]
    points += [(f"sequence {name!r}", point) for name, steps in operator.sequences.items() for point in steps]
    axes = [axis.name for axis in operator.axes]
    wrong = ((place, name) for place, point in points for name in point if name not in axes)
    return next(
        (
            f"operator {operator.name}: {place} has no axis {name!r} to set{did_you_mean(name, axes)}"
            for place, name in wrong
        ),
        None,
    )


def _add_variants(catalog: Catalog, module: ModuleType) -> list[str]:
    problems = []
    for value in list(vars(module).values()):
        found = getattr(value, "__variant__", None)
        if not isinstance(found, Variant) or value.__module__ != module.__name__:
            continue
        if found.operator not in catalog.operators:
            problems.append(
                f"{found.name}: unknown operator {found.operator!r}{did_you_mean(found.operator, list(catalog.operators))}"
            )
        elif any(v is found for v in catalog.variants):
            continue  # the same function under a second name
        elif any(v.id == found.id for v in catalog.variants):
            problems.append(f"{found.id} is defined already; choose another name")
        else:
            catalog.variants.append(found)
    return problems


def _import_file(path: Path) -> ModuleType:
    name = f"variants_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        siblings = sorted(file.name for file in path.parent.glob("*.py"))
        problem = "not a Python file" if path.exists() else f"no such file{did_you_mean(path.name, siblings)}"
        raise DiscoveryError(f"--variants {path}: {problem}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (
        Exception,
        SystemExit,
        GeneratorExit,
    ) as error:  # reported with its line; the traceback would show this suite's insides
        raise DiscoveryError(f"--variants {path}: cannot be imported: {_reason(error)}") from None
    return module


def _reason(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}{f' (line {error.lineno})' if error.lineno else ''}"
    return first_line(error)


def unavailable(variant: Variant, device: str) -> str | None:
    """Why a variant cannot run on a device ("cuda" or "cpu") of this machine; None where it can."""
    for need in variant.requires:
        if need == GPU:
            if device != "cuda":
                return "needs a GPU"
        elif need == COMPILER:
            if not (shutil.which("g++") or shutil.which("clang++")):
                return "needs a C++ compiler (g++ or clang++) for torch.compile"
        elif not _importable(need):
            return f"needs the Python module {need}"
    return None


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package a submodule is asked of
        return False
