"""The comparing process's side of a run: compares what timed launches wrote with the reference.

It imports operators and no variant, so nothing that a variant does to its own process reaches the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from harness.checks import Mismatch
from harness.contract import Operator, Point
from harness.discover import discover, discover_operators
from harness.runner.protocol import Compared, Job, Outputs, Task
from harness.verify.buffers import as_integers
from harness.verify.fixture import Fixture


class OutputComparer:
    """Takes a Task, whose inputs and reference it computes, then the Outputs of its variants."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._operators = discover_operators()
        self._fixture: Fixture | None = None

    def bring_up(self) -> None:
        pass

    def close(self) -> None:
        pass

    def group(self, task: Task) -> Iterator[Any]:
        """Prepares the comparisons of a task; there are no events."""
        operator, point = self._operator(task.operator), Point(task.axes)
        self._fixture = Fixture(operator, point, "cpu", task.check_seed, batches=1)
        _ = self._fixture.batches[0].expected
        yield from ()

    def _operator(self, name: str) -> Operator:
        if name not in self._operators:  # of a file of --variants, which cannot be imported without its variants
            self._operators |= discover(self._job.variant_files).operators
        return self._operators[name]

    def compare(self, outputs: Outputs) -> Iterator[Compared]:
        guard = self._fixture.outputs
        guard.poison(outputs.poison)
        before = guard.snapshot()
        for name, content in outputs.contents.items():
            integers = as_integers(guard.buffers[name].tensor)
            if content:  # torch makes no tensor of an empty buffer
                integers.copy_(torch.frombuffer(bytearray(content), dtype=integers.dtype).reshape(integers.shape))
        try:
            self._fixture.compare(0, before, outputs.contents)
        except Mismatch as mismatch:
            yield Compared(str(mismatch))
        else:
            yield Compared(None)
