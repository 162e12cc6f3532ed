"""Flags that several commands share, and the types of their values. Light, as every command's parser uses it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

CONFIG_HELP = "a YAML file, or the name of one in configs/"


# --- values -----------------------------------------------------------------------------------------------------------


def config(text: str) -> str:
    """The path of a configuration, or of the shipped one of that name."""
    from spec_decode_bench.harness.config.load import or_shipped

    return or_shipped(text)


def folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("names no folder")
    return Path(text)


def whole(least: int, most: int, words: str) -> Callable[[str], int]:
    """Whole numbers in a range; words: the range."""

    def number(text: str) -> int:
        # Python converts no text of thousands of digits.
        if not text.isdecimal() or len(text) > 20 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {words}")
        return int(text)

    return number


def minutes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 24 * 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes, more than 0 and at most a day")
    return number


# --- flags ------------------------------------------------------------------------------------------------------------


def add_config(parser: argparse._ActionsContainer, nargs: str | None = None) -> None:
    parser.add_argument("config", metavar="CONFIG", type=config, help=CONFIG_HELP, nargs=nargs)


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """What chooses cells and their inputs, for commands that take a configuration."""
    add_only(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace an axis in every grid, batch_size=[1,8], or a key, measure.seed=1; repeatable",
    )
    parser.add_argument(
        "--seed",
        type=whole(0, 2**53, "0 to 2**53"),
        metavar="N",
        help="seed of all random inputs (default: CONFIG's, else a fresh one; in verify always a fresh one)",
    )
    add_variants(parser)
    add_device(parser)


def add_only(parser: argparse.ArgumentParser) -> None:
    cells = "keep the cells that match, 'OPERATOR/triton*', or leave them out, '!*/compiled*'; repeatable"
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help=cells)


def add_variants(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variants", action="append", default=[], metavar="FILE", help="a Python file with more variants; repeatable"
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto (default): a GPU where there is one"
    )


def add_baseline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--baseline", metavar="NAME", help="the variant that ratios and deltas refer to, in operators that have it"
    )


def add_out(
    parser: argparse._ActionsContainer, meaning: str, default: Path | None = None, required: bool = False
) -> None:
    parser.add_argument("--out", type=folder, metavar="FOLDER", help=meaning, default=default, required=required)


def add_no_plots(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-plots", action="store_true", help="write the record and the tables only")


def add_by(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by", choices=("panel", "gpu"), default="panel", help="a panel per GPU (default), or a colour per GPU"
    )
