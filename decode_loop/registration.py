"""What this room adds to the instrument: the section ``decode_loop:``, its work items, lines, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spec_decode_bench.decode_loop.configuration import DecodeLoop
from spec_decode_bench.decode_loop.engine_state import LoopBinding
from spec_decode_bench.decode_loop.items import LoopItem
from spec_decode_bench.decode_loop.records import Loop
from spec_decode_bench.harness import registry
from spec_decode_bench.harness.config.load import OF_A_SWEEP, LoadedConfig, Located

if TYPE_CHECKING:
    from rich.console import Console

    from spec_decode_bench.harness.config.work_items import Task
    from spec_decode_bench.harness.discover import Catalog
    from spec_decode_bench.harness.records.schema import Run
    from spec_decode_bench.harness.report.table import Table

KEY = "decode_loop"


def check(file: Located, data: Mapping[str, Any]) -> None:
    if data[KEY] is None:
        raise file.error(KEY, "is empty; give it stacks, or remove it")
    if given := next((name for name in OF_A_SWEEP if name in data), None):
        raise file.error(given, f"a decode_loop names its operators in its stacks; drop {given}")
    if data.get("baseline") is not None:
        raise file.error("baseline", "a decode_loop refers to a stack; give decode_loop.reference instead")


def plan(source: LoadedConfig, catalog: Catalog, only: Sequence[str]) -> list[LoopItem]:
    from spec_decode_bench.decode_loop.planning import plan_loops

    return plan_loops(source, catalog, only)


def points(items: Sequence[LoopItem], catalog: Catalog) -> list[Task]:
    from spec_decode_bench.decode_loop.planning import operators_of

    return operators_of(items)


def without_gpu(source: LoadedConfig) -> LoadedConfig:
    from spec_decode_bench.decode_loop.planning import miniature

    return miniature(source)


def show(console: Console, runs: Sequence[Run]) -> list[Table]:
    from spec_decode_bench.decode_loop.tables import show_loops

    return show_loops(console, runs)


registry.ROOMS[KEY] = __name__
registry.SECTIONS[KEY] = registry.Section(
    key=KEY,
    schema=DecodeLoop,
    help="ITL and TPOT of stacks of variants, measured in a loop of decode steps.",
    noun="decode loop",
    item=LoopItem,
    line=Loop,
    check=check,
    plan=plan,
    points=points,
    figures=[
        f"spec_decode_bench.decode_loop.plots.{name}"
        for name in ("loop_delta", "loop_itl", "loop_model_step", "loop_timeline")
    ],
    without_gpu=without_gpu,
    show=show,
)
registry.COLLECTED.append(LoopBinding)
