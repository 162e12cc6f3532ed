"""`bench.py run`, the default command: verify and measure."""

from __future__ import annotations

import argparse

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading, start_workers_early

NAME = "run"
HELP = "verify and measure; write record, tables and plots (the default)"
EXAMPLES = (
    "configs/mtp3.yaml",
    "configs/mtp3.yaml --variants my_kernel.py --only 'decode_native/*' --watch",
)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "configs", metavar="CONFIG", nargs="+", type=flags.config, help=f"{flags.CONFIG_HELP}; a run for each"
    )
    flags.add_sweep(parser)
    flags.add_baseline(parser)
    parser.add_argument("--plan", action="store_true", help="print the key of every cell and stop; touches no GPU")
    flags.add_out(
        parser,
        "where record, tables and plots go (default: results/NAME-DEVICE-TIME); of several configurations, into a "
        "folder NAME in it",
    )
    parser.add_argument("--resume", metavar="RUN", help="complete an interrupted run: its folder or record")
    parser.add_argument(
        "--watch", action="store_true", help="stay, and verify and measure again whenever the kernel is saved"
    )
    flags.add_no_plots(parser)
    parser.add_argument("--shard", metavar="I/N", help="measure the I-th of N parts of the sweep; merge joins them")
    parser.add_argument(
        "--gpus", metavar="N", help="share the points among several GPUs of this machine: 2, all, or device=0,2"
    )
    parser.add_argument(
        "--cluster",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="share the points among the GPUs of a Ray cluster: auto, ray://HOST:PORT, or no address to start Ray here",
    )
    parser.add_argument(
        "--accelerators", metavar="MODELS", help="with --cluster: GPU models, such as H100,H200; a record for each"
    )
    parser.add_argument(
        "--brief",
        action="store_true",
        help="as one of many processes that are compared: no cross-check of the estimators, no audit; for gate",
    )
    parser.add_argument(
        "--trust",
        metavar="RUN",
        help="a record of the same files and machine: what passed in it runs no edge case again; see "
        "docs/verification.md",
    )
    parser.add_argument(
        "--until-wrong",
        action="store_true",
        help="verify all new variants before anything is timed; where some are wrong, record these alone; for gate",
    )
    parser.add_argument(
        "--hold",
        action="store_true",
        help="load everything, then wait for a line on stdin before using the GPU; for gate",
    )


def run(options: argparse.Namespace) -> int:
    if not options.plan:
        start_workers_early(options.device)
    with loading():
        from spec_decode_bench.cli.run import run as measure
    return measure(options)
