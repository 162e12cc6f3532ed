"""draft_passes of vLLM 0.33: between two passes of the drafter a kernel advances positions, lengths and sampling keys
in place, then slots are mapped, and the indexer's schedule is made and copied. It is DeepGEMM's, as in decode_step.

All passes share one set of buffers there. Here each has its own, because the operator wants the tables of all passes: a
copy by the suite, which is not timed, hands what a pass advances on to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

from spec_decode_bench.baselines.draft_passes.operator import (
    Inputs,
    Outputs,
    passes,
    schedule_part,
    slots_part,
    with_indexer,
)
from spec_decode_bench.baselines.workloads.request_slots import num_real
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.kernels.paged_mqa_schedule import triton as schedule_kernel
from spec_decode_bench.upstream import vllm_compute_slot_mappings, vllm_draft_inputs
from spec_decode_bench.upstream._vllm import needs_of

NEEDS = needs_of((vllm_draft_inputs, vllm_compute_slot_mappings))
LIMITS = vllm_compute_slot_mappings.LIMITS


def _passes(point: Point, x: Inputs, out: Outputs, slots: Callable, advance: Callable) -> EngineLaunch:
    """slots: a variant of compute_slot_mappings. advance: (point, inputs, outputs of draft_inputs, pass) -> launch."""
    real, device = num_real(point), out.positions.device
    tokens, hidden = torch.zeros(real, dtype=torch.int64, device=device), torch.empty(real, 1, device=device)
    drafts = torch.zeros(real, point.next_n - 1, dtype=torch.int64, device=device)
    shared = {
        "input_ids": torch.empty(real, dtype=torch.int32, device=device),
        "query_start_loc": out.query_start_loc,
        "hidden_states": hidden,
        "draft_tokens": drafts,
    }
    inputs = SimpleNamespace(
        seq_lens=x.seq_lens[:real],
        num_rejected=x.num_rejected[:real],
        draft_tokens=drafts,
        sampled=tokens,
        hidden_states_before=torch.empty_like(hidden),
        current_draft_step=torch.ones(1, dtype=torch.int64, device=device),
    )
    launches: list[Callable[[], None]] = []
    for i in range(passes(point)):
        by_pass = {name: getattr(out, name)[i] for name in ("positions", "seq_lens", "sample_src_positions")}
        made = SimpleNamespace(**by_pass, **shared)
        launches += [own(_handed_on(inputs, out, i, real)), advance(point, inputs, made, i)]
        launches.append(slots(*slots_part(point, x, out, i + 1)))
        if with_indexer(point):
            launches += [
                _copied(out.schedule[i]),
                own(schedule_kernel.triton_fused(*schedule_part(point, x, out, i + 1))),
            ]
    return EngineLaunch(*launches)


def _copied(schedule: torch.Tensor) -> Callable[[], None]:
    """vLLM's copy of DeepGEMM's schedule, before the suite makes the real one in its place."""
    fresh = torch.zeros_like(schedule)
    return lambda: schedule.copy_(fresh)


def _handed_on(x: SimpleNamespace, out: Outputs, i: int, real: int) -> Callable[[], None]:
    """Where the first pass ended, or what the pass before has advanced; the lengths with those of padding rows."""
    pos, src = out.positions[i, :real], out.sample_src_positions[i, :real]
    if i == 0:

        def launch() -> None:
            torch.sub(x.seq_lens, x.num_rejected, out=src)
            torch.sub(src, 1, out=pos)

    else:

        def launch() -> None:
            pos.copy_(out.positions[i - 1, :real])
            src.copy_(out.sample_src_positions[i - 1, :real])
            out.seq_lens[i].copy_(out.seq_lens[i - 1])

    return launch


def _kernels(point: Point, x: SimpleNamespace, out: SimpleNamespace, i: int) -> Callable[[], None]:
    made = vllm_draft_inputs.second_pass if i == 0 else vllm_draft_inputs.later_pass
    return made(point, x, out)


def _calls(point: Point, x: SimpleNamespace, out: SimpleNamespace, i: int) -> Callable[[], None]:
    made = vllm_draft_inputs.second_call if i == 0 else vllm_draft_inputs.later_call
    return made(point, x, out)


@variant("draft_passes", requires=NEEDS, known_failures=LIMITS)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernels: two launches a pass, and the copy of the indexer's schedule. The hidden row has one value."""
    return _passes(point, x, out, vllm_compute_slot_mappings.vllm, _kernels)


@variant("draft_passes", requires=NEEDS, known_failures=LIMITS)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's functions around them."""
    return _passes(point, x, out, vllm_compute_slot_mappings.vllm_call, _calls)
