"""Mutation test of ``verify``: breaks kernels and operator chains on purpose, and looks whether they are rejected.

    python -m tools.mutate                          # every mutant: minutes on a GPU, hours on a CPU
    python -m tools.mutate decode_flatten --jobs 2  # of one operator; also 'decode_*' or '*/triton_fused'
    python -m tools.mutate --kind effect --kind large   # of these kinds
    python -m tools.mutate --list                   # what would be broken, and what should notice
    python -m tools.mutate --out mutants.json       # every result, for tools/splice.py
    python -m tools.mutate --again mutants.json     # what it lacks, or should have been rejected; rewrites it with both

A mutant is a line of ``tools/mutants/<operator>.toml``: a file, its text and what stands there instead, what that
breaks, and the first part of ``verify`` that should reject it. It is applied to a copy of this tree, in which ``verify
--out`` runs for its variant alone until a line of the record rejects it. One that crashes or hangs is rejected, too.
Every variant must also pass as it is.

Mutants of CUDA C++ need a GPU and are counted apart where there is none. ``equivalent`` mutants are wrong on no legal
input; they stand in the table so that nobody tries them again.

Without a GPU some mutants are not tried at the points that Triton's interpreter has no time for.

Exit code 0: as the table says. 1: a mutant survived, or an equivalent one was rejected. 2: bad usage or table, or a
variant does not pass as it is. 130: interrupted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness.config.load import load
from spec_decode_bench.harness.errors import did_you_mean
from spec_decode_bench.harness.exit_codes import BAD, INTERRUPTED, OK, USAGE
from spec_decode_bench.harness.records.file import is_empty_record, read_record
from spec_decode_bench.harness.records.schema import CheckLine, Code, Place
from spec_decode_bench.harness.records.sentences import seen
from spec_decode_bench.harness.report import table as tables
from spec_decode_bench.harness.report.console import make_console, print_rows, print_tables, progress_bar
from spec_decode_bench.harness.report.table import Column, Entry, as_text, markdown_rows, number_column

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "tools" / "mutants"
#: What ``verify`` does not need of the tree.
NOT_COPIED = (".*", "docs", "results", "tests")
#: Configurations that a mutant is verified with: the first that has the operator.
SWEEPS = tuple(
    f"configs/{name}.yaml"
    for name in ("full", "mamba_copy", "step", "whole_step", "block_draft", "draft_budget", "chain_step")
)
SEED = 0
#: Seconds without a sign of life after which a mutant counts as hanging: many times what a healthy variant takes.
TIMEOUT_S = 300.0
#: Seconds after which the record of a running ``verify`` is read again.
POLL_S = 0.1
#: Characters of a place or a message that are written to a file.
SHORT = 100

#: Exceptions of NVRTC and Triton. What does not compile proves nothing.
COMPILE_ERRORS = ("CompileError", "CompilationError")

#: The part of ``verify`` that rejects a mutant; "edge case" includes sequences. Of a process that died: "no_crash".
Killer = Literal["edge case", "array", "sweep"]
#: What a mutant breaks -> what it stands for; the others are bounds, indices and formulas.
KINDS = {
    "between": "a range between two powers of two",
    "large": "ids, lengths or products past 2^17, 2^20, 2^24",
    "contents": "what engines make: shared blocks, counts of 0, positions past a table",
    "set-up": "what was read at set-up, and may change",
    "repeats": "a second set of buffers, the thousandth launch",
    "alignment": "where one buffer alone is misaligned",
    "effect": "where two values meet and both matter",
    "guesses": "outputs kept where a few elements are as they were",
}
PLAIN = "plain"
KILLERS: tuple[Killer, ...] = ("edge case", "array", "sweep")
KILLER_AT: dict[Place, Killer] = {
    **dict.fromkeys((Place.IMPORT, Place.EDGE_CASE, Place.SEQUENCE), "edge case"),
    Place.ARRAY_POINT: "array",
    Place.POINT: "sweep",
}
#: All that may have rejected a mutant.
PARTS = (*KILLERS, "no_crash")
#: What is known soonest comes first, so that a run which is cut short knows most. Healthy variants come last.
SOONEST_FIRST = ("edge case", "array", "sweep", "equivalent")


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """old: occurs once in its file. breaks: in a few words. killer: who should reject it first. kind: of KINDS."""

    old: str
    new: str
    breaks: str
    killer: Killer | Literal["equivalent"]
    kind: str = PLAIN


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
    """Of a run. sweep: whether survivors of all other parts are put to the points of a sweep. timeout_s: without a sign
    of life, after which a mutant counts as hanging.
    """

    device: str
    seed: int = SEED
    sweep: bool = True
    timeout_s: float = TIMEOUT_S


class Result(msgspec.Struct, frozen=True):
    """killer: the part of ``verify`` that rejected it; None where it passed, or was not run, as it does not compile or
    cannot be imported. where, check, message: of the rejection, or of that error. seconds: that its process took.
    left_out: places that Triton's interpreter had no time for, or that had no room.
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
    cases: list[Case] = []
    for path in sorted(TABLES.glob("*.toml")):
        try:
            table = msgspec.toml.decode(path.read_bytes(), type=Table)
        except msgspec.DecodeError as error:
            raise TableError(f"{path}: {error}") from None
        cases += [Case(path.stem, of.variant, of.path, mutant) for of in table.file for mutant in of.mutants]
        if wrong := next((c.mutant for c in cases if c.mutant.kind not in (*KINDS, PLAIN)), None):
            raise TableError(f"{path}: {wrong.breaks!r} has kind {wrong.kind!r}{did_you_mean(wrong.kind, list(KINDS))}")
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


def chosen(cases: Sequence[Case], patterns: Sequence[str], kinds: Sequence[str] = ()) -> list[Case]:
    """Those that a glob over operator or operator/variant names, of some kinds; all without. Raises TableError."""
    cases = [case for case in cases if not kinds or case.mutant.kind in kinds]
    names = sorted({name for case in cases for name in (case.operator, case.id)})
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise TableError(f"no mutant of {pattern}{did_you_mean(pattern, names)}")
    hit = lambda case: any(fnmatchcase(name, p) for p in patterns for name in (case.operator, case.id))  # noqa: E731
    return [case for case in cases if not patterns or hit(case)]


# --- one mutant -------------------------------------------------------------------------------------------------------


def mutated_tree(case: Case, folder: Path) -> Path:
    """A copy of this tree with the mutation, compiled files included."""
    tree = Path(shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*NOT_COPIED)))
    if case.mutant is not None:
        (tree / case.path).write_text(mutated(case), encoding="utf-8")
        # Python takes two versions of one size and second for the same.
        Path(cache_from_source(tree / case.path)).unlink(missing_ok=True)
    return tree


def config_of(operator: str) -> str:
    return next(path for path in SWEEPS if operator in load(ROOT / path).config.operators)


def verify(case: Case, settings: Settings, stop: threading.Event) -> Result | None:
    """``verify`` of one variant in a copy of the tree, up to the first rejection; None where it was stopped."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        tree, record, output = mutated_tree(case, folder), folder / "run.jsonl", folder / "output"
        command = [sys.executable, "bench.py", "verify", config_of(case.operator), "--only", case.id, "--out", name]
        command += ["--device", settings.device, "--seed", str(settings.seed)]
        command += ["--set", f"measure.timeout_s={settings.timeout_s:g}"]
        with output.open("w") as file:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            process = subprocess.Popen(command, cwd=tree, env=environment, start_new_session=True, **streams)
        result = None
        try:
            while result is None and not stop.is_set():
                code = process.poll()  # before its record is read: then that is complete
                result = judged(_lines(record), settings.sweep)
                if code is not None:
                    result = result or _ended(code, _lines(record), output.read_text(errors="replace"))
                elif result is None:
                    time.sleep(POLL_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and its workers
            process.wait()
    return result and msgspec.structs.replace(result, seconds=time.monotonic() - began)


def _lines(record: Path) -> list[CheckLine]:
    """Those that have been written by now."""
    return [] if not record.exists() or is_empty_record(record) else read_record(record).others


def judged(lines: Sequence[CheckLine], sweep: bool) -> Result | None:
    """What the first lines of ``verify`` say of a mutant; None where the next ones matter. sweep: whether points of the
    sweep count.
    """
    for number, line in enumerate(lines):
        part, found = KILLER_AT[line.place], line.found
        if part == "sweep" and not sweep:
            return Result(None, left_out=_left_out(lines[:number]))
        if line.status.is_bad and not found.lacked_memory:
            died = found.check == "no_crash"
            killer = None if found.error in COMPILE_ERRORS else "no_crash" if died else part
            return Result(killer, line.name, found.check or found.error, seen(found))
    return None


def _left_out(lines: Iterable[CheckLine]) -> int:
    is_slow = lambda line: line.reason is not None and line.reason.code is Code.INTERPRETER_BUDGET  # noqa: E731
    return sum(is_slow(line) or line.found.lacked_memory for line in lines)


def _ended(code: int, lines: Sequence[CheckLine], printed: str) -> Result:
    """Of a ``verify`` that rejected nothing and ended with this exit code."""
    if code == OK or any(line.status.is_bad for line in lines):
        return Result(None, left_out=_left_out(lines))
    last = (printed.strip().splitlines() or ["no output"])[-1]
    return Result(None if code == USAGE else "no_crash", "process", None, f"exit code {code}: {last}")


# --- all of them ------------------------------------------------------------------------------------------------------


def run_all(cases: Sequence[Case], jobs: int, settings: Settings) -> Iterator[tuple[int, Result]]:
    """(number of the case, result) of each, as it becomes known."""
    stop = threading.Event()
    with ThreadPoolExecutor(jobs) as threads:
        try:
            ordered = sorted(enumerate(cases), key=lambda one: _order(one[1]))
            numbers = {threads.submit(verify, case, settings, stop): number for number, case in ordered}
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        finally:
            stop.set()
            threads.shutdown(cancel_futures=True)


def _order(case: Case) -> int:
    return len(SOONEST_FIRST) if case.mutant is None else SOONEST_FIRST.index(case.mutant.killer)


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


#: How a mutant may end -> the head of its column.
ENDS = {"edge case": "edge cases", "array": "array", "sweep": "sweep", "no_crash": "crash"}
ENDS |= {name: name for name in ("survived", "equivalent", "not tried", "needs a GPU")}


def table(lines: Sequence[Mapping[str, Any]]) -> tables.Table:
    """operators x (mutants, how many ended in each way that occurs)."""
    counts = tally(lines)
    ends = [end for end in ENDS if counts[end] or end in ("survived", "equivalent")]
    groups = {
        name: [line for line in lines if line["operator"] == name]
        for name in sorted({line["operator"] for line in lines})
    }
    rows = []
    for name, group in [*groups.items(), ("all", lines)]:
        of_group = tally(group)
        numbers = (Entry(str(number)) for number in (len(group), *(of_group[end] for end in ends)))
        rows.append((Entry(name, style="code" if name in groups else ""), *numbers))
    return tables.Table("", (Column("operator"), *map(number_column, ("mutants", *map(ENDS.get, ends)))), tuple(rows))


def by_kind(lines: Sequence[Mapping[str, Any]]) -> tables.Table:
    """operators x kinds that occur: killed / all, without equivalent ones."""
    kinds = {(c.operator, c.variant, c.mutant.breaks): c.mutant.kind for c in all_cases()}
    counts: Counter[tuple[str, str, str]] = Counter()
    for line in lines:
        if line["expected"] != "equivalent":
            kind = kinds.get((line["operator"], line["variant"], line["breaks"]), PLAIN)
            killed = "killed" if line["outcome"] == "killed" else "not"
            counts.update(itertools.product((line["operator"], "all"), (kind, "all"), (killed,)))
    heads = [kind for kind in (PLAIN, *KINDS, "all") if any(kind == of for _, of, _ in counts)]
    rows = []
    for name in [*sorted({line["operator"] for line in lines}), "all"]:
        numbers = ((counts[name, kind, "killed"], counts[name, kind, "not"]) for kind in heads)
        cells = (Entry(f"{killed}/{killed + others}" if killed + others else "") for killed, others in numbers)
        rows.append((Entry(name, style="" if name == "all" else "code"), *cells))
    return tables.Table("", (Column("operator"), *map(number_column, heads)), tuple(rows))


def documented(results: Mapping[str, Any]) -> list[str]:
    """What --out wrote, as Markdown, with the survivors."""
    tried = results["mutants"]
    ends = ", ".join(f"{head} {count}" for end, head in ENDS.items() if (count := tally(tried)[end]))
    left_out = f"{results['machine']}, seed {results['seed']}. Ends: {ends}. "
    left_out += f"Listed and not tried: {len(all_cases()) - len(tried)}."
    survivors = [
        f"* `{one['operator']}/{one['variant']}`: {as_text(one['breaks'])}"
        for one in tried
        if one["outcome"] == "survived" and one["expected"] != "equivalent"
    ]
    return [*markdown_rows(by_kind(tried)), "", left_out, *(["", "Survivors:", "", *survivors] if survivors else [])]


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
    parser.add_argument("--kind", action="append", choices=(*KINDS, PLAIN), help="only this kind; may repeat")
    parser.add_argument("--list", action="store_true", help="list the mutants and run none")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (default 1)")
    parser.add_argument("--no-sweep", action="store_true", help="leave out the sweep's points")
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
        cases = chosen(all_cases(), options.patterns, options.kind or ())
        for case in cases:
            mutated(case)
        if options.list:
            rows = [(case.id, case.mutant.kind, case.mutant.breaks, case.mutant.killer) for case in cases]
            print_rows(make_console(), ("variant", "kind", "what is broken", "who should notice"), rows)
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
    print_tables(console, [table(list(lines.values())), by_kind(list(lines.values()))])
    print_unexpected(console, cases, results)
    if unfit:
        whys = (f"{name} does not pass as it is: {one.where!r}: {one.message}" for name, one in unfit.items())
        raise TableError("; ".join(whys) + "; its mutants were left out")
    return BAD if any(map(unexpected, cases, results)) else OK


if __name__ == "__main__":
    sys.exit(main())
