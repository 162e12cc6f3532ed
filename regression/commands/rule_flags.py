"""Flags of what counts as a change; ``comparing.rule_of`` reads them, ``comparison.PRESETS`` has the presets."""

from __future__ import annotations

import argparse


def add_rule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset",
        choices=("strict", "pr", "nightly"),
        default="pr",
        help="threshold, min change and detect: strict 1 %%, 0 µs, 3 %%; pr 2 %%, 0.02 µs, 5 %% (default); "
        "nightly 3 %%, 0.1 µs, 5 %%",
    )
    parser.add_argument("--threshold", type=float, metavar="SHARE", help="relative change that matters: 0.02 is 2 %%")
    parser.add_argument(
        "--min-change-us", type=float, metavar="US", help="a smaller change, in microseconds, does not fail"
    )
    parser.add_argument(
        "--detect", type=float, metavar="SHARE", help="slow-down that would have to be found, else exit code 3"
    )
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="judge this metric: gpu_us (default on a GPU), host_us, eager_us or cpu_us; repeatable",
    )
