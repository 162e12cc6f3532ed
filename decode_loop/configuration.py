"""The section ``decode_loop:`` of a configuration; loops.py plans the loops of it.

docs/decode-loop.md describes every key.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1, le=2**20)]
Microseconds = Annotated[float, Meta(gt=0, le=1e7)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Scheduling = Literal["sync", "async"]
GraphMode = Literal["none", "full"]

#: Batch sizes for which vLLM captures graphs by default.
CAPTURED = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))


class AcceptLengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured tokens per step; one of them is drawn for each request and step."""

    accept_lengths: Annotated[list[Positive], Meta(min_length=1)]


class Geometry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a model and of the engine that serves it.

    block_size:             tokens of a KV block.
    max_model_len:          longest sequence, which fixes the width of the tables.
    num_heads_q:            query heads per rank.
    num_layers:             Mamba layers of the model.
    mamba_block_size:       tokens between two cached Mamba states.
    max_num_seqs:           capacity of the per-request buffers.
    max_num_batched_tokens: capacity of the per-token buffers.
    num_sms:                SMs that the schedules distribute work over.
    state_groups:           cache groups of recurrent states, where a loop runs the operators of a whole step.
    """

    block_size: Positive = 64
    max_model_len: Annotated[int, Meta(ge=1, lt=2**30)] = 163840
    num_heads_q: Positive = 128
    num_layers: Positive = 40
    mamba_block_size: Positive = 1024
    max_num_seqs: Positive = 1024
    max_num_batched_tokens: Positive = 8192
    num_sms: Annotated[int, Meta(ge=1, le=512)] = 132
    state_groups: Annotated[int, Meta(ge=0, le=8)] = 0


#: Name -> geometry. The models' published configurations; KV blocks of 64 tokens as their sparse attention needs them.
GEOMETRIES = {
    "deepseek_v3_2": Geometry(),
    "glm_5": Geometry(max_model_len=202752, num_heads_q=64),
    "nemotron_h": Geometry(max_model_len=262144, num_heads_q=32),
}


class DecodeLoop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A loop of decode steps for every combination of concurrency, next_n, model step, scheduling and graph mode.

    stacks:         name -> operator -> its variant, in the order of a step. A list of variants means the first that
                    applies to the loop.
    concurrency:    requests that decode at the same time.
    reference:      stack that deltas refer to; unless given, the first one whose engine is installed.
    geometry:       preset, or a mapping of its fields with the preset to start from under the key preset.
    next_n:         tokens per request and step: one and the drafts.
    acceptance:     probability that a draft is accepted given that those before it were, one for all positions or a
                    list; or measured tokens per step, {accept_lengths: [...]}.
    trace:          recorded requests, as in context_len; instead of prompt_len and output_len. A capture also gives the
                    acceptance, unless that is set.
    prompt_len:     tokens of a prompt: a number or a distribution, as in context_len.
    output_len:     tokens that a request produces, likewise.
    model_step_us:  time of a model step on the device, microseconds.
    host_step_us:   work of the scheduler between two steps beyond what the loop itself does, microseconds.
    captured:       batch sizes of captured graphs; a batch is padded up to the next one.
    scheduling:     sync: the host waits for the accepted counts before it prepares a step. async: it runs a step ahead.
    graph:          none: metadata is launched eagerly. full: it is captured with the model step.
    decode_path:    of the sparse indexer; none: of a step_prologue without one, as a dense model has it.
    blocks:         turns of each stack. steps: of a turn.
    """

    stacks: Annotated[dict[str, dict[str, str | list[str]]], Meta(min_length=1)]
    concurrency: Positive | Annotated[list[Positive], Meta(min_length=1)]
    reference: str | None = None
    geometry: str | dict[str, Any] = "deepseek_v3_2"
    next_n: Positive | Annotated[list[Positive], Meta(min_length=1)] = 4
    acceptance: Probability | Annotated[list[Probability], Meta(min_length=1)] | AcceptLengths = 0.75
    trace: str | None = None
    prompt_len: Any = None
    output_len: Any = None
    model_step_us: Microseconds | Annotated[list[Microseconds], Meta(min_length=1)] = 12000.0
    host_step_us: Annotated[float, Meta(ge=0, le=1e7)] = 0.0
    captured: Annotated[tuple[Positive, ...], Meta(min_length=1)] = CAPTURED
    scheduling: Scheduling | Annotated[list[Scheduling], Meta(min_length=1)] = "sync"
    graph: GraphMode | Annotated[list[GraphMode], Meta(min_length=1)] = "none"
    decode_path: Literal["flatten", "native", "none"] = "flatten"
    blocks: Annotated[int, Meta(ge=4, le=10_000)] = 10
    steps: Annotated[int, Meta(ge=8, le=10_000)] = 12


def as_list(value: Any) -> list[Any]:
    return list(dict.fromkeys(value)) if isinstance(value, list) else [value]


def geometry_name(config: DecodeLoop) -> str:
    given = config.geometry
    return given if isinstance(given, str) else str(given.get("preset", "custom"))
