"""Mutation test of ``verify``: breaks kernels and operator chains on purpose, and looks whether they are rejected.

    python -m tools.mutate                          # every mutant, takes minutes
    python -m tools.mutate decode_flatten --jobs 2  # of one operator; also 'decode_*' or '*/triton_fused'
    python -m tools.mutate --list                   # what would be broken, and what should notice
    python -m tools.mutate --out mutants.json       # every result, for a table

A mutant is a line of ``tools/mutants/<operator>.toml``: a file, its text and what stands there instead, what that
breaks, and the first part of ``verify`` that should reject it. It is applied to a copy of the tree, and a process of
its own runs there what ``verify`` runs for one variant: hard points and sequences, then the points of a sweep. A
process that crashes or hangs has rejected its mutant, too. First of all every variant must pass as it is.

Mutants of CUDA C++ need a GPU and are counted apart where there is none. ``equivalent`` mutants are wrong on no legal
input; they stand in the table so that nobody tries them again.

Exit code 0: as the table says. 1: a mutant survived, or an equivalent one was rejected. 2: bad usage or table, or a
variant does not pass as it is. 130: interrupted.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from importlib.util import cache_from_source
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.text import Text

from harness.exit_codes import BAD, INTERRUPTED, OK, USAGE
from harness.report.console import make_console, print_rows, progress_bar
from harness.wording import did_you_mean

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "tools" / "mutants"
#: What a copy of the tree consists of.
COPIED = ("baselines", "kernels", "harness", "configs", "tools")
#: Configurations whose points a survivor of the hard points is put to: the first that has the operator.
SWEEPS = ("configs/full.yaml", "configs/mamba_copy.yaml", "configs/step.yaml")
SEED = 0
#: Seconds after which a mutant counts as hanging: many times what the slowest healthy variant takes.
TIMEOUT_S = 300.0

#: Exceptions of NVRTC and Triton. What does not compile proves nothing.
COMPILE_ERRORS = ("CompileError", "CompilationError")

#: The part of ``verify`` that rejects a mutant; "hard point" includes sequences. Of a process that died: "no_crash".
Killer = Literal["hard point", "capacity", "random", "sweep"]
KILLERS: tuple[Killer, ...] = ("hard point", "capacity", "random", "sweep")


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """old: occurs once in its file. breaks: in a few words. killer: who should reject it first."""

    old: str
    new: str
    breaks: str
    killer: Killer | Literal["equivalent"]


class MutatedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """path: from the root. variant: the one of the table's operator that is verified."""

    path: str
    variant: str
    mutants: list[Mutant]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: list[MutatedFile]


class Case(msgspec.Struct, frozen=True):
    """A mutant with its place; None verifies the variant as it is."""

    operator: str
    variant: str
    path: str
    mutant: Mutant | None

    @property
    def id(self) -> str:
        return f"{self.operator}/{self.variant}"

    @property
    def needs_gpu(self) -> bool:
        return self.variant.startswith("cuda")


class Result(msgspec.Struct, frozen=True):
    """killer: the part of ``verify`` that rejected it; None where it passed, or was not run, as it does not compile or
    cannot be imported. where, message: of the rejection, or of that error.
    """

    killer: Killer | Literal["no_crash"] | None
    where: str | None = None
    message: str | None = None


class TableError(Exception):
    """A table of mutants does not fit the tree, or a variant does not pass as it is; the message says which."""


# --- the table --------------------------------------------------------------------------------------------------------


def all_cases(tables: Path = TABLES) -> list[Case]:
    """Every mutant, operator by operator. Raises TableError."""
    cases = []
    for path in sorted(tables.glob("*.toml")):
        try:
            table = msgspec.toml.decode(path.read_bytes(), type=Table)
        except msgspec.DecodeError as error:
            raise TableError(f"{path}: {error}") from None
        cases += [Case(path.stem, of.variant, of.path, mutant) for of in table.file for mutant in of.mutants]
    return cases


def mutated(case: Case, root: Path = ROOT) -> str:
    """The file's text with the mutation. Raises TableError where the original text does not occur exactly once."""
    text = (root / case.path).read_text(encoding="utf-8")
    if (count := text.count(case.mutant.old)) != 1:
        raise TableError(
            f"tools/mutants/{case.operator}.toml: {case.mutant.breaks!r} wants to change {case.mutant.old!r}, which "
            f"occurs {count} times in {case.path}; follow the code, or drop the mutant"
        )
    return text.replace(case.mutant.old, case.mutant.new)


def chosen(cases: Sequence[Case], patterns: Sequence[str]) -> list[Case]:
    """Those that a glob over operator or operator/variant names; all without patterns. Raises TableError."""
    names = sorted({name for case in cases for name in (case.operator, case.id)})
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise TableError(f"no mutant of {pattern}{did_you_mean(pattern, names)}")
    hit = lambda case: any(fnmatchcase(name, p) for p in patterns for name in (case.operator, case.id))  # noqa: E731
    return [case for case in cases if not patterns or hit(case)]


# --- one mutant, in a process of its own ------------------------------------------------------------------------------


@contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in COPIED:
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(folder)


def run_case(case: Case, tree: Path, device: str, seed: int = SEED, timeout_s: float = TIMEOUT_S) -> Result:
    """Verify a case in a copy of the tree, which is left as it was."""
    file = tree / case.path
    original = file.read_bytes()
    compiled = Path(cache_from_source(file))
    command = [sys.executable, "-m", "tools.mutate", "--verify", case.id, device, str(seed)]
    if case.mutant is not None:
        file.write_text(mutated(case, tree), encoding="utf-8")
        # Python takes two versions of one size and second for the same.
        compiled.unlink(missing_ok=True)
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=timeout_s)
        return msgspec.json.decode(done.stdout.rpartition("result ")[2], type=Result)
    except subprocess.TimeoutExpired:
        return Result("no_crash", "process", f"no end within {timeout_s:g} s")
    except msgspec.DecodeError:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        return Result("no_crash", "process", f"exit code {done.returncode}: {last}")
    finally:
        file.write_bytes(original)
        compiled.unlink(missing_ok=True)


def verify(operator_name: str, variant_name: str, device: str, seed: int) -> Result:
    """What ``verify`` does for one variant, up to the first rejection. Runs in the copy."""
    import torch

    from harness import interpreter
    from harness.config.load import Measure, load
    from harness.config.sweep import plan
    from harness.records.schema import Cell
    from harness.runner.evaluator import Evaluator
    from harness.runner.protocol import Job, Task

    interpreter.choose(device)
    torch.set_num_threads(1)
    evaluator = Evaluator(Job(device, (), seed, Measure(), timed=False, compiled=False))
    catalog = evaluator._catalog
    if catalog.broken:
        return Result(None, *next(iter(catalog.broken.items())))
    operator, variant = catalog.operators[operator_name], catalog.find(operator_name, variant_name)
    for finding in evaluator.check_variant(operator.name, variant.name):
        if finding.check in COMPILE_ERRORS:
            return Result(None, finding.name, finding.message)
        if finding.outcome in ("rejected", "failed"):
            return Result(part_of_verify(finding.name), finding.name, f"{finding.check}: {finding.message}")
    source = next(source for source in map(load, SWEEPS) if operator.name in source.config.operators)
    for group in plan(source, catalog.operators, catalog.variants, [variant.id]):
        task = Task(operator.name, dict(group.point), (variant.name,), 0.0)
        for cell in (event for event in evaluator.group(task) if isinstance(event, Cell)):
            if cell.status.is_bad:
                return Result("sweep", cell.point, cell.reason)
    return Result(None)


def part_of_verify(finding: str) -> Killer:
    """By the first word of a finding's name; hard points and sequences have names of their own."""
    return next((part for part in ("capacity", "random") if finding.startswith(part)), "hard point")


# --- all of them ------------------------------------------------------------------------------------------------------


def run_all(
    cases: Sequence[Case], device: str, jobs: int, seed: int, update: Callable[[int, str], None]
) -> list[Result]:
    """The results in the order of the cases. Raises KeyboardInterrupt."""
    results: dict[int, Result] = {}
    trees: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def run(i: int) -> None:
        tree = trees.get()
        try:
            results[i] = run_case(cases[i], tree, device, seed)
        finally:
            trees.put(tree)
        update(len(results), cases[i].id)

    with ExitStack() as copies, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            trees.put(copies.enter_context(copy_of_the_tree()))
        try:
            list(pool.map(run, range(len(cases))))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [results[i] for i in range(len(cases))]


def unexpected(case: Case, result: Result) -> bool:
    return result != Result(None) if case.mutant.killer == "equivalent" else result.killer is None


def print_table(
    console: Console, cases: Sequence[Case], results: Sequence[Result], without_gpu: Sequence[Case]
) -> None:
    """operators x (mutants, killed by each part of verify, survived, equivalent, in need of a GPU)."""

    def row(name: str, of: Callable[[Case], bool]) -> list[str]:
        mine = [(case, result) for case, result in zip(cases, results, strict=True) if of(case)]
        killed = [result.killer for _, result in mine if result.killer is not None]
        survived = sum(result.killer is None and case.mutant.killer != "equivalent" for case, result in mine)
        counts = [len(mine), len(killed), *(killed.count(part) for part in (*KILLERS, "no_crash")), survived]
        counts += [len(mine) - len(killed) - survived, sum(map(of, without_gpu))]
        return [name, *map(str, counts)]

    operators = dict.fromkeys(case.operator for case in (*cases, *without_gpu))
    rows = [row(name, lambda case, name=name: case.operator == name) for name in operators]
    head = (
        "operator",
        "mutants",
        "killed",
        *(f"by {part}" for part in KILLERS),
        "by a crash",
        "survived",
        "equivalent",
    )
    print_rows(console, (*head, "needs a GPU"), [*rows, row("all", lambda case: True)])


def print_unexpected(console: Console, cases: Sequence[Case], results: Sequence[Result]) -> None:
    for case, result in zip(cases, results, strict=True):
        if unexpected(case, result):
            error = f"cannot be run: {result.message}" if result.message else "survived"
            how = error if result.killer is None else f"equivalent, but rejected at {result.where!r}"
            console.print(Text(f"\n{case.id}: {case.mutant.breaks}: {how}", style="red"))
            console.print(Text(f"  {case.path}\n  - {case.mutant.old.strip()}\n  + {case.mutant.new.strip()}"))


def as_json(case: Case, result: Result | None) -> dict:
    """result: None where it needs a GPU."""
    outcome = "needs a GPU" if result is None else "survived" if result.killer is None else "killed"
    place = {"operator": case.operator, "variant": case.variant, "file": case.path}
    expected = {"expected": case.mutant.killer, "breaks": case.mutant.breaks}
    return {**place, **expected, "outcome": outcome, **(msgspec.to_builtins(result) if result else {})}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__.partition("\n")[0])
    parser.add_argument("patterns", nargs="*", metavar="OPERATOR", help="globs over operator or operator/variant")
    parser.add_argument("--list", action="store_true", help="list the mutants and run none")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (default 1)")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"of all inputs (default {SEED})")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU where there is one")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write every result")
    options = parser.parse_args(arguments)
    try:
        cases = chosen(all_cases(), options.patterns)
        for case in cases:
            mutated(case)
        if options.list:
            rows = [(case.id, case.mutant.breaks, case.mutant.killer) for case in cases]
            print_rows(make_console(), ("variant", "what is broken", "who should notice"), rows)
            return OK
        return _run(cases, options)
    except TableError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(cases: Sequence[Case], options: argparse.Namespace) -> int:
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    console, began = make_console(), time.monotonic()
    without_gpu = [case for case in cases if device == "cpu" and case.needs_gpu]
    cases = [case for case in cases if case not in without_gpu]
    healthy = [Case(*key, path, None) for key, path in {(c.operator, c.variant): c.path for c in cases}.items()]
    with progress_bar(console, len(healthy) + len(cases)) as update:
        for case, result in zip(healthy, run_all(healthy, device, options.jobs, options.seed, update), strict=True):
            if result != Result(None):
                raise TableError(f"{case.id} does not pass as it is: {result.where!r}: {result.message}")
        past_healthy = lambda done, doing: update(len(healthy) + done, doing)  # noqa: E731
        results = run_all(cases, device, options.jobs, options.seed, past_healthy)
    if options.out is not None:
        lines = [as_json(case, result) for case, result in zip(cases, results, strict=True)]
        lines += [as_json(case, None) for case in without_gpu]
        options.out.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    console.print(Text(f"device {device}, seed {options.seed}, {time.monotonic() - began:.0f} s"))
    print_table(console, cases, results, without_gpu)
    print_unexpected(console, cases, results)
    return BAD if any(map(unexpected, cases, results)) else OK


if __name__ == "__main__":
    if sys.argv[1:2] == ["--verify"]:
        name, device, seed = sys.argv[2:]
        print("result " + msgspec.json.encode(verify(*name.split("/"), device, int(seed))).decode())
    else:
        sys.exit(main())
