"""Random legal batches: every healthy variant that runs here against the scalar reference, bit for bit.

In the interpreter where there is no GPU, on the GPU where there is one; there with a fresh seed, which the end of the
session prints: ``RANDOM_SEED=... pytest -k on_random`` draws the same batches again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st

from harness.checks import Mismatch
from harness.contract import Operator, Point
from harness.runner.measure import ContextLost, check_context
from harness.verify.fixture import Fixture, verify_cell
from tests.runnable import DEVICE, healthy

#: Random batches for each operator; set RANDOM_BATCHES for a quicker or a longer look.
EXAMPLES = int(os.environ.get("RANDOM_BATCHES", "1000"))
#: What everything here is drawn from; on a GPU tests/conftest.py chooses one. None: hypothesis' own way, which
#: remembers failures between sessions.
SEED = int(os.environ["RANDOM_SEED"]) if "RANDOM_SEED" in os.environ else None
#: Some variants take part in one batch of so many: on a GPU operator chains, whose code is the CPU's, where they take
#: part in each; in the interpreter those that a test names.
SELDOM = 8
#: Places at which buffers start: an aligned address and the elements behind it, up to 16 bytes of int32.
SHIFTS = 4
#: On a GPU this many values of an axis that Triton compiles for; with all of them compilation would take minutes.
COMPILED_VALUES = 2
#: One batch of so many is a crowd: more requests than a kernel takes at a time.
CROWDED = 50
#: What destroyed the CUDA context of this process, and where.
_lost: list[str] = []


def run_examples(count: int | None = None) -> Callable[[Callable], Callable]:
    """Hypothesis settings for tests that launch kernels: ``count`` examples (default: EXAMPLES), no deadline, SEED."""
    chosen = settings(max_examples=count or EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    if SEED is None:
        return chosen
    return lambda test: seed(SEED)(settings(chosen, derandomize=False, database=None)(test))


def compiled_values(*values: Any) -> st.SearchStrategy:
    """Values of an axis that kernels are compiled for: all in the interpreter, on a GPU a few that SEED chooses."""
    if DEVICE == "cuda":
        values = random.Random(f"{SEED} {values}").sample(values, min(COMPILED_VALUES, len(values)))
    return st.sampled_from(values)


def legal_point(operator: Operator, axes: Mapping[str, Any]) -> Point:
    """The full point; a strategy that draws an illegal one is a fault of the test."""
    point = operator.complete(axes)
    assert operator.broken_rule(point) is None
    return point


#: Looked up once per operator, not per batch.
_healthy = cache(healthy)


def check_random(
    operator: Operator,
    axes: Mapping[str, Any],
    batch_seed: int,
    seldom: tuple[str, ...] = (),
    edit: Callable[[Any], None] | None = None,
    crowds: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Verify the healthy variants of an operator on one batch, or those that take part in every one (SELDOM). Raises
    Mismatch.

    Its buffers start 0 to 3 elements past an aligned address, as the seed says.
    seldom: variants that need not be interpreted in each batch, as their kernels have random batches with another operator.
    edit:   changes the batch in place, as in a HardPoint.
    crowds: one batch of CROWDED, as the seed says, takes the axes of one of these instead of its own.
    """
    if not _lost:
        chosen = random.Random(batch_seed)
        if crowds and chosen.randrange(CROWDED) == 0:
            axes = {**axes, **chosen.choice(crowds)}
        _verify_all(operator, legal_point(operator, axes), batch_seed, seldom, edit)
    # Nothing runs in this process any more: hypothesis would shrink to a batch that is innocent, so name the guilty
    # one.
    assert not _lost, _lost[0]


def shift_of(batch_seed: int) -> int:
    """Elements by which the buffers of a batch start past an aligned address; in batches of SELDOM variants too all
    of them.
    """
    return batch_seed // SELDOM % SHIFTS


def _verify_all(
    operator: Operator, point: Point, batch_seed: int, seldom: tuple[str, ...], edit: Callable[[Any], None] | None
) -> None:
    bench = Fixture(operator, point, DEVICE, batch_seed, edit, batches=2, shift=shift_of(batch_seed))
    for variant in _healthy(operator.name):
        is_seldom = variant.origin.startswith("baselines.") if DEVICE == "cuda" else variant.name in seldom
        if variant.skip(point) or (is_seldom and batch_seed % SELDOM):
            continue
        try:
            verify_cell(bench, variant, once=True)
        except Mismatch as mismatch:
            raise Mismatch(mismatch.check, f"{variant.id}: {mismatch.args[0]}") from None
        except Exception as error:
            if not _context_lost():
                raise
            _lost.append(f"{variant.id} destroyed the CUDA context at {point!r}, batch seed {batch_seed}: {error}")
            return


def _context_lost() -> bool:
    try:
        check_context(DEVICE)
    except ContextLost:
        return True
    return False
