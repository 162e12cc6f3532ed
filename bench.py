#!/usr/bin/env python3
"""The command line: flags and exit codes. harness/cli/commands.py does the work.

Exit codes: 0 fine, 1 a mismatch, a failed cell or a regression, 2 bad usage, configuration, device or file, 3 unsure,
130 interrupted, with everything measured so far kept. docs/configuration.md lists the causes of each.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn


@dataclass(frozen=True)
class Command:
    """examples: arguments of bench.py -> what they do. The first explanation is shown in the list of commands."""

    examples: dict[str, str]
    add_options: Callable[[argparse.ArgumentParser], None]

    @property
    def help(self) -> str:
        return next(iter(self.examples.values()))


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, as for every other error; argparse prints the whole usage before it."""
        from harness.wording import printable

        self.exit(2, printable(f"error: {message}; see python {self.prog} --help") + "\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from harness import __version__

        print(f"spec-decode-bench {__version__}")
        parser.exit()


def parser() -> Parser:
    lines = [
        f"  python bench.py {arguments:28} {meaning}"
        for command in COMMANDS.values()
        for arguments, meaning in command.examples.items()
    ]
    top = Parser(
        prog="bench.py",
        usage="\n".join(["", *lines]),
        description="Microbenchmarks of the metadata kernels of speculative decoding.",
        epilog="python bench.py COMMAND --help lists the flags of a command, run included.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="bench.py")
    for name, command in COMMANDS.items():
        command.add_options(subparsers.add_parser(name, help=command.help, allow_abbrev=False))
    return top


# --- options of each command ------------------------------------------------------------------------------------------


def _run_options(run: argparse.ArgumentParser) -> None:
    run.add_argument("configs", metavar="CONFIG", nargs="+", help="YAML files, see configs/: a run for each")
    _add_sweep_options(run)
    _add_baseline(run)
    run.add_argument("--plan", action="store_true", help="list the cells and stop; touches no GPU")
    _add_out(
        run,
        "where the record and the plots go (default: results/NAME-DEVICE-TIME); of several configurations, a folder "
        "of each one's name in it",
    )
    _add_no_plots(run)
    run.add_argument("--resume", metavar="RUN", help="complete an interrupted run: its folder or record")
    run.add_argument(
        "--shard", metavar="I/N", help="measure the I-th of N parts of the sweep, e.g. one on each GPU; see merge"
    )
    run.add_argument(
        "--gpus", metavar="N", help="share the points among several GPUs of this machine: 2, all, or device=0,2"
    )
    run.add_argument(
        "--cluster",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="share the points among the GPUs of a Ray cluster: auto, ray://HOST:PORT, or none to start one here",
    )
    run.add_argument(
        "--accelerators", metavar="MODELS", help="with --cluster: GPU models, a record each, such as H100,H200"
    )
    run.add_argument(
        "--verified-by",
        metavar="RUN",
        help="only time what RUN, of the same code, seed and machine, has verified; see docs/ci.md",
    )
    run.add_argument(
        "--hold", action="store_true", help="load everything, then wait for a line on stdin before using the GPU"
    )


def _verify_options(verify: argparse.ArgumentParser) -> None:
    _add_config(verify, nargs="?")
    _add_sweep_options(verify)
    verify.add_argument(
        "--defects",
        action="store_true",
        help="which check rejects which historic defect, of CONFIG's operators or of all",
    )
    verify.add_argument(
        "--random",
        type=_count,
        default=25,
        metavar="N",
        help="random batches for each variant, drawn by --seed (default 25; 0: none)",
    )
    verify.add_argument(
        "--consumers",
        action="store_true",
        help="only run the engines' attention kernels on every variant's tables, and compare their results",
    )
    verify.add_argument("--no-capacity", action="store_true", help="leave out the points at capacity")
    verify.add_argument(
        "--point", metavar="KEY", help="one variant at one point only, named as verify or --plan prints it"
    )


def _compare_options(compare: argparse.ArgumentParser) -> None:
    side = "a record (run.jsonl), the folder of a run, or a folder of several: one for each process"
    compare.add_argument("base", metavar="BASE", help=f"the older code: {side}")
    compare.add_argument("head", metavar="HEAD", nargs="?", help="the newer code, likewise")
    compare.add_argument(
        "--variants", nargs=2, metavar=("A", "B"), help="compare variant A with variant B of the records of BASE"
    )
    _add_rule_options(compare)
    _add_only(compare)
    compare.add_argument(
        "--any-config", action="store_true", help="compare the cells in common of different configurations"
    )
    compare.add_argument("--html", action="store_true", help="write comparison.html, one page that works offline")
    compare.add_argument("--json", action="store_true", help="write comparison.json, everything for programs")
    compare.add_argument(
        "--sort", choices=("change", "name", "time"), default="change", help="order of cells with the same verdict"
    )
    _add_out(compare, "where comparison.md and the plot go (default: beside HEAD)")


def _add_rule_options(command: argparse.ArgumentParser) -> None:
    """What counts as a change; harness/analysis/compare.py has the presets."""
    command.add_argument(
        "--preset",
        choices=("strict", "pr", "nightly"),
        default="pr",
        help="threshold, floor and detect: strict 1 %%, 0 µs, 3 %%; pr 2 %%, 0.02 µs, 5 %% (default); nightly 3 %%, "
        "0.1 µs, 5 %%",
    )
    command.add_argument("--threshold", type=float, metavar="SHARE", help="relative change that matters: 0.02 is 2 %%")
    command.add_argument("--floor-us", type=float, metavar="US", help="a change of fewer microseconds does not fail")
    command.add_argument(
        "--detect", type=float, metavar="SHARE", help="slow-down that must be detectable, else exit code 3"
    )
    command.add_argument(
        "--figure", action="append", metavar="NAME", help="gate on this figure: gpu_us, host_us, eager_us or cpu_us"
    )


def _gate_options(gate: argparse.ArgumentParser) -> None:
    _add_config(gate, nargs="?")
    _add_sweep_options(gate)
    gate.add_argument("--base", metavar="REV", help="the revision to compare with: a branch, tag or commit")
    gate.add_argument("--head", metavar="REV", help="the revision to judge (default: the working tree as it stands)")
    gate.add_argument(
        "--minutes", type=_minutes, default=5.0, metavar="N", help="stop after this long, sure or not (default 5)"
    )
    _add_rule_options(gate)
    _add_out(gate, "where records and comparison go (default: results/gate-NAME-TIME)")
    gate.add_argument("--resume", type=_folder, metavar="FOLDER", help="continue an interrupted or undecided gate")


def _merge_options(merge: argparse.ArgumentParser) -> None:
    merge.add_argument("runs", nargs="+", metavar="RUN", help="records (run.jsonl) or folders of the shards")
    _add_out(merge, "where the merged record, its table and plots go", required=True)
    _add_no_plots(merge)


def _plot_options(plot: argparse.ArgumentParser) -> None:
    plot.add_argument(
        "runs", nargs="+", metavar="RUN", help="records (run.jsonl), folders of one or several, profiles (profile.json)"
    )
    _add_baseline(plot)
    _add_only(plot)
    _add_by(plot)
    _add_out(plot, "default: results/plots", default=Path("results/plots"))


def _report_options(report: argparse.ArgumentParser) -> None:
    report.add_argument(
        "runs", nargs="+", metavar="RECORD", help="records (run.jsonl) or folders of them, of several GPU models"
    )
    report.add_argument(
        "--figure", choices=("gpu_us", "host_us", "eager_us"), default="gpu_us", help="what to table (default gpu_us)"
    )
    _add_only(report)
    _add_by(report)
    _add_out(report, "where report.md and plots go (default: results/report)", default=Path("results/report"))
    _add_no_plots(report)


def _check_record_options(check: argparse.ArgumentParser) -> None:
    check.add_argument("run", metavar="FILE", help="a record (run.jsonl) or the folder of a run")


def _add_by(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--by", choices=("panel", "gpu"), default="panel", help="a panel per GPU (default), or a colour per GPU"
    )


def _export_options(export: argparse.ArgumentParser) -> None:
    export.add_argument(
        "runs", nargs="+", metavar="RUN", help="records, folders of runs, or folders of several records"
    )
    form = export.add_mutually_exclusive_group(required=True)
    form.add_argument("--csv", action="store_true", help="text, to stdout unless --out names a file")
    form.add_argument("--parquet", action="store_true", help="into --out; needs pyarrow")
    export.add_argument("--out", type=Path, metavar="FILE", help="where the table goes")


def _history_options(history: argparse.ArgumentParser) -> None:
    history.add_argument(
        "runs", nargs="+", metavar="RECORD", help="records, folders of runs, or folders of several records"
    )
    history.add_argument("--figure", metavar="NAME", help="gpu_us (default on a GPU), host_us, eager_us or cpu_us")
    history.add_argument(
        "--threshold", type=float, default=0.02, metavar="SHARE", help="relative change that matters (default 0.02)"
    )
    _add_only(history)
    _add_out(history, "where history.md and the plot go (default: results/history)", default=Path("results/history"))


def _list_options(listing: argparse.ArgumentParser) -> None:
    listing.add_argument("operator", metavar="OPERATOR", nargs="?", help="show all that belongs to one operator")
    listing.add_argument("--json", action="store_true", help="everything, for programs")
    _add_variants(listing)
    _add_device(listing)


def _profile_options(profile: argparse.ArgumentParser) -> None:
    _add_config(profile)
    _add_sweep_options(profile)
    profile.add_argument(
        "--tool",
        choices=("nsys", "ncu", "torch", "none"),
        help="Nsight Systems, Nsight Compute, or torch.profiler (default), which needs no installation; none: only run "
        "the cells, for a profiler that starts this command",
    )
    profile.add_argument("--calls", type=_calls, metavar="N", help="of each cell in each phase (default 10; ncu: 1)")
    profile.add_argument(
        "--phase",
        action="append",
        choices=("eager", "graph"),
        help="calls, or replays of a graph of one call; repeatable (default both; ncu: eager)",
    )
    profile.add_argument("--attribute", type=Path, metavar="REPORT", help="a report from elsewhere; runs nothing")
    profile.add_argument("--record", metavar="RUN", help="a run of these cells, whose times stand beside the profile's")
    profile.add_argument("--nsys", metavar="PATH", help="where nsys is, if neither in PATH nor in NVIDIA's folders")
    profile.add_argument("--ncu", metavar="PATH", help="where ncu is, likewise")
    profile.add_argument("--trace", type=Path, metavar="FILE", help="with --tool none: torch.profiler's trace")
    _add_out(profile, "where report, tables and timeline go (default: results/profile-NAME-TOOL-TIME)")
    _add_no_plots(profile)


def _doctor_options(doctor: argparse.ArgumentParser) -> None:
    _add_out(doctor, "where the record and the calibration plot go (default: nowhere)")
    _add_device(doctor)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > 2**53:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2**53")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to a million")
    return int(text)


def _calls(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000")
    return int(text)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 24 * 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes, more than 0 and at most a day")
    return minutes


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("names no folder")
    return Path(text)


def _add_out(command: argparse.ArgumentParser, meaning: str, **more: Any) -> None:
    command.add_argument("--out", type=_folder, metavar="FOLDER", help=meaning, **more)


def _add_only(command: argparse.ArgumentParser) -> None:
    cells = "cells to keep, 'decode_flatten/triton*', or to leave out, '!*/compiled*'; repeatable"
    command.add_argument("--only", action="append", default=[], metavar="GLOB", help=cells)


def _add_no_plots(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-plots", action="store_true", help="write the record and the tables only")


def _add_baseline(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--baseline", metavar="NAME", help="the variant that ratios and deltas refer to, of the operators that have it"
    )


def _add_variants(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--variants", action="append", default=[], metavar="FILE", help="a Python file with more variants; repeatable"
    )


def _add_device(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU where there is one"
    )


def _add_config(command: argparse.ArgumentParser, **more: Any) -> None:
    command.add_argument("config", metavar="CONFIG", help="a YAML file, see configs/", **more)


def _add_sweep_options(command: argparse.ArgumentParser) -> None:
    _add_only(command)
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an axis in every grid, or a key: measure.seed=1",
    )
    command.add_argument(
        "--seed", type=_seed, metavar="N", help="of the random inputs (default: a fresh one, recorded)"
    )
    _add_variants(command)
    _add_device(command)


#: Every command, in the order of the help. A new one is a line here and a function NAME_command in
#: harness/cli/commands.py.
COMMANDS = {
    "run": Command({"configs/mtp3.yaml": "verify, measure, record, tables, plots (the default)"}, _run_options),
    "verify": Command(
        {
            "verify configs/mtp3.yaml": "checks on many more points; nothing is timed",
            "verify --defects": "which check rejects which historic defect",
        },
        _verify_options,
    ),
    "compare": Command(
        {
            "compare BASE HEAD": "several runs a side: verdicts, markdown, plot, page",
            "compare RUN --variants A B": "two variants of the same runs",
        },
        _compare_options,
    ),
    "gate": Command(
        {"gate CONFIG --base REV": "is this tree slower than REV? in turns, until sure"},
        _gate_options,
    ),
    "merge": Command({"merge RUN RUN ... --out DIR": "the shards of a sweep as one run"}, _merge_options),
    "plot": Command({"plot RUN [RUN ...]": "all figures from records"}, _plot_options),
    "report": Command(
        {"report RECORD RECORD ...": "several GPU models: a column and a panel for each"}, _report_options
    ),
    "check-record": Command({"check-record FILE": "is this record fit to be committed?"}, _check_record_options),
    "export": Command({"export RUN --csv": "a table for pandas: a row per figure and cell"}, _export_options),
    "history": Command({"history RECORD ...": "times over commits: changes, markdown, plot"}, _history_options),
    "list": Command(
        {"list": "the operators", "list decode_native": "its variants, axes, rules and hard points"}, _list_options
    ),
    "profile": Command({"profile CONFIG --tool nsys": "kernels, gaps and API calls of each cell"}, _profile_options),
    "doctor": Command({"doctor": "calibrate the timer and print its errors"}, _doctor_options),
}


def main(arguments: list[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    before = sys.stdout, sys.stderr
    try:
        from harness.cli import streams

        streams.prepare()
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except KeyboardInterrupt:
        from harness.exit_codes import INTERRUPTED

        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ImportError, MemoryError) as error:
        from harness.wording import first_line

        print(f"error: {first_line(error)}; is requirements.txt installed, and enough memory left?", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename == streams.NAME:  # e.g. `> /full/disk`
            sys.stdout.drop()
            print(f"error: cannot write to {streams.NAME}: {error.strerror}", file=sys.stderr)
        else:  # a path that may not be looked at, or is too long; the commands handle other errors of files
            from harness.wording import printable

            print(printable(f"error: {error.filename} cannot be used: {error.strerror}"), file=sys.stderr)
        return 2
    finally:
        sys.stdout, sys.stderr = before


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] not in COMMANDS and arguments[0] not in ("-h", "--help", "--version"):
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        if near and not Path(arguments[0]).exists():
            print(f"error: no command and no file {arguments[0]!r}; did you mean {near[0]}?", file=sys.stderr)
            return 2
        arguments.insert(0, "run")
    options = parser().parse_args(arguments)
    from harness.runner.interrupt import exit_on_interrupt, signals_interrupt

    with signals_interrupt():
        with exit_on_interrupt():
            if options.command in ("run", "verify") and not getattr(options, "plan", False):
                from harness.runner import fork_server

                with suppress(OSError):  # reported where a worker is started
                    fork_server.start()  # it loads torch meanwhile
            from harness.cli import commands
        return commands.execute(options)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))  # python -P and -I leave it out
    sys.exit(main())
