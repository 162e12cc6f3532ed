"""Made-up histories: the records of several commits. Nothing here is a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from spec_decode_bench.harness.records.schema import Environment, Run
from tests import factory

NOISE = 0.0025
START = datetime(2026, 1, 1, tzinfo=UTC)


def runs(
    levels: Mapping[str, Sequence[float]],
    processes: int = 1,
    environments: Mapping[int, Environment] | None = None,
    noise: float = NOISE,
    seed: int = 0,
    batch_sizes: Sequence[int] = (8, 128),
) -> list[Run]:
    """levels: variant -> gpu_us at each commit, NaN where it is not timed. noise: relative, between processes.

    environments: by place, where it is not factory.gpu_environment of commit 000000a, 000000b, ...
    """
    rng, found = np.random.default_rng(seed), []
    commits = len(next(iter(levels.values())))
    for place in range(commits):
        environment = (environments or {}).get(place) or factory.gpu_environment(commit=f"{place + 10:07x}fff")
        for process in range(processes):
            cells = [
                factory.cell(
                    "decode_native",
                    variant,
                    {"batch_size": size, "padding": 0.0},
                    of_commit[place] * (1 + size / 512) * (1 + noise * rng.standard_normal()),
                    rng=rng,
                    rounds=5,
                )
                for variant, of_commit in levels.items()
                for size in batch_sizes
                if of_commit[place] == of_commit[place]
            ]
            started = (START + timedelta(days=place, hours=process)).isoformat()
            found.append(factory.run(environment, cells, started=started))
    return found
