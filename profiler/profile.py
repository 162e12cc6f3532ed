"""`bench.py profile`: run cells under a profiler, and attribute what it found to them."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from msgspec import structs
from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness.command.handling import program
from spec_decode_bench.harness.command.recording import command_line, new_folder
from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.config.work_items import Task, keys_of
from spec_decode_bench.harness.discover import ROOT, Catalog
from spec_decode_bench.harness.errors import UsageError, did_you_mean
from spec_decode_bench.harness.exit_codes import BAD, OK
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.schema import RecordError, Run
from spec_decode_bench.harness.report.console import print_tables
from spec_decode_bench.harness.report.table import refuse_foreign_table, write_tables
from spec_decode_bench.harness.session.interrupt import end_groups
from spec_decode_bench.harness.session.sources import source_hashes
from spec_decode_bench.profiler import chrome_trace, ncu, nsys, tools
from spec_decode_bench.profiler.attribution import attribute
from spec_decode_bench.profiler.records import (
    PHASES,
    PROFILE,
    PROFILE_VERSION,
    SESSION,
    Profile,
    Session,
    read_document,
    write_document,
)
from spec_decode_bench.profiler.tables import profile_tables, summary
from spec_decode_bench.profiler.trace import ReportError, Trace

#: Calls of a cell in each phase. Nsight Compute repeats every kernel itself, and a second call tells nothing new.
CALLS, CALLS_NCU = 10, 1
#: Folder in the folder of a profile for files that are not complete yet.
PARTIAL = "incomplete"
#: What the profiler and the profiled process print.
LOG = "profiler.log"
#: Tool -> the file that is attributed.
REPORTS = {"nsys": "report.sqlite", "ncu": "report.csv", "torch": "trace.json.gz"}
#: End of a file's name -> the tool that wrote it.
_SUFFIXES = {".sqlite": "nsys", ".nsys-rep": "nsys", ".csv": "ncu", ".ncu-rep": "ncu", ".json": "torch", ".gz": "torch"}
#: Seconds that a profiler gets to end by itself after an interruption.
_END_LIMIT_S = 10.0


class ProfileError(UsageError):
    """A tool cannot be used; the message says why, with the remedy."""


class ToolFailed(Exception):
    """A tool, or the process that it profiled, ended with an error."""


@dataclass(frozen=True)
class Request:
    """A profile to make.

    tool:   "nsys", "ncu", "torch" or "none".
    choice: the flags that choose the cells, for a command of the same ones. variant_files: of --variants.
    out:    its folder.
    given:  --nsys or --ncu.
    """

    tool: str
    name: str
    config: str
    choice: Sequence[str]
    variant_files: Sequence[str]
    items: Sequence[Task]
    catalog: Catalog
    device: str
    seed: int
    calls: int
    phases: tuple[str, ...]
    out: Path
    no_plots: bool
    given: str | None = None


def request_of(
    options: argparse.Namespace,
    name: str,
    items: Sequence[Task],
    catalog: Catalog,
    device: str,
    seed: int,
    tool: str,
) -> Request:
    """Raises ConfigError."""
    calls = options.calls or (CALLS_NCU if tool == "ncu" else CALLS)
    # The kernels of a replay are those of a call, so that Nsight Compute looks at calls only, unless asked to.
    wanted = options.phase or (PHASES[:1] if tool == "ncu" else PHASES)
    out = options.out or new_folder(f"profile-{name}-{tool}")
    for file in (PROFILE, SESSION):
        if (out / file).exists():
            raise ConfigError(f"{out} holds a profile already; choose another folder with --out")
    flags = (("--only", options.only), ("--set", options.set), ("--variants", options.variants))
    choice = [word for flag, values in flags for value in values for word in (flag, value)]
    given = {"nsys": options.nsys, "ncu": options.ncu}.get(tool)
    phases = tuple(phase for phase in PHASES if phase in wanted)
    return Request(
        tool,
        name,
        options.config,
        choice,
        options.variants,
        items,
        catalog,
        device,
        seed,
        calls,
        phases,
        out,
        options.no_plots,
        given,
    )


# --- the profiled process ---------------------------------------------------------------------------------------------


def run_workload(console: Console, request: Request, trace: Path | None) -> int:
    """``--tool none``: run the cells, for a profiler that started this process or, with ``trace``, for torch's."""
    from spec_decode_bench.profiler.workload import Workload, run_traced, session_of

    workload = Workload(request.items, request.catalog, request.device, request.seed, request.phases)
    if not workload.cells:
        key, reason = next(iter({**workload.failed, **workload.left_out}.items()))
        raise ProfileError(f"no cell can be profiled; {key}: {reason}")
    if trace is None:
        workload.run(request.calls)
    else:
        run_traced(workload, request.calls, trace)
    sources = source_hashes(request.items, request.catalog, request.variant_files)
    session = session_of(workload, request.name, command_line(), request.seed, request.calls, request.device, sources)
    request.out.mkdir(parents=True, exist_ok=True)
    write_document(session, request.out / SESSION)
    times = counted(request.calls, "call")
    console.print(Text(f"{counted(len(session.cells), 'cell')} ran, {times} in each phase; {session.nvtx}"))
    return OK


# --- the profiler -----------------------------------------------------------------------------------------------------


def workload_command(request: Request, out: Path, python: str) -> list[str]:
    """Of the process to be profiled: this command with ``--tool none`` and the same inputs."""
    script = ROOT / "bench.py"
    shown = min(str(script), os.path.relpath(script), key=len)
    words = [python, shown, "profile", request.config, "--tool", "none", "--out", str(out)]
    words += ["--seed", str(request.seed), "--calls", str(request.calls), "--device", request.device]
    for phase in request.phases if request.phases != PHASES else ():
        words += ["--phase", phase]
    return [*words, *request.choice]


def make_profile(console: Console, request: Request, record: Run | None) -> int:
    """Run the tool, attribute its report, write and show the profile."""
    tool = tools.find(request.tool, request.given) if request.tool in tools.PROFILERS else None
    if request.tool != "torch" and request.device == "cpu":
        name = tools.NAMES[request.tool]
        _print_elsewhere(console, request)
        raise ProfileError(f"no GPU here for {name} to profile; --tool torch works without one")
    if tool is not None and tool.problem:
        _print_elsewhere(console, request)
        raise ProfileError(tool.complaint)
    if tool is not None and tool.name == "ncu" and (refused := tools.counters_refused()):
        raise ProfileError(refused)
    refuse_foreign_table(request.out)
    partial = request.out / PARTIAL
    partial.mkdir(parents=True, exist_ok=True)
    workload = workload_command(request, partial, sys.executable)
    report = partial / "report"
    with open(partial / LOG, "w", encoding="utf-8") as log:
        if tool is None:
            trace = partial / REPORTS["torch"]
            _run(console, [*workload, "--trace", str(trace)], log)
        else:
            profile_command = nsys.profile_command if tool.name == "nsys" else ncu.profile_command
            _run(console, profile_command(tool.path, report, workload), log)
            _export(console, tool, report.with_suffix(f".{tool.name}-rep"), partial / REPORTS[tool.name], log)
    session = read_document(partial / SESSION, Session)
    version = tool.version if tool else session.environment.torch
    profile = attributed(request, partial / REPORTS[request.tool], session, version)
    for file in sorted(partial.iterdir()):
        os.replace(file, request.out / file.name)
    partial.rmdir()
    return publish(console, request, profile, record)


def attribute_report(console: Console, request: Request, path: Path, record: Run | None) -> int:
    """``--attribute``: a report that a tool wrote elsewhere. Raises ReportError, ProfileError."""
    if path.suffix in (".nsys-rep", ".ncu-rep"):
        path = _exported(console, request, path)
    beside = path.with_name(SESSION)
    session = read_document(beside, Session) if beside.is_file() else None
    profile = attributed(request, path, session, "")
    return publish(console, request, profile, record)


def tool_of(path: Path) -> str:
    """By a file's name. Raises ConfigError."""
    if path.suffix not in _SUFFIXES:
        raise ConfigError(
            f"--attribute {path}: a report ends in .sqlite (nsys), .csv (ncu), .json or .json.gz (torch)"
            f"{did_you_mean(path.suffix, list(_SUFFIXES))}"
        )
    return _SUFFIXES[path.suffix]


def _exported(console: Console, request: Request, path: Path) -> Path:
    """The SQLite or CSV of a tool's own report, beside the profile."""
    tool = tools.find(request.tool, request.given)
    target = request.out / REPORTS[request.tool]
    if tool.problem:
        if tool.name == "nsys":
            command = shlex.join(nsys.export_command(tool.name, path, Path(target.name)))
        else:
            command = f"{shlex.join(ncu.export_command(tool.name, path))} > {target.name}"
        raise ProfileError(f"{tool.complaint}; or export it where {tool.name} is: {command}")
    if not path.is_file():
        raise ReportError(f"cannot read {path}: no such file")
    request.out.mkdir(parents=True, exist_ok=True)
    with open(request.out / LOG, "w", encoding="utf-8") as log:
        _export(console, tool, path, target, log)
    return target


def _export(console: Console, tool: tools.Tool, report: Path, target: Path, log: TextIO) -> None:
    """A tool's own report as SQLite or CSV."""
    if tool.name == "nsys":
        _run(console, nsys.export_command(tool.path, report, target), log)
    else:
        with open(target, "w", encoding="utf-8") as page:
            _run(console, ncu.export_command(tool.path, report), log, page)


def _print_elsewhere(console: Console, request: Request) -> None:
    """How to make the report on another machine and bring it back."""
    folder = Path("profiled")
    workload = workload_command(request, folder, "python")
    workload[workload.index("--device") + 1] = "auto"
    report, target = folder / "report", folder / REPORTS[request.tool]
    if request.tool == "nsys":
        profile = nsys.profile_command("nsys", report, workload)
        export = shlex.join(nsys.export_command("nsys", report.with_suffix(".nsys-rep"), target))
    else:
        profile = ncu.profile_command("ncu", report, workload)
        export = f"{shlex.join(ncu.export_command('ncu', report.with_suffix('.ncu-rep')))} > {target}"
    back = [*program(), "profile", request.config, "--attribute", str(target), *request.choice]
    console.print(Text(f"where a GPU and {tools.NAMES[request.tool]} are, in a checkout of this suite:"))
    for line in (f"mkdir {folder}", shlex.join(profile), export):
        console.print(Text(f"    {line}"), soft_wrap=True)
    console.print(Text(f"and with the folder {folder} brought back:"))
    console.print(Text(f"    {shlex.join(back)}"), soft_wrap=True)


def _run(console: Console, command: Sequence[str], log: TextIO, page: TextIO | None = None) -> None:
    """Run a command, which is shown; what it prints goes into the log, or its standard output into ``page``.

    Raises ToolFailed.
    """
    console.print(Text(f"$ {shlex.join(command)}"), soft_wrap=True)
    log.write(f"$ {shlex.join(command)}\n")
    log.flush()
    began = log.tell()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=page or log, stderr=log if page else subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        code = process.wait()
    except BaseException:
        end_groups([process], _END_LIMIT_S)  # the profiler with the process that it profiles
        raise
    if code:
        with open(log.name, encoding="utf-8", errors="replace") as written:
            written.seek(began)
            output = written.read()
        if page is not None:
            output += Path(page.name).read_text(encoding="utf-8", errors="replace")
        raise ToolFailed(f"{_why(Path(command[0]).name, code, output)}; all that was printed: {log.name}")


def _why(tool: str, code: int, output: str) -> str:
    """What the profiled process said, which is this suite, else how the tool ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = ncu.problem_in(output)
    if reason is None and (said := [line for line in lines if line.startswith("error: ")]):
        return said[-1].removeprefix("error: ")
    ended = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
    return f"{tool} {ended}: {reason or (lines[-1] if lines else 'it printed nothing')}"


# --- the profile ------------------------------------------------------------------------------------------------------


def attributed(request: Request, path: Path, session: Session | None, version: str) -> Profile:
    """Raises ReportError, for a report of other cells too."""
    keys = keys_of(request.items)
    profile = Profile(
        version=PROFILE_VERSION,
        tool=request.tool,
        tool_version=version,
        name=request.name,
        command=command_line(),
        session=session,
    )
    if request.tool == "ncu":
        counters = ncu.read(path, keys)
        if not counters:
            raise ReportError(f"{path} holds no kernel of a cell of {request.config}; is it of another configuration?")
        return structs.replace(profile, counters=counters)
    trace: Trace = nsys.read(path) if request.tool == "nsys" else chrome_trace.read(path)
    planned = set(keys)
    kept = [span for span in trace.ranges if span.name in planned]
    if not kept:
        others = next((span.name for span in trace.ranges), None)
        has = f"; it has {others}" if others else ""
        raise ReportError(f"{path} holds no cell of {request.config}{has}: give the configuration that it was made of")
    trace.ranges = kept
    found = attribute(trace)
    return structs.replace(
        profile,
        tool_version=version or trace.tool_version,
        rows=found.rows,
        share=found.share,
        outside=found.outside,
        steps=found.steps,
    )


def publish(console: Console, request: Request, profile: Profile, record: Run | None) -> int:
    """Write profile.json, table.md and the timeline; show tables and shares; the exit code."""
    out = request.out
    out.mkdir(parents=True, exist_ok=True)
    write_document(profile, out / PROFILE)
    tables = profile_tables(profile, record)
    print_tables(console, tables)
    console.print()
    lines = summary(profile)
    for line in lines:
        console.print(Text(line))
    write_tables(out, tables, below="\n" + "\n\n".join(lines) + "\n")
    drawn = []
    if not request.no_plots and profile.steps:
        from spec_decode_bench.profiler.plots.step_timeline import TIMELINE, draw

        drawn = draw(profile, out / TIMELINE)
    console.print(Text(f"profile, table{' and timeline' if drawn else ''}: {out}"))
    failed = profile.session is not None and bool(profile.session.failed)
    return BAD if failed else OK


def check_record(record: Run, keys: Sequence[str]) -> None:
    """Raises RecordError where a record has none of the cells."""
    if not {cell.key for cell in record.cells} & set(keys):
        raise RecordError(f"{record.path} has none of these cells; give a record of the same configuration")
