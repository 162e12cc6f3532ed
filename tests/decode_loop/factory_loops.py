"""Made-up lines of decode loops. Nothing here is a measurement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from spec_decode_bench.decode_loop.records import Loop, LoopBlock, LoopRequest, LoopSpan
from spec_decode_bench.harness.records.schema import SCHEMA_VERSION, Environment, Header, Metrics, Run, Status
from tests import factory

STEPS = 20


def block(
    number: int,
    itl_us: Sequence[float],
    requests: Sequence[LoopRequest] | None = None,
    turn: int = 0,
    gap_us: float = 40.0,
    busy_us: float = 500.0,
) -> LoopBlock:
    itl = [float(one) for one in itl_us]
    return LoopBlock(
        number=number,
        turn=turn,
        itl_us=itl,
        host_itl_us=itl,
        gap_us=[gap_us] * len(itl),
        host_busy_us=[busy_us] * len(itl),
        requests=[LoopRequest(number, 0, len(itl), 2 * len(itl))] if requests is None else list(requests),
    )


def loop(
    stack: str,
    blocks: Sequence[LoopBlock],
    *,
    reference: str = "chains",
    alone: Metrics | None = None,
    concurrency: int = 8,
    model_step_us: float = 9000.0,
    scheduling: str = "sync",
    status: Status = Status.PASSED,
    reason: str | None = None,
    trace: Sequence[LoopSpan] = (),
) -> Loop:
    axes = {
        "concurrency": concurrency,
        "batch_size": concurrency,
        "next_n": 4,
        "model_step_us": model_step_us,
        "scheduling": scheduling,
        "graph": "none",
        "geometry": "deepseek_v3_2",
    }
    named = ("concurrency", "next_n", "model_step_us", "scheduling", "graph")
    return Loop(
        stack=stack,
        reference=reference,
        point=",".join(
            f"{name}={axes[name]:g}" if name == "model_step_us" else f"{name}={axes[name]}" for name in named
        ),
        axes=axes,
        operators={"op": "variant"},
        status=status,
        **({} if reason is None else factory.why_not(status, reason)),
        blocks=list(blocks),
        alone=alone,
        trace=list(trace),
    )


def loops_of(
    rng: np.random.Generator, change_us: float, *, noise_us: float, drift_us: float = 0.0, blocks: int = 12, **axes
) -> tuple[Loop, Loop]:
    """A reference and a stack whose ITL differs by ``change_us``.

    drift_us: standard deviation of what a block has in common for both. noise_us: of a turn, and of an interval.
    """
    both = []
    common = 9000 + drift_us * rng.standard_normal(blocks)
    # Different requests in every block, the same for both stacks.
    tokens = [rng.integers(STEPS, 4 * STEPS, 3) for _ in range(blocks)]
    for change in (0.0, change_us):
        turns = common + change + noise_us * rng.standard_normal(blocks)
        both.append(
            [
                block(
                    number,
                    turn + noise_us * rng.standard_normal(STEPS),
                    [LoopRequest(3 * number + i, 0, STEPS, int(n)) for i, n in enumerate(tokens[number])],
                )
                for number, turn in enumerate(turns)
            ]
        )
    return loop("chains", both[0], **axes), loop("fused", both[1], **axes)


def trace(step_us: float = 9000.0, metadata_us: float = 800.0) -> list[LoopSpan]:
    """Six steps under sync scheduling."""
    spans, now = [], 0.0
    span = lambda lane, name, step, start, end: LoopSpan(lane=lane, name=name, step=step, start_us=start, end_us=end)  # noqa: E731
    for step in range(6):
        submitted, begin = now + 100 + metadata_us, now + 120 + metadata_us
        spans += [
            span("host", "schedule", step, now, now + 100),
            span("host", "metadata", step, now + 100, submitted),
            span("host", "model", step, submitted, submitted + 15),
            span("host", "wait", step, submitted + 15, begin + step_us),
            span("device", "metadata", step, now + 130, begin),
            span("device", "model", step, begin, begin + step_us),
        ]
        now = begin + step_us
    return spans


def run(loops: Sequence[Loop], environment: Environment, name: str = "made_up") -> Run:
    header = Header(
        schema=SCHEMA_VERSION,
        name=name,
        command="python bench.py made_up.yaml",
        started="2026-01-01T00:00:00+00:00",
        seed=0,
        config={"name": name, "measure": {"cache": "hot"}},
        environment=environment,
        cells=tuple(one.key for one in loops),
    )
    return Run(f"{name}.jsonl", header, [], others=list(loops))


def many_loops(rng: np.random.Generator, concurrencies: Sequence[int] = (1, 8, 32)) -> list[Loop]:
    """Two stacks under both schedulings, at two model steps."""
    found = []
    for size in concurrencies:
        for scheduling, change in (("sync", -900.0), ("async", -30.0)):
            for step_us in (5000.0, 12000.0):
                axes = {"concurrency": size, "scheduling": scheduling, "model_step_us": step_us}
                reference, other = loops_of(rng, change_us=change, noise_us=15.0, **axes)
                alone = [
                    Metrics(
                        bytes_moved=0,
                        eager_us=[us] * 3,
                        graph_us={1: [us / 8 + 3] * 3, 2: [us / 4 + 3] * 3},
                        stream_us={1: [us / 4 + 3] * 3, 2: [us / 2 + 3] * 3},
                    )
                    for us in (1000.0, 90.0)
                ]
                found.append(_with(reference, alone[0], trace(step_us)))
                found.append(_with(other, alone[1], trace(step_us, 60.0)))
    return found


def _with(one: Loop, alone: Metrics, spans: list[LoopSpan]) -> Loop:

    return replace(one, alone=alone, waited_us=alone.eager_us, trace=spans)
