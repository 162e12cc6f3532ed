"""What this room adds to the instrument: the section ``engine_plugin:``, its lines, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spec_decode_bench.engine_plugin.configuration import KEY, EnginePlan
from spec_decode_bench.engine_plugin.records import EngineBlock
from spec_decode_bench.harness import registry
from spec_decode_bench.harness.config.load import OF_A_SWEEP, LoadedConfig, Located

if TYPE_CHECKING:
    from rich.console import Console

    from spec_decode_bench.harness.records.schema import Run
    from spec_decode_bench.harness.report.table import Table


def check(file: Located, data: Mapping[str, Any]) -> None:
    if data[KEY] is None:
        raise file.error(KEY, "is empty; give it a mode, or remove it")
    if given := next((name for name in OF_A_SWEEP if name in data), None):
        raise file.error(given, f"a plan for an engine names operators in its stack; drop {given}")


def refuse(source: LoadedConfig, *_: Any) -> Any:
    """An engine runs it, not this suite."""
    raise source.error(KEY, f"runs inside an engine: SPEC_DECODE_BENCH={source.path} vllm serve MODEL")


def show(console: Console, runs: Sequence[Run]) -> list[Table]:
    from spec_decode_bench.engine_plugin.tables import show_blocks

    return [table for run in runs for table in show_blocks(console, run)]


SECTION = registry.Section(
    key=KEY,
    schema=EnginePlan,
    help="What the plugin does inside an engine: capture, check, apply, measure.",
    noun="block",
    item=EngineBlock,
    line=EngineBlock,
    check=check,
    plan=refuse,
    points=lambda items, catalog: [],
    figures=["spec_decode_bench.engine_plugin.plots.engine_arms"],
    without_gpu=refuse,
    show=show,
)
registry.ROOMS[KEY] = __name__
registry.SECTIONS[KEY] = SECTION
