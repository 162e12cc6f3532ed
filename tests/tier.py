"""The two tiers of the tests: by default the quick ones with few examples; with `pytest --full` all.

tests/conftest.py sets FULL before it imports a test file.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import pytest

FULL = False
#: What a test file imports whose tests do more in the full tier: from here, and from tests/baselines/random_batches.py.
NAMES = ("FULL", "each_batch", "examples", "few", "run_examples")

#: Marks a test or a parameter of the full tier only.
full = pytest.mark.full


def examples(count: int) -> int:
    """Random examples of a test that draws ``count`` in the full tier."""
    return count if FULL else max(count // 10, 5)


def few(values: Sequence, count: int) -> list:
    """Parameters: all in the full tier, else ``count`` of them, evenly spread."""
    values = list(values)
    return values if FULL else values[:: -(-len(values) // count)]


def depends_on_it(module: ModuleType) -> bool:
    """Whether tests of this file do more in the full tier; there they are marked full too."""
    return any(hasattr(module, name) for name in NAMES)
