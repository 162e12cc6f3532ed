"""What the types of a record's fields do not say, and what reading it relies on. Never imports torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.records.decode_loop import Loop
from harness.records.schema import Calibration, Cell, Header, Segment

#: How deep values of a configuration or an axis may be nested.
MAX_DEPTH = 20
#: Integers beyond these have no float.
MAX_INTEGER = 2**63
_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


def check(line: Header | Segment | Cell | Loop) -> None:
    """Raises ValueError, with a sentence that begins with the field."""
    if isinstance(line, Cell):
        _check_value("axes", line.axes)
        return
    if isinstance(line, Loop):
        _check_value("axes", line.axes)
        _check_blocks(line)
        return
    if line.calibration is not None:
        _check_calibration(line.calibration)
    if isinstance(line, Header):
        _check_value("config", line.config)
        measure = line.config.get("measure", {})
        if not isinstance(measure, Mapping) or not isinstance(measure.get("cache"), str):
            raise ValueError("config.measure is not a mapping of settings with a cache state")
        if line.shard is not None:
            _check_shard(line.shard)


def _check_blocks(loop: Loop) -> None:
    """Statistics index the samples of a block by the intervals of its requests."""
    for block in loop.blocks:
        intervals = len(block.itl_us)
        if not intervals or {len(block.host_itl_us), len(block.gap_us), len(block.host_busy_us)} != {intervals}:
            raise ValueError("blocks hold different numbers of samples, or none")
        if any(one.steps < 1 or one.first + one.steps > intervals for one in block.requests):
            raise ValueError("blocks.requests names intervals that the block does not have")
    if len({block.number for block in loop.blocks}) != len(loop.blocks):
        raise ValueError("blocks holds one block twice")


def _check_value(name: str, value: Any, depth: int = 0) -> None:
    """Numbers that have a float, and no nesting that a function which walks through it could not."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{name} is nested too deeply")
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError(f"{name} holds a number of more than 64 bits")
    if isinstance(value, (list, Mapping)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            _check_value(name, inner, depth + 1)


def _check_calibration(calibration: Calibration) -> None:
    if "block_copy" not in calibration.own:
        raise ValueError("calibration.own lacks the kernel block_copy, which the copy bound needs")
    if min(calibration.copy_us) <= 0:
        raise ValueError("calibration.copy_us holds a time that is not positive")
    copies = [(f"copies.{size}", shapes) for size, shapes in calibration.copies.items()]
    for where, kernels in (("own", calibration.own), ("spins", calibration.spins), *copies):
        for name, kernel in kernels.items():
            if len(kernel.graph_us) < 2:
                raise ValueError(f"calibration.{where}.{name} has no graphs of two sizes")
            if where == "spins" and (not kernel.true_us or min(kernel.true_us) <= 0):
                raise ValueError(f"calibration.spins.{name} has no duration in true_us")


def _check_shard(shard: str) -> None:
    """``2/8``, or several of one cut after a merge."""
    for one in shard.split(", "):
        found = _SHARD.fullmatch(one)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"shard {one!r} is not I/N, such as 2/8")
