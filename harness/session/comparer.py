"""The comparer: compares the outputs of timed launches with the reference.

It imports operators but no variants, so whatever a variant does to its own process cannot affect the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.contract import Operator, Point
from spec_decode_bench.harness.discover import discover, discover_operators
from spec_decode_bench.harness.records.schema import Finding, Place
from spec_decode_bench.harness.session.messages import Compared, Job, Outputs
from spec_decode_bench.harness.verify.buffers import as_integers
from spec_decode_bench.harness.verify.edge_cases import wrong
from spec_decode_bench.harness.verify.fixture import Fixture


class OutputComparer:
    """Takes Tasks, whose inputs and reference it computes ahead, and the Outputs of their variants."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._operators = discover_operators()
        self._made: tuple[tuple, Fixture] | None = None

    def bring_up(self) -> None:
        pass

    def close(self) -> None:
        pass

    def cells(self, item: Task) -> Iterator[Any]:
        """Prepares the comparisons of an item; there are no events."""
        _ = self._fixture(item.operator, item.axes, item.check_seed).batches[0].expected
        yield from ()

    def compare(self, outputs: Outputs) -> Iterator[Compared]:
        fixture = self._fixture(outputs.operator, outputs.axes, outputs.check_seed)
        guard = fixture.outputs
        for name, content in outputs.contents.items():
            integers = as_integers(guard.buffers[name].tensor)
            if content:  # torch makes no tensor of an empty buffer
                integers.copy_(torch.frombuffer(bytearray(content), dtype=integers.dtype).reshape(integers.shape))
        finding = None
        try:
            fixture.compare(0, guard.poisoned(outputs.poison), outputs.contents)
        except Exception as error:
            failure = wrong(error)
            failure["message"] = f"{outputs.what}: {failure['message']}"
            finding = Finding(place=Place.POINT, name=outputs.point, when="after_timing", **failure)
        yield Compared(outputs.variant, finding)

    def _fixture(self, operator: str, axes: Mapping[str, Any], seed: int) -> Fixture:
        """With inputs of this seed; the last one is kept."""
        key = operator, axes, seed
        if self._made is None or self._made[0] != key:
            self._made = key, Fixture(self._operator(operator), Point(axes), "cpu", seed, batches=1)
        return self._made[1]

    def _operator(self, name: str) -> Operator:
        if name not in self._operators:  # of a file of --variants, which cannot be imported without its variants
            self._operators |= discover(self._job.variant_files).operators
        return self._operators[name]
