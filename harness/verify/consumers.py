"""The kernel that reads an operator's tables, run on the tables of each variant: are its results the same bits?

The scalar reference of an operator says what a table must hold. A consumer says whether an engine's attention kernel
reads it that way: it runs on the tables of the engine's own planner, and on those of every other variant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.contract import Consumer, Operator, Point, Variant
from harness.discover import Catalog, unavailable
from harness.verify.buffers import POISONS, as_integers
from harness.verify.fixture import Fixture, synchronize
from harness.verify.hard_points import reason_to_skip
from harness.wording import first_line


@dataclass(frozen=True)
class Comparison:
    """One variant's tables at one point, read by a consumer.

    elements: of the consumer's results. different: of these, unlike those on the tables of ``Consumer.planner``.
    reason:   why there was nothing to compare; then both are None.
    failed:   the consumer or the variant raised.
    """

    consumer: Consumer
    variant: str
    point: str
    elements: int | None = None
    different: int | None = None
    reason: str | None = None
    failed: bool = False

    @property
    def bad(self) -> bool:
        return self.failed or bool(self.different)


def compare_consumers(
    catalog: Catalog, operator: Operator, point: Point, variants: Sequence[Variant], device: str, seed: int
) -> Iterator[Comparison]:
    """A comparison of each variant for each consumer of the operator."""
    for consumer in catalog.consumers:
        if consumer.operator == operator.name:
            planner = catalog.find(operator.name, consumer.planner)
            yield from _compare(consumer, planner, operator, point, variants, device, seed)


def _compare(
    consumer: Consumer,
    planner: Variant,
    operator: Operator,
    point: Point,
    variants: Sequence[Variant],
    device: str,
    seed: int,
) -> Iterator[Comparison]:
    label = operator.label(point)
    why_not = (
        unavailable(consumer, device)
        or unavailable(planner, device)
        or reason_to_skip(consumer, point)
        or reason_to_skip(planner, point)
    )
    others = [variant for variant in variants if variant.name != planner.name]
    if why_not:
        yield from (Comparison(consumer, variant.name, label, reason=why_not) for variant in others)
        return
    theirs: Mapping[str, Tensor] | None = None
    # The planner twice: a consumer that does not repeat itself on the same tables shows as different there.
    for variant in (planner, planner, *others):
        if reason := unavailable(variant, device) or reason_to_skip(variant, point):
            yield Comparison(consumer, variant.name, label, reason=reason)
            continue
        try:
            results = _results(consumer, operator, point, variant, device, seed)
        except Exception as error:  # whatever an engine's kernel raises
            yield Comparison(consumer, variant.name, label, reason=first_line(error), failed=True)
            if theirs is None:
                return
            continue
        if theirs is None:
            theirs = results
            continue
        wrong = sum(int((as_integers(results[name]) != as_integers(theirs[name])).sum()) for name in theirs)
        yield Comparison(consumer, variant.name, label, sum(one.numel() for one in theirs.values()), wrong)


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
