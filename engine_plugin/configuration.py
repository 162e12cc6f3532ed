"""The section ``engine_plugin:`` of a configuration, the plan of what to do inside an engine.

docs/in-vllm.md describes every key.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

#: Of the section.
KEY = "engine_plugin"
Mode = Literal["capture", "check", "apply", "measure"]
#: engine: its own functions. packed: its own kernels, by launches whose arguments are packed once. suite: the stack.
Arm = Literal["engine", "packed", "suite"]
Count = Annotated[int, Meta(ge=1, le=10**9)]


class EnginePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the plugin does in the engine.

    mode:     capture: write inputs of operators to a file. check: run the stack beside the engine's own functions in
              every step and compare. apply: run the stack in their place and compare in some steps. measure: time steps
              in blocks, with and without it.
    out:      folder of records and captures; a file for each process, NAME-PID.jsonl and NAME-PID.capture.
    stack:    operator -> its variant, in place of the functions of the engine that it covers.
    variants: files with further variants, as of --variants.
    every:    capture: every Nth step is captured; apply: every Nth one is compared.
    first:    apply, measure: steps at the beginning that are compared.
    limit:    capture: steps that are captured.
    token_ids: capture: whether token ids of requests are written; else numbers stand in their place.
    arms:     measure: what takes turns, the first one being the reference.
    steps:    of a block that count. settle: before them, after a switch or an interruption, which do not.
    rounds:   measure: turns of every arm there and back, at each batch size.
    """

    mode: Mode
    out: str
    stack: dict[str, str] = {}
    variants: list[str] = []
    every: Count = 50
    first: Count = 4
    limit: Count = 8
    token_ids: bool = False
    arms: Annotated[tuple[Arm, ...], Meta(min_length=2)] = ("engine", "suite", "packed")
    steps: Annotated[int, Meta(ge=4, le=10_000)] = 20
    settle: Annotated[int, Meta(ge=1, le=1000)] = 4
    rounds: Count = 50
