#!/usr/bin/env python3
"""The command line: flags and exit codes. cli/commands.py does the work.

Exit codes: 0 fine, 1 a mismatch, a failed cell or a regression, 2 bad usage, configuration, device or file, or nothing
that could be verified, 3 unsure, 130 interrupted, with everything measured so far kept. docs/configuration.md lists the
causes of each.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn


@dataclass(frozen=True)
class Command:
    """runs: ``module:function`` of cli/, which takes the options and returns the exit code. help: one line.
    examples: arguments of bench.py, each on a line of the command's own help.
    """

    runs: str
    help: str
    examples: tuple[str, ...]
    add_options: Callable[[argparse.ArgumentParser], None]


#: Modules of rooms that add to the instrument.
ROOMS = ("spec_decode_bench.decode_loop.registration",)
#: Every command, in the order of the help.
COMMANDS: dict[str, Command] = {}


def _command(name: str, runs: str, help: str, *examples: str) -> Callable[[Callable], Callable]:
    """Mark the function that adds the options of a command."""

    def mark(add_options: Callable[[argparse.ArgumentParser], None]) -> Callable[[argparse.ArgumentParser], None]:
        COMMANDS[name] = Command(runs, help, examples, add_options)
        return add_options

    return mark


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, as for every other error; argparse prints the whole usage before it."""
        from spec_decode_bench.harness.wording import printable

        self.exit(2, printable(f"error: {message}; see {self.prog} --help") + "\n")


def parser() -> Parser:
    from spec_decode_bench.harness import __version__
    from spec_decode_bench.harness.wording import program

    me = " ".join(program())
    top = Parser(
        prog=me,
        usage=f"{me} CONFIG.yaml [flags]\n       {me} COMMAND ...",
        description="Microbenchmarks of the metadata kernels of speculative decoding.",
        epilog=f"{me} COMMAND --help shows examples and flags of a command.",
        allow_abbrev=False,
    )
    top.add_argument(
        "--version", action="version", version=f"spec-decode-bench {__version__}", help="print the version"
    )
    subparsers = top.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True, prog=me)
    for name, command in COMMANDS.items():
        examples = [f"  {me} {arguments}" for arguments in command.examples]
        command.add_options(
            subparsers.add_parser(
                name,
                help=command.help,
                description="\n".join([command.help, "", *examples]),
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
        )
    return top


CONFIG_HELP = "a YAML file, or the name of one in configs/"


def _config(path: str) -> str:
    from spec_decode_bench.harness.config.load import or_shipped

    return or_shipped(path)


# --- options of each command ------------------------------------------------------------------------------------------


@_command(
    "run",
    "run:run",
    "verify and measure; write record, tables and plots (the default)",
    "configs/mtp3.yaml",
    "configs/mtp3.yaml --variants my_kernel.py --only 'decode_native/*'",
)
def _run_options(run: argparse.ArgumentParser) -> None:
    run.add_argument("configs", metavar="CONFIG", nargs="+", type=_config, help=f"{CONFIG_HELP}; a run for each")
    _add_sweep_options(run)
    _add_baseline(run)
    run.add_argument("--plan", action="store_true", help="print the key of every cell and stop; touches no GPU")
    _add_out(
        run,
        "where record, tables and plots go (default: results/NAME-DEVICE-TIME); of several configurations, into a "
        "folder NAME in it",
    )
    run.add_argument("--resume", metavar="RUN", help="complete an interrupted run: its folder or record")
    _add_no_plots(run)
    run.add_argument("--shard", metavar="I/N", help="measure the I-th of N parts of the sweep; merge joins them")
    run.add_argument(
        "--gpus", metavar="N", help="share the points among several GPUs of this machine: 2, all, or device=0,2"
    )
    run.add_argument(
        "--cluster",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="share the points among the GPUs of a Ray cluster: auto, ray://HOST:PORT, or no address to start Ray here",
    )
    run.add_argument(
        "--accelerators", metavar="MODELS", help="with --cluster: GPU models, such as H100,H200; a record for each"
    )
    run.add_argument(
        "--brief",
        action="store_true",
        help="as one of many processes that are compared: no cross-check of the estimators, no audit; for gate",
    )
    _add_reverify(run)
    run.add_argument(
        "--hold",
        action="store_true",
        help="load everything, then wait for a line on stdin before using the GPU; for gate",
    )


def _add_reverify(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--reverify",
        action="store_true",
        help="verify and audit variants again that passed before; see docs/verification.md",
    )


@_command(
    "verify",
    "commands:verify_command",
    "check variants on many more points; nothing is timed",
    "verify configs/mtp3.yaml",
    "verify --defects",
)
def _verify_options(verify: argparse.ArgumentParser) -> None:
    _add_config(verify, nargs="?")
    _add_sweep_options(verify)
    alone = verify.add_mutually_exclusive_group()
    alone.add_argument(
        "--defects",
        action="store_true",
        help="only the historic defects, of CONFIG's operators or of all, each with the check that rejects it",
    )
    verify.add_argument(
        "--random",
        type=_whole(0, 10**6, "0 to a million"),
        default=25,
        metavar="N",
        help="random batches per variant (default 25; 0: none)",
    )
    alone.add_argument(
        "--consumers",
        action="store_true",
        help="only run the engines' attention kernels on every variant's tables, and compare their results",
    )
    verify.add_argument("--no-array", action="store_true", help="leave out the covering array")
    alone.add_argument("--point", metavar="KEY", help="one variant at one point, as verify or --plan prints it")


@_command(
    "compare",
    "commands:compare_command",
    "faster or slower? two revisions, or two variants, from records",
    "compare base/ head/",
    "compare results/mine --variants mine cuda_fused",
)
def _compare_options(compare: argparse.ArgumentParser) -> None:
    side = "a record (run.jsonl), the folder of a run, or a folder of several: one for each process"
    compare.add_argument("base", metavar="BASE", help=f"the older revision: {side}")
    other = compare.add_mutually_exclusive_group(required=True)
    other.add_argument("head", metavar="HEAD", nargs="?", help="the newer revision, likewise")
    other.add_argument(
        "--variants", nargs=2, metavar=("A", "B"), help="is variant A slower than B in the records of BASE?"
    )
    _add_rule_options(compare)
    _add_only(compare)
    compare.add_argument(
        "--any-config", action="store_true", help="allow different configurations; compare the cells that both have"
    )
    compare.add_argument(
        "--control",
        action="append",
        default=[],
        metavar="GLOB",
        help="cells whose code is the same on both sides: they show whether the machine was steady, and decide nothing",
    )
    compare.add_argument("--html", action="store_true", help="write comparison.html: the terminal's text and the plot")
    compare.add_argument("--json", action="store_true", help="write comparison.json")
    compare.add_argument(
        "--sort", choices=("change", "name", "time"), default="change", help="order of cells with the same verdict"
    )
    _add_out(compare, "where comparison.md and the plot go (default: beside HEAD)")


def _add_rule_options(command: argparse.ArgumentParser) -> None:
    """What counts as a change; regression/comparison.py has the presets."""
    command.add_argument(
        "--preset",
        choices=("strict", "pr", "nightly"),
        default="pr",
        help="threshold, min change and detect: strict 1 %%, 0 µs, 3 %%; pr 2 %%, 0.02 µs, 5 %% (default); "
        "nightly 3 %%, 0.1 µs, 5 %%",
    )
    command.add_argument("--threshold", type=float, metavar="SHARE", help="relative change that matters: 0.02 is 2 %%")
    command.add_argument(
        "--min-change-us", type=float, metavar="US", help="a smaller change, in microseconds, does not fail"
    )
    command.add_argument(
        "--detect", type=float, metavar="SHARE", help="slow-down that would have to be found, else exit code 3"
    )
    command.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="judge this metric: gpu_us (default on a GPU), host_us, eager_us or cpu_us; repeatable",
    )


@_command(
    "gate",
    "commands:gate_command",
    "is this tree slower than REV? measures both in turns until it is sure",
    "gate configs/mtp3.yaml --base main",
    "gate configs/vllm.yaml --upstream vllm --checkout ../vllm --base main --head my-branch",
)
def _gate_options(gate: argparse.ArgumentParser) -> None:
    origin = gate.add_mutually_exclusive_group(required=True)
    _add_config(origin, nargs="?")
    _add_sweep_options(gate)
    gate.add_argument("--base", metavar="REV", help="the revision to compare with: a branch, tag or commit")
    gate.add_argument("--head", metavar="REV", help="the revision to judge (default: the working tree as it stands)")
    gate.add_argument(
        "--upstream",
        metavar="PACKAGE",
        help="gate the kernels of vllm, sglang, …: a REV is a checkout, a wheel or an unpacked one",
    )
    gate.add_argument(
        "--checkout", type=_folder, metavar="PATH", help="with --upstream: a REV may be a revision of this checkout"
    )
    gate.add_argument(
        "--minutes", type=_minutes, default=5.0, metavar="N", help="stop after so many minutes, sure or not (default 5)"
    )
    gate.add_argument(
        "--all", action="store_true", help="measure every cell, also those whose code is the same in both revisions"
    )
    _add_reverify(gate)
    _add_rule_options(gate)
    _add_out(gate, "where records and comparison go (default: results/gate-NAME-TIME)")
    origin.add_argument("--resume", type=_folder, metavar="FOLDER", help="continue an interrupted or undecided gate")
    gate.set_defaults(default_of=gate.get_default)


@_command("merge", "commands:merge_command", "join the shards of a sweep into one run", "merge a/ b/ --out all/")
def _merge_options(merge: argparse.ArgumentParser) -> None:
    merge.add_argument("runs", nargs="+", metavar="RUN", help="records (run.jsonl) or folders of the shards")
    _add_out(merge, "where the merged record, its table and plots go", required=True)
    _add_no_plots(merge)


@_command("plot", "commands:plot_command", "draw all plots of records", "plot results/mtp3")
def _plot_options(plot: argparse.ArgumentParser) -> None:
    plot.add_argument(
        "runs", nargs="+", metavar="RUN", help="records (run.jsonl), folders of one or several, profiles (profile.json)"
    )
    _add_baseline(plot)
    _add_only(plot)
    _add_by(plot)
    _add_out(plot, "where the plots go (default: results/plots)", default=Path("results/plots"))


@_command(
    "report",
    "commands:report_command",
    "GPU models side by side: a column and a panel for each",
    "report h200/full.jsonl h100/full.jsonl",
)
def _report_options(report: argparse.ArgumentParser) -> None:
    report.add_argument(
        "runs", nargs="+", metavar="RECORD", help="records (run.jsonl) or folders of them, of several GPU models"
    )
    report.add_argument(
        "--metric",
        choices=("gpu_us", "host_us", "eager_us"),
        default="gpu_us",
        help="the metric to show (default gpu_us)",
    )
    _add_only(report)
    _add_by(report)
    _add_out(report, "where report.md and plots go (default: results/report)", default=Path("results/report"))
    _add_no_plots(report)


@_command(
    "check-record", "commands:check_record_command", "is this record fit to be committed?", "check-record results/mtp3"
)
def _check_record_options(check: argparse.ArgumentParser) -> None:
    check.add_argument("run", metavar="FILE", help="a record (run.jsonl) or the folder of a run")


def _add_by(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--by", choices=("panel", "gpu"), default="panel", help="a panel per GPU (default), or a colour per GPU"
    )


@_command(
    "export",
    "commands:export_command",
    "CSV for pandas: a row per metric and cell",
    "export results/mtp3 > cells.csv",
)
def _export_options(export: argparse.ArgumentParser) -> None:
    export.add_argument(
        "runs", nargs="+", metavar="RUN", help="records, folders of runs, or folders of several records"
    )
    export.add_argument("--out", type=Path, metavar="FILE", help="where the table goes (default: stdout)")


@_command(
    "history",
    "commands:history_command",
    "where times changed over many commits",
    "history results/nightly --only '*_fused'",
)
def _history_options(history: argparse.ArgumentParser) -> None:
    history.add_argument(
        "runs", nargs="+", metavar="RECORD", help="records, folders of runs, or folders of several records"
    )
    history.add_argument("--metric", metavar="NAME", help="gpu_us (default on a GPU), host_us, eager_us or cpu_us")
    history.add_argument(
        "--threshold", type=float, default=0.02, metavar="SHARE", help="relative change that matters (default 0.02)"
    )
    _add_only(history)
    _add_out(history, "where history.md and the plot go (default: results/history)", default=Path("results/history"))


@_command("list", "commands:list_command", "operators; or all about one of them", "list", "list decode_native")
def _list_options(listing: argparse.ArgumentParser) -> None:
    listing.add_argument(
        "operator", metavar="OPERATOR", nargs="?", help="show its variants, axes, rules, edge cases and checks"
    )
    listing.add_argument("--json", action="store_true", help="print everything as JSON")
    _add_variants(listing)
    _add_device(listing)


@_command(
    "profile",
    "commands:profile_command",
    "kernels, gaps and API calls of each cell, under a profiler",
    "profile configs/smoke.yaml --tool nsys",
)
def _profile_options(profile: argparse.ArgumentParser) -> None:
    _add_config(profile)
    _add_sweep_options(profile)
    profile.add_argument(
        "--tool",
        choices=("nsys", "ncu", "torch", "none"),
        help="Nsight Systems, Nsight Compute, or torch.profiler (default); none: only run the cells, for a profiler "
        "that starts this command",
    )
    profile.add_argument(
        "--calls",
        type=_whole(1, 1000, "1 to 1000"),
        metavar="N",
        help="calls of each cell in each phase (default 10; ncu: 1)",
    )
    profile.add_argument(
        "--phase",
        action="append",
        choices=("eager", "graph"),
        help="eager calls, or replays of a graph of one call; repeatable (default both; ncu: eager)",
    )
    profile.add_argument(
        "--attribute", type=Path, metavar="REPORT", help="attribute a report from elsewhere to cells; runs nothing"
    )
    profile.add_argument("--record", metavar="RUN", help="a measured run of these cells, to show its times, too")
    profile.add_argument("--nsys", metavar="PATH", help="where nsys is, if not in PATH or NVIDIA's folders")
    profile.add_argument("--ncu", metavar="PATH", help="where ncu is, likewise")
    profile.add_argument(
        "--trace", type=Path, metavar="FILE", help="with --tool none: write torch.profiler's trace to FILE"
    )
    _add_out(profile, "where report, tables and timeline go (default: results/profile-NAME-TOOL-TIME)")
    _add_no_plots(profile)


@_command(
    "doctor",
    "commands:doctor_command",
    "is this GPU fit to measure? calibrates the timer and looks for profilers",
    "doctor",
)
def _doctor_options(doctor: argparse.ArgumentParser) -> None:
    _add_out(doctor, "where the record and the calibration plot go (default: not written)")
    _add_device(doctor)


def _whole(least: int, most: int, words: str) -> Callable[[str], int]:
    def number(text: str) -> int:
        # Python converts no text of thousands of digits.
        if not text.isdecimal() or len(text) > 20 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {words}")
        return int(text)

    return number


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


def _add_out(command: argparse._ActionsContainer, meaning: str, **more: Any) -> None:
    command.add_argument("--out", type=_folder, metavar="FOLDER", help=meaning, **more)


def _add_only(command: argparse.ArgumentParser) -> None:
    cells = "keep the cells that match, 'decode_flatten/triton*', or leave them out, '!*/compiled*'; repeatable"
    command.add_argument("--only", action="append", default=[], metavar="GLOB", help=cells)


def _add_no_plots(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-plots", action="store_true", help="write the record and the tables only")


def _add_baseline(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--baseline", metavar="NAME", help="the variant that ratios and deltas refer to, in operators that have it"
    )


def _add_variants(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--variants", action="append", default=[], metavar="FILE", help="a Python file with more variants; repeatable"
    )


def _add_device(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto (default): a GPU where there is one"
    )


def _add_config(command: argparse._ActionsContainer, **more: Any) -> None:
    command.add_argument("config", metavar="CONFIG", type=_config, help=CONFIG_HELP, **more)


def _add_sweep_options(command: argparse.ArgumentParser) -> None:
    _add_only(command)
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace an axis in every grid, batch_size=[1,8], or a key, measure.seed=1; repeatable",
    )
    command.add_argument(
        "--seed",
        type=_whole(0, 2**53, "0 to 2**53"),
        metavar="N",
        help="seed of all random inputs (default: CONFIG's, else a fresh one; in verify always a fresh one)",
    )
    _add_variants(command)
    _add_device(command)


def main(arguments: list[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    before = sys.stdout, sys.stderr
    try:
        from spec_decode_bench.harness.command import streams

        streams.prepare()
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except KeyboardInterrupt:
        from spec_decode_bench.harness.exit_codes import INTERRUPTED

        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ImportError, MemoryError) as error:
        from spec_decode_bench.harness.wording import first_line

        print(f"error: {first_line(error)}; is requirements.txt installed, and enough memory left?", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename == streams.NAME:  # e.g. `> /full/disk`
            sys.stdout.drop()
            print(f"error: cannot write to {streams.NAME}: {error.strerror}", file=sys.stderr)
        elif error.filename is None:  # no file: out of descriptors, or of processes
            print(f"error: {error.strerror}; see the limits of this system with ulimit -a", file=sys.stderr)
        else:  # a path that may not be looked at, or is too long; the commands handle other errors of files
            from spec_decode_bench.harness.wording import printable

            print(printable(f"error: {error.filename} cannot be used: {error.strerror}"), file=sys.stderr)
        return 2
    finally:
        sys.stdout, sys.stderr = before


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] not in COMMANDS and arguments[0] not in ("-h", "--help", "--version"):
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        if near and not Path(_config(arguments[0])).exists():
            print(f"error: no command and no file {arguments[0]!r}; did you mean {near[0]}?", file=sys.stderr)
            return 2
        arguments.insert(0, "run")
    began, top = time.monotonic(), parser()
    options, unknown = top.parse_known_args(arguments)
    options.began = began
    if unknown:
        top.prog = f"{top.prog} {options.command}"  # whose help has the flags
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    from spec_decode_bench.harness.session.interrupt import exit_on_interrupt, signals_interrupt

    with signals_interrupt():
        with exit_on_interrupt():
            if options.command in ("run", "verify") and not getattr(options, "plan", False):
                from spec_decode_bench.harness.session import fork_server
                from spec_decode_bench.harness.timing.gpus import choose_device

                with suppress(OSError, RuntimeError):  # reported where a worker is started, or the device is chosen
                    fork_server.start(choose_device(options.device))  # it loads torch meanwhile
            from spec_decode_bench.harness.lazy_torch import lazy_torch

            with lazy_torch():
                from spec_decode_bench.cli.commands import execute
                from spec_decode_bench.harness import registry

                registry.load(ROOMS)
        return execute(COMMANDS[options.command].runs, options)


if __name__ == "__main__":
    sys.path.insert(0, folder := str(Path(__file__).resolve().parent))  # python -P and -I leave it out
    import spec_decode_bench  # noqa: F401

    sys.path[:] = [entry for entry in sys.path if entry != folder]  # where an engine's `import kernels` would end up
    sys.exit(main())
