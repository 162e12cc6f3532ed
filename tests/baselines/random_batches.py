"""Random legal batches: every variant without a defect that runs here, against the scalar reference, bit for bit.

Without a GPU the kernels run in Triton's interpreter. On a GPU each session draws from a new seed and prints it at its
end; ``RANDOM_SEED=... pytest -k on_random`` draws the same batches again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.contract import Operator, Point
from spec_decode_bench.harness.session.sampling import is_context_lost
from spec_decode_bench.harness.verify.fixture import Fixture, verify_cell
from tests.runnable import DEVICE, healthy
from tests.tier import examples

#: Random batches per operator; the environment variable RANDOM_BATCHES overrides it. Every session draws others.
EXAMPLES = int(os.environ.get("RANDOM_BATCHES", examples(300 if DEVICE == "cuda" else 100)))
#: The same for operators whose scalar reference takes long.
FEW_EXAMPLES = max(EXAMPLES // 10, examples(30))
#: The seed of all draws; on a GPU tests/conftest.py chooses one. None: hypothesis decides, and remembers failures
#: between sessions.
SEED = int(os.environ["RANDOM_SEED"]) if "RANDOM_SEED" in os.environ else None
#: Some variants run only on one batch in this many. On a GPU: the operator chains, whose code a CPU tests on every
#: batch. In the interpreter: those that a test names.
SELDOM = 8
#: Values drawn on a GPU for an axis that Triton compiles for. Compiling for all of them would take minutes.
COMPILED_VALUES = 2
#: One batch in this many is a crowd, with more requests than a kernel handles at a time.
CROWDED = 50
#: Variant and batch that destroyed the CUDA context of this process, as a sentence; empty while it works.
_context_destroyed_by: list[str] = []


def run_examples(count: int | None = None) -> Callable[[Callable], Callable]:
    """Hypothesis settings for tests that launch kernels: ``count`` examples of the full tier (default EXAMPLES), no
    deadline, SEED.
    """
    chosen = settings(
        max_examples=examples(count) if count else EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    if SEED is None:
        return chosen
    return lambda test: seed(SEED)(settings(chosen, derandomize=False, database=None)(test))


def compiled_values(*values: Any) -> st.SearchStrategy:
    """Strategy for an axis that kernels are compiled for: all values in the interpreter, on a GPU COMPILED_VALUES of
    them, which SEED chooses.
    """
    if DEVICE == "cuda":
        values = random.Random(f"{SEED} {values}").sample(values, min(COMPILED_VALUES, len(values)))
    return st.sampled_from(values)


def steps(longest: int, rows: int = 12, pads: bool = True, **axes: st.SearchStrategy) -> st.SearchStrategy:
    """Strategy for the axes of a step over request slots: what all of these operators have, and ``axes``.

    longest: tokens of a context at most. pads: whether the operator has rows of padding.
    """
    common = {
        "decode_len": st.sampled_from(["uniform", "ragged", "mixed"]),
        "context_len": st.one_of(st.integers(1, longest), st.just({"uniform": [1, longest]})),
        "prefills": st.integers(0, 1),
    }

    def of(batch_size: int) -> st.SearchStrategy:
        sizes = {"batch_size": st.just(batch_size)}
        if pads:
            sizes["padding"] = st.sampled_from([0.0, 0.3] if batch_size > 2 else [0.0])
        return st.fixed_dictionaries(sizes | common | axes)

    return st.integers(1, rows).flatmap(of)


def legal_point(operator: Operator, axes: Mapping[str, Any]) -> Point:
    """The point with all axes. Asserts that it is legal: a strategy must not draw illegal ones."""
    point = operator.complete(axes)
    assert operator.broken_rule(point) is None
    return point


def drawn(operator: Operator, axes: Mapping[str, Any], batch_seed: int) -> tuple[Point, Any]:
    """A legal point and a batch of it."""
    point = legal_point(operator, axes)
    return point, operator.make_inputs(point, batch_seed)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


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
    """Verify the variants without a defect of an operator on one batch. Raises Mismatch.

    The buffers start 0 to 3 elements past an aligned address; the seed decides.

    seldom: variants to interpret on one batch in SELDOM only, because other operators' tests run their kernels too.
    edit:   changes the batch in place, as in a EdgeCase.
    crowds: one batch in CROWDED takes the axes of one of these over its own.
    """
    if not _context_destroyed_by:
        chosen = random.Random(batch_seed)
        if crowds and chosen.randrange(CROWDED) == 0:
            axes = {**axes, **chosen.choice(crowds)}
        _verify_all(operator, legal_point(operator, axes), batch_seed, seldom, edit)
    # Nothing runs in this process any more, so hypothesis would shrink to an innocent batch: name the one to blame.
    assert not _context_destroyed_by, _context_destroyed_by[0]


def _verify_all(
    operator: Operator, point: Point, batch_seed: int, seldom: tuple[str, ...], edit: Callable[[Any], None] | None
) -> None:
    bench = Fixture(operator, point, DEVICE, batch_seed, edit, batches=2, shift=random.Random(batch_seed))
    for variant in _healthy(operator.name):
        is_seldom = variant.folder == "baselines" if DEVICE == "cuda" else variant.name in seldom
        if variant.skip(point) or (is_seldom and batch_seed % SELDOM):
            continue
        try:
            verify_cell(bench, variant, once=True)
        except Mismatch as mismatch:
            raise Mismatch(mismatch.check, f"{variant.id}: {mismatch.args[0]}") from None
        except Exception as error:
            if not is_context_lost(DEVICE):
                raise
            _context_destroyed_by.append(
                f"{variant.id} destroyed the CUDA context at {point!r}, batch seed {batch_seed}: {error}"
            )
            return
