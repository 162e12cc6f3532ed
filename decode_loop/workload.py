"""The requests of a loop and how many of their drafts are accepted: shared by device, host and simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spec_decode_bench.baselines.workloads.captured_requests import captured_requests
from spec_decode_bench.baselines.workloads.context_lengths import draw_lengths, requests_of_trace
from spec_decode_bench.decode_loop.configuration import AcceptLengths, DecodeLoop
from spec_decode_bench.decode_loop.engine_state import EngineShape
from spec_decode_bench.decode_loop.items import LoopItem
from spec_decode_bench.harness.config.captured import is_capture


@dataclass(frozen=True)
class Acceptance:
    """How many tokens a step yields: 1 + the leading drafts that are accepted, or a measured accept length.

    thresholds: draft i is accepted if its 32 random bits are below thresholds[i], given that all before it were.
    lengths:    measured tokens per step, of which one is drawn; empty where thresholds count.
    """

    thresholds: tuple[int, ...]
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Workload:
    """prompts, outputs: tokens of the requests in order of arrival, int64 [requests]; all outputs are >= 1.

    The first num_requests of them have already produced a part of their output, which counts as prompt here; those of
    a capture as much as when it began.
    delay: steps between the one that a request ends in and the one that its successor can start in, less one: 0 where
           the host knows the accepted counts of a step before it prepares the next one (sync), 1 where it does not
           (async).
    """

    shape: EngineShape
    acceptance: Acceptance
    prompts: np.ndarray
    outputs: np.ndarray
    seed: int
    delay: int
    steps_per_block: int
    blocks: int


#: Tables that hold ids of blocks or slots: name of the tensor in EngineState.
BLOCKS, STATES = "block_table", "state_table"


def columns_needed(shape: EngineShape, tokens: int) -> dict[str, int]:
    """Columns of each table that a request of so many tokens has ids in. By slot there is a drafter, whose passes write
    keys and values of tokens behind the step's.
    """
    columns = {BLOCKS: -(-(tokens + shape.num_drafts * shape.by_slot) // shape.block_size)}
    if not shape.by_slot or shape.state_groups:
        columns[STATES] = -(-tokens // shape.mamba_block_size) + shape.num_drafts
    return columns


def slot_of(shape: EngineShape, row: int, requests: int) -> int:
    """The slot of a request, before which a row had so many others: every row cycles through its own slots."""
    turns = shape.max_num_seqs // shape.num_requests
    return shape.max_num_seqs - 1 - (row + shape.num_requests * (requests % turns))


def acceptance_of(config: DecodeLoop, next_n: int) -> Acceptance:
    given = config.acceptance
    if isinstance(given, AcceptLengths):
        return Acceptance((), tuple(given.accept_lengths))
    shares = given[: next_n - 1] if isinstance(given, list) else [given] * (next_n - 1)
    return Acceptance(tuple(round(share * 2**32) for share in shares))


def make_workload(item: LoopItem, seed: int) -> Workload:
    """The request stream of a loop. It depends on the seed, the concurrency and next_n, not on scheduling or model.

    Of a capture it begins with the requests of the first step, followed by those that came later.
    Lengths beyond max_model_len, which a distribution or a trace may hold, are cut so that a request fits.
    """
    config, shape = item.config, item.shape
    count = shape.num_requests * (config.blocks * config.steps + 1)
    rng = np.random.default_rng([seed, shape.num_requests, shape.next_n])
    from_capture = config.trace is not None and is_capture(config.trace)
    if from_capture:
        captured = captured_requests(config.trace)
        order = np.arange(count) % len(captured.prompts)
        # One whose end was not captured goes on to the end of the loop.
        prompts, outputs = captured.prompts, np.where(captured.running, shape.history_len, captured.outputs)
        prompts, outputs = prompts[order], outputs[order]
    elif config.trace is not None:
        prompts, outputs = requests_of_trace(config.trace)
        order = (int(rng.integers(len(prompts))) + np.arange(count)) % len(prompts)
        prompts, outputs = prompts[order], outputs[order]
    else:
        prompts, outputs = draw_lengths(config.prompt_len, count, rng), draw_lengths(config.output_len, count, rng)
    room = shape.max_model_len - 3 * shape.next_n
    outputs = np.minimum(outputs, max(room // 2, 1))
    prompts = np.clip(prompts, 1, np.maximum(room - outputs, 1))
    if not from_capture:  # where the requests of the first step are as far as they were
        done = rng.integers(0, outputs[: shape.num_requests])
        prompts[: shape.num_requests] += done
        outputs[: shape.num_requests] -= done
    return Workload(
        shape=shape,
        acceptance=acceptance_of(config, shape.next_n),
        prompts=prompts,
        outputs=outputs,
        seed=seed,
        delay=int(item.at.scheduling == "async"),
        steps_per_block=config.steps,
        blocks=config.blocks,
    )
