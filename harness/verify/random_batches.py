"""Random legal batches of an operator, drawn and shrunk by hypothesis, against the scalar reference, bit for bit.

A size has its default, or a value of the classes of the covering array, or any value, and is moved until the rules hold
(harness/verify/points.py). Every other axis takes one of its examples. Buffers start 0 to 3 elements past an aligned
address.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, Unsatisfiable

from spec_decode_bench.harness.contract import Axis, Operator, Point, Variant
from spec_decode_bench.harness.records.schema import Code, Finding, Place, Reason, Status, Where
from spec_decode_bench.harness.verify.covering_array import classes_of
from spec_decode_bench.harness.verify.edge_cases import LeftOut, finding_of, is_beyond, reason_to_skip, skipped
from spec_decode_bench.harness.verify.fixture import Fixture, verify_cell
from spec_decode_bench.harness.verify.points import PointSearch

#: Bytes of inputs and outputs of a batch: small ones, of which many can be tried. Large ones are in the covering array.
MOST_BYTES = 1 << 20
#: Sizes are at most this, or twice their default where that is more.
MOST = 64
#: Offsets at which buffers start, in elements past an aligned address: all positions of an int32 within 16 bytes.
SHIFTS = 4
#: Seconds for which a failing batch is shrunk.
SHRINK_S = 20.0


@dataclass(frozen=True)
class Drawn:
    """A batch: its point, and the seed of its contents."""

    point: Point
    seed: int

    @property
    def shift(self) -> int:
        """Elements past an aligned address at which its buffers start."""
        return self.seed // 8 % SHIFTS  # independent of what else a seed's lowest bits decide


def fixture_of(operator: Operator, drawn: Drawn, device: str, **more: Any) -> Fixture:
    """The batch between canaries. more: other arguments of Fixture."""
    return Fixture(operator, drawn.point, device, drawn.seed, batches=2, **{"shift": drawn.shift, **more})


def batches(operator: Operator) -> st.SearchStrategy[Drawn | None]:
    """Strategy for legal batches; None where what was drawn is not to be made legal, or is another point's batch."""
    search = PointSearch(operator, MOST_BYTES)
    default = operator.complete({})
    most = {axis.name: max(MOST, 2 * default[axis.name]) for axis in search.sizes}
    named = {axis.name: _values(search, axis, most[axis.name]) for axis in search.sizes}

    @st.composite
    def draw_batch(draw: Callable) -> Drawn | None:
        sizes = {}
        for axis in search.sizes:
            source = draw(st.integers(0, 2))  # the default comes first, as failures are shrunk to it
            if source == 1 and named[axis.name]:
                sizes[axis.name] = draw(st.sampled_from(named[axis.name]))
            elif source == 2:
                magnitude = draw(st.integers(0, most[axis.name].bit_length()))
                size = draw(st.integers(2**magnitude >> 1, min(2**magnitude - 1, most[axis.name])))
                if search.is_legal(axis, size):
                    sizes[axis.name] = size
        picks = {axis.name: draw(st.integers(0, len(axis.examples_at(default)) - 1)) for axis in search.words}
        fitting = search.fitting(sizes, picks, frozenset())
        contents = draw(st.integers(0, 2**16 - 1))
        if fitting is None:
            return None
        point = search.complete(fitting, picks)
        return None if reason_to_skip(operator, point) else Drawn(point, contents)

    return draw_batch()


def _values(search: PointSearch, axis: Axis, most: int) -> list[int]:
    """Of the classes of a size, each once."""
    return sorted({value for one in classes_of(search, axis, ()) for value in one.values if value <= most})


class _Failed(Exception):
    """What hypothesis shrinks; all failures are one to it."""


def check_random(
    operator: Operator,
    variant: Variant,
    device: str,
    draw_seed: int,
    count: int,
    keep: Callable[[Finding], None],
    counting: Callable[[], AbstractContextManager] = nullcontext,
    out_of_time: Callable[[], Reason | None] = lambda: None,
    lost: Callable[[], bool] = lambda: False,
    announce: Callable[[Where], None] = lambda where: None,
) -> Finding | None:
    """Try ``count`` random batches, up to the first that the variant fails. That one is shrunk, for SHRINK_S seconds at
    most; returned is the finding of the smallest failing batch that was found, or None.

    keep:        called with the finding of every other batch as soon as it is made, as a later one may end the process.
    counting:    is around every launch, and may raise LeftOut.
    out_of_time: why no further batch is to be tried, once there is a reason.
    lost:        whether the device is lost after a failure; then nothing more is tried.
    announce:    called before every batch.
    """
    failed: list[Finding] = []
    end = math.inf

    @seed(draw_seed)
    @settings(
        max_examples=count,
        phases=(Phase.generate, Phase.shrink),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(drawn=batches(operator))
    def check(drawn: Drawn | None) -> None:
        nonlocal end
        assume(drawn is not None)
        if time.monotonic() > end:
            return
        if not failed and (reason := out_of_time()) is not None:
            keep(_where(operator, drawn).finding(Status.SKIPPED, reason=reason))
            return
        announce(_where(operator, drawn))
        finding = checked(operator, variant, drawn, device, counting)
        if finding.status.is_bad:
            end = min(end, time.monotonic() + SHRINK_S) if not lost() else -math.inf
            failed.append(finding)
            raise _Failed
        if not failed:
            keep(finding)

    # Flaky: where time ran out in between. Unsatisfiable: where the operator has no legal batch.
    with suppress(_Failed, Flaky, Unsatisfiable):
        check()
    return failed[-1] if failed else None


def checked(
    operator: Operator,
    variant: Variant,
    drawn: Drawn,
    device: str,
    counting: Callable[[], AbstractContextManager] = nullcontext,
) -> Finding:
    """The finding at one batch. counting: is around every launch, and may raise LeftOut."""

    def verify(passed_checks: set[str]) -> None:
        aligned = {"shift": 0} if variant.known_failure_at("", "unaligned") else {}
        fixture = fixture_of(operator, drawn, device, passed_checks=passed_checks, **aligned)
        if is_beyond(variant, fixture):
            raise LeftOut(Reason(code=Code.KNOWN_FAILURE))
        with counting():
            verify_cell(fixture, variant, once=True)

    where = _where(operator, drawn)
    return skipped(where, variant, [drawn.point]) or finding_of(where, verify)


def _where(operator: Operator, drawn: Drawn) -> Where:
    return Where(Place.RANDOM_BATCH, operator.label(drawn.point), seed=drawn.seed)
