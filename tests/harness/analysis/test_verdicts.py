"""Variants that take turns: what changed since the last save."""

from collections import Counter

import numpy as np
import pytest

from spec_decode_bench.harness.analysis.verdicts import judged, paired, since

#: Rounds of a save, and how much a round differs from the next.
ROUNDS, SD = 20, 0.01


def verdict(rng: np.random.Generator, change: float) -> tuple[str, bool]:
    """Of a variant that became ``change`` times as slow, on a machine that became another one; and whether the interval
    holds it.
    """
    before, now = (
        [us * clock * np.exp(SD * rng.standard_normal(ROUNDS)) for us in (1.2, mine)]
        for clock, mine in ((1.0, 2.0), (1.3, 2.0 * change))
    )
    (found,) = judged([since(paired(before[0], before[1]), paired(now[0], now[1]))], [0.0], [True])
    return found.verdict, found.ratio.low <= change <= found.ratio.high


@pytest.mark.parametrize(("change", "expected"), [(0.9, "faster"), (1.1, "slower"), (1.0, "same")])
def test_what_both_variants_share_does_not_count(change, expected):
    """One verdict in a hundred may be wrong, and two intervals, as each bound may be."""
    rng = np.random.default_rng(0)
    verdicts, holds = zip(*(verdict(rng, change) for _ in range(300)), strict=True)
    counts = Counter(verdicts)
    assert counts[expected] > 200
    assert counts[expected] + counts["unsure"] > 290
    assert sum(holds) > 285
