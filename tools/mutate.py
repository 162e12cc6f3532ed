"""Mutation test of ``verify``: breaks kernels and operator chains on purpose, and looks whether they are rejected.

    python -m tools.mutate                          # every mutant: minutes on a GPU, hours on a CPU
    python -m tools.mutate decode_flatten --jobs 2  # of one operator; also 'decode_*' or '*/triton_fused'
    python -m tools.mutate --list                   # what would be broken, and what should notice
    python -m tools.mutate --out mutants.json       # every result, for tools/splice.py
    python -m tools.mutate --again mutants.json     # what it lacks, or should have been rejected; rewrites it with both

A mutant is a line of ``tools/mutants/<operator>.toml``: a file, its text and what stands there instead, what that
breaks, and the first part of ``verify`` that should reject it. It is applied to a copy of the operators' files, and a
process of its own runs there what ``verify`` runs for one variant: edge cases and sequences, the covering array,
random batches, then the points of a sweep. A process that crashes or hangs has rejected its mutant, too. Every variant
must also pass as it is.

Each operator has a process that loads torch, finds the covering array and computes the reference there once. It
never touches the device; the processes of its mutants are forked from it.

Mutants of CUDA C++ need a GPU and are counted apart where there is none. ``equivalent`` mutants are wrong on no legal
input; they stand in the table so that nobody tries them again.

Without a GPU some mutants are not tried at the points that Triton's interpreter has no time for.

Exit code 0: as the table says. 1: a mutant survived, or an equivalent one was rejected. 2: bad usage or table, or a
variant does not pass as it is. 130: interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.util import cache_from_source
from itertools import chain
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness import interpreter
from spec_decode_bench.harness.exit_codes import BAD, INTERRUPTED, OK, USAGE
from spec_decode_bench.harness.records.endings import seen
from spec_decode_bench.harness.report.console import make_console, print_rows, progress_bar
from spec_decode_bench.harness.wording import did_you_mean

if TYPE_CHECKING:
    from spec_decode_bench.harness.config.work_items import Cells
    from spec_decode_bench.harness.contract import Operator, Point
    from spec_decode_bench.harness.discover import Catalog
    from spec_decode_bench.harness.records.schema import Finding, Reason

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "tools" / "mutants"
#: Folders of the operators' files, of which every mutant gets a copy.
FOLDERS = ("baselines", "kernels")
#: Configurations whose points a survivor of all other parts is put to: the first that has the operator.
SWEEPS = ("configs/full.yaml", "configs/mamba_copy.yaml", "configs/step.yaml", "configs/whole_step.yaml")
SEED = 0
#: Outputs of a sweep's point. Many processes at a time have no room for the gigabytes of a few of them.
MOST_BYTES = 256 << 20
#: As many as ``verify`` tries by default.
RANDOM_BATCHES = 25
#: Seconds after which a mutant counts as hanging: many times what the slowest healthy variant takes.
TIMEOUT_S = 300.0
#: Characters of a place or a message that are written to a file.
SHORT = 100

#: Exceptions of NVRTC and Triton. What does not compile proves nothing.
COMPILE_ERRORS = ("CompileError", "CompilationError")

#: The part of ``verify`` that rejects a mutant; "edge case" includes sequences. Of a process that died: "no_crash".
Killer = Literal["edge case", "array", "random", "sweep"]
KILLERS: tuple[Killer, ...] = ("edge case", "array", "random", "sweep")
#: All that may have rejected a mutant.
PARTS = (*KILLERS, "no_crash")
#: What takes longest comes first, so that the processes end together. Healthy variants come before all of them.
LONGEST_FIRST = ("equivalent", "sweep", "random", "array", "edge case")


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


class Settings(NamedTuple):
    """Of a run. sweep: whether survivors of all other parts are put to the points of a sweep. timeout_s: after which a
    mutant counts as hanging.
    """

    device: str
    seed: int = SEED
    sweep: bool = True
    timeout_s: float = TIMEOUT_S


class Result(msgspec.Struct, frozen=True):
    """killer: the part of ``verify`` that rejected it; None where it passed, or was not run, as it does not compile or
    cannot be imported. where, check, message: of the rejection, or of that error. seconds: that its process took.
    left_out: points and batches that Triton's interpreter had no time for.
    """

    killer: Killer | Literal["no_crash"] | None
    where: str | None = None
    check: str | None = None
    message: str | None = None
    seconds: float = 0.0
    left_out: int = 0

    @property
    def passed(self) -> bool:
        return self.killer is None and self.message is None


class TableError(Exception):
    """A table of mutants does not fit the tree, or a variant does not pass as it is; the message says which."""


# --- the table --------------------------------------------------------------------------------------------------------


def all_cases() -> list[Case]:
    """Every mutant, operator by operator. Raises TableError."""
    cases = []
    for path in sorted(TABLES.glob("*.toml")):
        try:
            table = msgspec.toml.decode(path.read_bytes(), type=Table)
        except msgspec.DecodeError as error:
            raise TableError(f"{path}: {error}") from None
        cases += [Case(path.stem, of.variant, of.path, mutant) for of in table.file for mutant in of.mutants]
    return cases


def mutated(case: Case) -> str:
    """The file's text with the mutation. Raises TableError where the original text does not occur exactly once."""
    text = (ROOT / case.path).read_text(encoding="utf-8")
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


@dataclass
class Prepared:
    """What all mutants of an operator share.

    array, sweep: the points of these parts, all with the variants that run there.
    inputs, expected: (point, seed) -> batch; identity of a batch -> the reference's answer.
    kept: modules of operators that a process need not import again.
    """

    operator: Operator
    array: list[Cells]
    sweep: list[Cells]
    kept: frozenset[str]
    inputs: dict[tuple[str, int], Any] = field(default_factory=dict)
    expected: dict[int, Any] = field(default_factory=dict)

    def answer(self, point: Point, seeds: Iterable[int]) -> None:
        """Make the batches of these seeds at a point, and compute what is right."""
        with suppress(Exception):  # then it is raised again where a variant is verified
            for seed in seeds:
                inputs = self.operator.make_inputs(point, seed)
                self.expected[id(inputs)] = self.operator.reference(point, inputs)
                self.inputs[self.operator.spelt_out(point), seed] = inputs

    def answering(self) -> Operator:
        """The operator with these batches and answers."""
        operator = self.operator

        def make_inputs(point: Point, seed: int) -> Any:
            known = self.inputs.get((operator.spelt_out(point), seed))
            return operator.make_inputs(point, seed) if known is None else known

        def reference(point: Point, inputs: Any) -> Any:
            known = self.expected.get(id(inputs))
            return operator.reference(point, inputs) if known is None else known

        return replace(operator, make_inputs=make_inputs, reference=reference)


def prepare(name: str, seed: int) -> Prepared:
    """Load all that the processes of an operator's mutants need, and compute what they share."""
    import torch

    torch.set_num_threads(1)
    import spec_decode_bench.harness.cuda_graph
    import spec_decode_bench.harness.session.evaluator
    import spec_decode_bench.harness.verify.random_batches  # noqa: F401
    from spec_decode_bench.harness.config.sweep import cells
    from spec_decode_bench.harness.contract import Point
    from spec_decode_bench.harness.discover import discover
    from spec_decode_bench.harness.verify.covering_array import covering_array

    for path in sorted((ROOT / "baselines").glob("*/operator.py")):
        importlib.import_module(f"spec_decode_bench.baselines.{path.parent.name}.operator")
    kept = frozenset(_operator_modules())
    catalog = discover()
    operator = catalog.operators[name]
    points = covering_array(operator, catalog.of(name)).points
    array = [cells(operator, point, catalog.of(name), in_array=True) for point in points]
    prepared = Prepared(operator, array, _sweep(catalog, name), kept)
    for point in (Point(item.axes) for item in array):
        prepared.answer(point, [seed])
        prepared.inputs[operator.spelt_out(point), seed + 1] = operator.make_inputs(point, seed + 1)
    return prepared


def _sweep(catalog: Catalog, name: str) -> list[Cells]:
    from spec_decode_bench.harness.config.load import load
    from spec_decode_bench.harness.config.sweep import plan
    from spec_decode_bench.harness.contract import Point
    from spec_decode_bench.harness.verify.points import tensor_bytes

    source = next(source for source in (load(ROOT / path) for path in SWEEPS) if name in source.config.operators)
    items = plan(source, catalog.operators, catalog.variants, [f"{name}/*"])
    make_outputs = catalog.operators[name].make_outputs
    return [item for item in items if tensor_bytes(make_outputs(Point(item.axes))) <= MOST_BYTES]


def _operator_modules() -> list[str]:
    return [name for name in sys.modules if name.startswith(tuple(f"spec_decode_bench.{one}" for one in FOLDERS))]


def use_tree(tree: Path, kept: Iterable[str]) -> None:
    """Import operators' files from a copy of them from now on, but for the modules that are kept."""
    from spec_decode_bench.harness import discover

    for name in _operator_modules():
        if name not in kept:
            package, _, attribute = name.rpartition(".")
            if package in sys.modules:
                vars(sys.modules[package]).pop(attribute, None)
            del sys.modules[name]
    for name in _operator_modules():
        if hasattr(sys.modules[name], "__path__"):
            sys.modules[name].__path__ = [str(tree.joinpath(*name.split(".")[1:]))]
    sys.modules["spec_decode_bench"].__path__.insert(0, str(tree))
    discover.ROOT = tree
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()


def mutated_tree(case: Case, folder: Path) -> Path:
    """A copy of the operators' files with the mutation, compiled files included."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    if case.mutant is not None:
        (folder / case.path).write_text(mutated(case), encoding="utf-8")
        # Python takes two versions of one size and second for the same.
        Path(cache_from_source(folder / case.path)).unlink(missing_ok=True)
    return folder


def verify(case: Case, prepared: Prepared, tree: Path, settings: Settings) -> Result:
    """What ``verify`` does for one variant, up to the first rejection. For a process of its own.

    Replays of graphs at every edge case come last, as they take long and reject few mutants.
    """
    module = case.path.removesuffix(".py").replace("/", ".")
    shared = case.mutant is None or module not in prepared.kept
    use_tree(tree, prepared.kept if shared else ())

    from spec_decode_bench.harness.config.load import Measure
    from spec_decode_bench.harness.config.work_items import Checked, RandomBatches, Verify
    from spec_decode_bench.harness.records.schema import Cell, Code
    from spec_decode_bench.harness.session.evaluator import Evaluator
    from spec_decode_bench.harness.session.messages import Job
    from spec_decode_bench.harness.verify import random_batches
    from spec_decode_bench.harness.verify.edge_cases import check_variant, far_rows, in_place

    random_batches.SHRINK_S = 0.0  # a small failing batch is of no use here
    evaluator = Evaluator(Job(settings.device, (), settings.seed, Measure(), timed=False), thorough=False)
    catalog = evaluator.catalog
    if catalog.broken:
        file, problem = next(iter(catalog.broken.items()))
        return Result(None, file, None, problem)
    variant = catalog.find(case.operator, case.variant)
    left_out = 0

    def is_left_out(reason: Reason | None) -> bool:
        return reason is not None and reason.code is Code.INTERPRETER_BUDGET

    def rejected(part: Killer, findings: Iterable[Finding | Checked]) -> Result | None:
        nonlocal left_out
        for one in findings:
            finding = one.finding if isinstance(one, Checked) else one
            left_out += is_left_out(finding.reason)
            if finding.status.is_bad:
                killer = None if finding.error in COMPILE_ERRORS else part
                return Result(killer, finding.name, finding.check or finding.error, seen(finding))
        return None

    if result := rejected("edge case", evaluator.verify(Verify(operator=case.operator, variant=case.variant))):
        return result
    plain = catalog.operators[case.operator]
    if shared:
        catalog.operators[case.operator] = prepared.answering()

    def rejected_at(part: Killer, items: Iterable[Cells]) -> Result | None:
        nonlocal left_out
        for item in items:
            alone = item.of([case.variant])
            for cell in (event for event in evaluator.cells(alone) if isinstance(event, Cell)):
                left_out += is_left_out(cell.reason)
                if cell.finding is not None:
                    found = cell.finding
                    return Result(part, cell.point, found.check or found.error, seen(found))
        return None

    if result := rejected_at("array", prepared.array):
        return result
    random = RandomBatches(operator=case.operator, variant=case.variant, count=RANDOM_BATCHES)
    if result := rejected("random", evaluator.random_batches(random)):
        return result
    of_cases = plain, variant, settings.device, settings.seed
    if result := rejected("edge case", chain(in_place(*of_cases), far_rows(*of_cases))):
        return result
    if not settings.sweep:
        return Result(None, left_out=left_out)
    if result := rejected_at("sweep", prepared.sweep):
        return result
    thorough = check_variant(*of_cases) if settings.device == "cuda" else ()
    return rejected("edge case", thorough) or Result(None, left_out=left_out)


def _case_process(
    case: Case, prepared: Prepared, tree: Path, settings: Settings, output: Path, answer: Connection
) -> None:
    from spec_decode_bench.harness.session.fork_server import end_with_parent

    end_with_parent()
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    answer.send(verify(case, prepared, tree, settings))
    answer.close()
    os._exit(0)  # without the clean-up of libraries that were loaded before the fork


@dataclass
class _Running:
    """A case in its process. folder: its copy of the files, and what it prints."""

    number: int
    process: Any
    answer: Connection
    folder: tempfile.TemporaryDirectory
    began: float = field(default_factory=time.monotonic)

    def result(self, timeout_s: float) -> Result | None:
        """None while it runs."""
        seconds = time.monotonic() - self.began
        ended = not self.process.is_alive()
        with suppress(EOFError, OSError):
            if self.answer.poll():
                return msgspec.structs.replace(self.answer.recv(), seconds=seconds)
        if ended:
            printed = Path(self.folder.name, "output").read_text(errors="replace").strip().splitlines() or ["no output"]
            error = next(
                (line for line in reversed(printed) if re.match(r"[\w.]*(Error|Exception)\b", line)), printed[-1]
            )
            message = f"exit code {self.process.exitcode}: {error}"
            return Result("no_crash", "process", None, message, seconds)
        if seconds > timeout_s:
            return Result("no_crash", "process", None, f"no end within {timeout_s:g} s", seconds)
        return None

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.answer.close()
        self.folder.cleanup()


def _operator_process(
    name: str, cases: Mapping[int, Case], settings: Settings, slots: Any, results: Connection
) -> None:
    """Sends (number of the case, Result) for each. slots: semaphore of as many processes as may work at a time."""
    from spec_decode_bench.harness.session.fork_server import end_with_parent

    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    interpreter.choose(settings.device)
    with slots:
        prepared = prepare(name, settings.seed)
    context = multiprocessing.get_context("fork")
    waiting, running = list(cases), []
    while waiting or running:
        if waiting and slots.acquire(timeout=0.02):
            number = waiting.pop(0)
            folder = tempfile.TemporaryDirectory(prefix="mutant-")
            answer, theirs = context.Pipe(duplex=False)
            tree, output = mutated_tree(cases[number], Path(folder.name)), Path(folder.name, "output")
            of_case = (cases[number], prepared, tree, settings, output, theirs)
            process = context.Process(target=_case_process, args=of_case)
            process.start()
            theirs.close()
            running.append(_Running(number, process, answer, folder))
        elif running:
            wait([one.answer for one in running], timeout=0.02)
        for one in list(running):
            if (result := one.result(settings.timeout_s)) is not None:
                one.close()
                running.remove(one)
                slots.release()
                results.send((one.number, result))


# --- all of them ------------------------------------------------------------------------------------------------------


def run_all(cases: Sequence[Case], jobs: int, settings: Settings) -> Iterator[tuple[int, Result]]:
    """(number of the case, result) of each, as it becomes known. Raises TableError where none can be had."""
    context = multiprocessing.get_context("spawn")
    slots, processes, names = context.Semaphore(jobs), [], {}
    left = dict(sorted(enumerate(cases), key=lambda one: _order(one[1])))
    try:
        for name in dict.fromkeys(case.operator for case in cases):
            mine = {number: case for number, case in left.items() if case.operator == name}
            ours, theirs = context.Pipe(duplex=False)
            processes.append(context.Process(target=_operator_process, args=(name, mine, settings, slots, theirs)))
            processes[-1].start()
            theirs.close()
            names[ours] = name
        while names:
            for connection in wait(names):
                try:
                    number, result = connection.recv()
                except EOFError:
                    name = names.pop(connection)
                    if any(case.operator == name for case in left.values()):
                        raise TableError(f"the process of {name} ended early; its error stands above") from None
                    continue
                del left[number]
                yield number, result
    finally:
        for process in processes:
            process.kill()  # which ends its mutants, too
            process.join()


def _order(case: Case) -> int:
    return -1 if case.mutant is None else LONGEST_FIRST.index(case.mutant.killer)


def outcome_of(case: Case, result: Result) -> str:
    """not tried: it passed, but Triton's interpreter had no time for some points, so nothing is known."""
    if result.killer is not None:
        return "killed"
    is_open = result.left_out and result.passed and case.mutant.killer != "equivalent"
    return "not tried" if is_open else "survived"


def unexpected(case: Case, result: Result) -> bool:
    return not result.passed if case.mutant.killer == "equivalent" else outcome_of(case, result) == "survived"


def tally(lines: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How often each part of ``verify`` rejected a mutant, and the other outcomes; what passes and is equivalent counts
    as "equivalent".
    """
    counts: Counter[str] = Counter()
    for line in lines:
        equivalent = line["outcome"] == "survived" and line["expected"] == "equivalent"
        counts["equivalent" if equivalent else line.get("killer") or line["outcome"]] += 1
    return counts


def print_table(console: Console, lines: Sequence[Mapping[str, Any]]) -> None:
    """operators x (mutants, killed by each part of verify, survived, not tried, equivalent, in need of a GPU)."""

    def row(name: str, counts: Counter[str]) -> list[str]:
        killed = [counts[part] for part in PARTS]
        others = [counts[outcome] for outcome in ("survived", "not tried", "equivalent")]
        return [name, *map(str, (sum(killed) + sum(others), sum(killed), *killed, *others, counts["needs a GPU"]))]

    operators = dict.fromkeys(line["operator"] for line in lines)
    rows = [row(name, tally(line for line in lines if line["operator"] == name)) for name in operators]
    head = ("operator", "mutants", "killed", *(f"by {part}" for part in KILLERS), "by a crash", "survived", "not tried")
    print_rows(console, (*head, "equivalent", "needs a GPU"), [*rows, row("all", tally(lines))])


def print_unexpected(console: Console, cases: Sequence[Case], results: Sequence[Result]) -> None:
    for case, result in zip(cases, results, strict=True):
        if unexpected(case, result):
            error = f"cannot be run: {result.message}" if result.message else "survived"
            how = error if result.killer is None else f"equivalent, but rejected at {result.where!r}"
            console.print(Text(f"\n{case.id}: {case.mutant.breaks}: {how}", style="red"))
            console.print(Text(f"  {case.path}\n  - {case.mutant.old.strip()}\n  + {case.mutant.new.strip()}"))


def as_json(case: Case, result: Result | None) -> dict:
    """result: None where it needs a GPU. The message of a rejection is cut to its check."""
    outcome = "needs a GPU" if result is None else outcome_of(case, result)
    of_case = {"operator": case.operator, "variant": case.variant}
    of_case |= {"breaks": case.mutant.breaks, "expected": case.mutant.killer, "outcome": outcome}
    if result is not None and not result.passed:
        message = result.message if result.killer in (None, "no_crash") else result.check
        of_case |= {"killer": result.killer, "where": result.where[:SHORT], "message": message[:SHORT]}
    return of_case | ({"seconds": round(result.seconds)} if result else {})


def write(path: Path, machine: str, seed: int, lines: Mapping[Case, dict]) -> None:
    """A mutant a line, in the order of the tables."""
    head = json.dumps({"machine": machine, "seed": seed})[:-1]
    ordered = [json.dumps(lines[case]) for case in all_cases() if case in lines]
    path.write_text(f'{head}, "mutants": [\n' + ",\n".join(ordered) + "\n]}\n", encoding="utf-8")


def read(path: Path, machine: str, seed: int) -> dict[Case, dict]:
    """Mutant of the table -> its line of a file that this command wrote on such a machine. Raises TableError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        made = content["machine"], content["seed"]
        lines = {(one["operator"], one["variant"], one["breaks"]): one for one in content["mutants"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise TableError(f"{path} holds no results of this command: {error}") from None
    if made != (machine, seed):
        raise TableError(f"{path} was made on {made[0]} with seed {made[1]}; this is {machine} with seed {seed}")
    known = {case: lines.get((case.operator, case.variant, case.mutant.breaks)) for case in all_cases()}
    return {case: line | {"expected": case.mutant.killer} for case, line in known.items() if line is not None}


def settled(line: Mapping[str, Any] | None) -> bool:
    """Whether a mutant came out as its table says."""
    if line is None:
        return False
    if line["expected"] == "equivalent":
        return line["outcome"] == "survived" and "message" not in line
    return line["outcome"] == "killed"


def machine_of(device: str | None) -> tuple[str, str]:
    """("cuda" or "cpu", its name). device: None for the GPU where there is one. Another process looks, as forks of one
    that has initialised CUDA cannot use it.
    """
    if device == "cpu":
        return "cpu", "CPU"
    look = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    name = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout.strip()
    if device == "cuda" and not name:
        raise TableError("there is no GPU; use --device cpu")
    return ("cuda", name) if name else ("cpu", "CPU")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__.partition("\n")[0])
    parser.add_argument("patterns", nargs="*", metavar="OPERATOR", help="globs over operator or operator/variant")
    parser.add_argument("--list", action="store_true", help="list the mutants and run none")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (default 1)")
    parser.add_argument(
        "--no-sweep", action="store_true", help="leave out the sweep's points and replays at every edge case"
    )
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"of all inputs (default {SEED})")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU where there is one")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write every result")
    parser.add_argument(
        "--again",
        type=Path,
        metavar="FILE.json",
        help="run only what these results lack or have otherwise than the table; write both to --out, or to this file",
    )
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
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
    device, machine = machine_of(options.device)
    console, began = make_console(), time.monotonic()
    lines, out = {}, options.out or options.again
    if options.again is not None:
        lines = read(options.again, machine, options.seed)
        cases = [case for case in cases if not settled(lines.get(case))]
    if out is not None:  # known before hours of work
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.touch()
        except OSError as error:
            raise TableError(f"cannot write to {out}: {error.strerror}") from None
    without_gpu = [case for case in cases if device == "cpu" and case.needs_gpu]
    cases = [case for case in cases if case not in without_gpu]
    healthy = [Case(*key, path, None) for key, path in {(c.operator, c.variant): c.path for c in cases}.items()]
    known: dict[int, Result] = {}
    try:
        with progress_bar(console, len(cases) + len(healthy)) as update:
            settings = Settings(device, options.seed, not options.no_sweep)
            for number, result in run_all([*cases, *healthy], options.jobs, settings):
                known[number] = result
                update(len(known), (cases + healthy)[number].id)
    finally:  # what is known is not lost where it is interrupted
        as_is = {case.id: known.get(number) for number, case in enumerate(healthy, start=len(cases))}
        unfit = {name: result for name, result in as_is.items() if result is not None and not result.passed}
        ended = [number for number, case in enumerate(cases) if number in known and case.id not in unfit]
        cases, results = [cases[number] for number in ended], [known[number] for number in ended]
        lines |= {case: as_json(case, result) for case, result in zip(cases, results, strict=True)}
        lines |= {case: as_json(case, None) for case in without_gpu}
        if out is not None:
            write(out, machine, options.seed, lines)
    console.print(Text(f"{machine}, seed {options.seed}, {time.monotonic() - began:.0f} s"))
    print_table(console, list(lines.values()))
    print_unexpected(console, cases, results)
    if unfit:
        whys = (f"{name} does not pass as it is: {one.where!r}: {one.message}" for name, one in unfit.items())
        raise TableError("; ".join(whys) + "; its mutants were left out")
    return BAD if any(map(unexpected, cases, results)) else OK


if __name__ == "__main__":
    sys.exit(main())
