"""`bench.py gate`: two revisions, measured in turns and compared."""

from __future__ import annotations

import argparse

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading
from spec_decode_bench.regression.commands.rule_flags import add_rule

NAME = "gate"
HELP = "is this tree slower than REV? measures both in turns until it is sure"
EXAMPLES = (
    "gate configs/mtp3.yaml --base main",
    "gate configs/vllm.yaml --upstream vllm --checkout ../vllm --base main --head my-branch",
)
#: What may differ from its default beside --resume: these say nothing of what is measured.
BESIDE_RESUME = {"command", "config", "resume", "minutes", "began", "default_of"}


def add(parser: argparse.ArgumentParser) -> None:
    origin = parser.add_mutually_exclusive_group(required=True)
    flags.add_config(origin, nargs="?")
    flags.add_sweep(parser)
    parser.add_argument("--base", metavar="REV", help="the revision to compare with: a branch, tag or commit")
    parser.add_argument("--head", metavar="REV", help="the revision to judge (default: the working tree as it stands)")
    parser.add_argument(
        "--upstream",
        metavar="PACKAGE",
        help="gate the kernels of vllm, sglang, …: a REV is a checkout, a wheel or an unpacked one",
    )
    parser.add_argument(
        "--checkout",
        type=flags.folder,
        metavar="PATH",
        help="with --upstream: a REV may be a revision of this checkout",
    )
    parser.add_argument(
        "--minutes",
        type=flags.minutes,
        default=5.0,
        metavar="N",
        help="stop after so many minutes, sure or not (default 5)",
    )
    parser.add_argument(
        "--gpus", metavar="N", help="run both processes of a pair at once, on two GPUs: 2, or device=0,2"
    )
    parser.add_argument(
        "--all", action="store_true", help="measure every cell, also those whose code is the same in both revisions"
    )
    add_rule(parser)
    flags.add_out(parser, "where records and comparison go (default: results/gate-NAME-TIME)")
    origin.add_argument(
        "--resume", type=flags.folder, metavar="FOLDER", help="continue an interrupted or undecided gate"
    )
    parser.set_defaults(default_of=parser.get_default)


def run(options: argparse.Namespace) -> int:
    with loading():
        from spec_decode_bench.harness.command.planning import load_config, writing_to
        from spec_decode_bench.harness.config.load import ConfigError
        from spec_decode_bench.harness.exit_codes import INTERRUPTED, OK
        from spec_decode_bench.harness.report.console import make_console, print_to_stderr
        from spec_decode_bench.regression.comparing import publish
        from spec_decode_bench.regression.gate import begin, resume, resume_command

    console = make_console()
    if options.resume is not None:
        given = (name for name, value in vars(options).items() if value != options.default_of(name))
        if not BESIDE_RESUME.issuperset(given):
            raise ConfigError("gate --resume FOLDER goes on as it was begun; only --minutes can be given beside it")
        gate = resume(options.resume, console)
    elif options.checkout is not None and options.upstream is None:
        raise ConfigError("--checkout belongs to --upstream PACKAGE, such as --upstream vllm")
    elif options.base is None:
        raise ConfigError("gate needs a revision to compare with, such as --base main")
    else:
        gate = begin(options, load_config(options, options.config), console)
    try:
        if not gate.measure(options.minutes):
            return OK
        comparison = gate.comparison()
    except KeyboardInterrupt:
        kept = f": what is complete is kept in {gate.folder}; continue with {resume_command(gate.folder)}"
        print_to_stderr(f"interrupted{kept if gate.has_begun else ''}")
        return INTERRUPTED
    with writing_to(gate.folder):
        return publish(console, comparison, gate.folder, html=True, json=True)
