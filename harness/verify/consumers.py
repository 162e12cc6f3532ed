"""Runs the kernel that reads an operator's tables on the tables of each variant: are the results bitwise equal?

The scalar reference of an operator says what a table must hold. A consumer says whether an engine's attention kernel
reads it that way: it runs on the tables of the engine's own planner, and on those of every other variant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spec_decode_bench.harness.contract import Consumer, Operator, Point, Variant
from spec_decode_bench.harness.discover import Catalog, unavailable
from spec_decode_bench.harness.errors import first_line
from spec_decode_bench.harness.records.schema import Reason
from spec_decode_bench.harness.verify.buffers import POISONS, as_integers
from spec_decode_bench.harness.verify.edge_cases import reason_to_skip
from spec_decode_bench.harness.verify.fixture import Fixture, synchronize

if TYPE_CHECKING:
    from spec_decode_bench.harness.config.work_items import Task


@dataclass(frozen=True)
class Comparison:
    """One variant's tables at one point, read by a consumer.

    elements: of the consumer's results. different: of these, unlike those on the tables of ``Consumer.planner``.
    reason:   why there was nothing to compare; error: what the consumer or the variant raised; then both are None.
    """

    consumer: Consumer
    variant: str
    point: str
    elements: int | None = None
    different: int | None = None
    reason: Reason | None = None
    error: str | None = None

    @property
    def bad(self) -> bool:
        return self.error is not None or bool(self.different)


def compare_consumers(catalog: Catalog, item: Task, device: str, seed: int) -> Iterator[Comparison]:
    """A comparison of each variant of an item for each consumer of its operator."""
    for consumer in catalog.consumers:
        if consumer.operator == item.operator:
            yield from _compare(catalog, consumer, item, device, seed)


def _compare(catalog: Catalog, consumer: Consumer, item: Task, device: str, seed: int) -> Iterator[Comparison]:
    operator, point = catalog.operators[item.operator], Point(item.axes)
    planner = catalog.find(item.operator, consumer.planner)
    why_not = (
        unavailable(consumer, device)
        or unavailable(planner, device)
        or reason_to_skip(consumer, point)
        or reason_to_skip(planner, point)
    )
    others = [catalog.find(item.operator, name) for name in item.variants if name != planner.name]
    if why_not:
        yield from (Comparison(consumer, variant.name, item.point, reason=why_not) for variant in (planner, *others))
        return
    expected: Mapping[str, Tensor] | None = None
    # The planner twice: a consumer that does not repeat itself on the same tables shows as different there.
    for variant in (planner, planner, *others):
        if reason := unavailable(variant, device) or reason_to_skip(variant, point):
            yield Comparison(consumer, variant.name, item.point, reason=reason)
            continue
        try:
            results = _results(consumer, operator, point, variant, device, seed)
        except Exception as error:  # whatever an engine's kernel raises
            yield Comparison(consumer, variant.name, item.point, error=first_line(error))
            if expected is None:
                return
            continue
        if expected is None:
            expected = results
            continue
        wrong = sum(int((as_integers(results[name]) != as_integers(expected[name])).sum()) for name in expected)
        yield Comparison(consumer, variant.name, item.point, sum(result.numel() for result in expected.values()), wrong)


def _results(
    consumer: Consumer, operator: Operator, point: Point, variant: Variant, device: str, seed: int
) -> Mapping[str, Tensor]:
    fixture = Fixture(operator, point, device, seed, batches=1)
    launch = fixture.setup(variant)
    fixture.run(launch, 0, POISONS[0])
    torch.manual_seed(seed)
    results = consumer.run(point, fixture.inputs.view, fixture.outputs.view)
    synchronize(device)
    return results
