"""`bench.py list`: what there is to measure."""

from __future__ import annotations

import argparse

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading

NAME = "list"
HELP = "operators; all about one of them; or what a capture file holds"
EXAMPLES = ("list", "list decode_native", "list configs/captures/llama_eagle.capture")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "operator",
        metavar="OPERATOR",
        nargs="?",
        help="show its variants, axes, rules, edge cases and checks; of a capture file, its entries",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    flags.add_variants(parser)
    flags.add_device(parser)


def run(options: argparse.Namespace) -> int:
    with loading():
        from spec_decode_bench.harness.command.planning import prepare
        from spec_decode_bench.harness.config.captured import is_capture
        from spec_decode_bench.harness.config.load import ConfigError
        from spec_decode_bench.harness.errors import did_you_mean
        from spec_decode_bench.harness.exit_codes import OK
        from spec_decode_bench.harness.report.console import make_console
        from spec_decode_bench.harness.report.listing import (
            listed_capture,
            listed_console,
            listed_json,
            listed_operator,
        )

    device, catalog = prepare(options)
    name = options.operator
    if name is not None and (name.endswith(".capture") or is_capture(name)):
        listed_capture(make_console(), catalog, name)
        return OK
    if name is not None and name not in catalog.operators:
        raise ConfigError(f"list: no operator {name!r}{did_you_mean(name, list(catalog.operators))}")
    if options.json:
        print(listed_json(catalog, device))
    elif name is not None:
        listed_operator(make_console(), catalog, catalog.operators[name], device)
    else:
        listed_console(make_console(), catalog, device)
    return OK
