"""draft_passes of vLLM 0.33: between two passes of the drafter a kernel advances positions, lengths and sampling keys
in place, then slots are mapped, and the indexer's schedule is made and copied. It is DeepGEMM's, as in decode_step.

All passes share one set of buffers there. Here each has its own, because the operator wants the tables of all passes: a
copy by the suite, which is not timed, hands what a pass advances on to the next one.

Model runner V1 takes one kernel per pass for all three; it has one group, and no sampling keys.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from spec_decode_bench.baselines.dcp_lengths import operator as dcp_lengths
from spec_decode_bench.baselines.draft_passes.operator import (
    Inputs,
    Outputs,
    passes,
    schedule_part,
    slots_part,
    with_indexer,
    with_ranks,
)
from spec_decode_bench.baselines.workloads.composition import part_point
from spec_decode_bench.baselines.workloads.request_slots import group_block_sizes, group_tables, num_real
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.kernels.paged_mqa_schedule import triton as schedule_kernel
from spec_decode_bench.upstream import vllm_compute_slot_mappings, vllm_dcp_lengths, vllm_draft_inputs
from spec_decode_bench.upstream._vllm import Definitions, needs_of

NEEDS = (*needs_of((vllm_draft_inputs, vllm_compute_slot_mappings)), vllm_dcp_lengths.CODE.need)
LIMITS = vllm_compute_slot_mappings.LIMITS


def _passes(point: Point, x: Inputs, out: Outputs, slots: Callable, local: Callable, advance: Callable) -> EngineLaunch:
    """slots, local: variants of compute_slot_mappings and dcp_lengths. advance: (point, inputs, outputs of
    draft_inputs, pass) -> launch.
    """
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
        if with_ranks(point):
            launches.append(local(_lengths_point(point), *_lengths(out, i, real)))
        if with_indexer(point):
            launches += [
                _copied(out.schedule[i]),
                own(schedule_kernel.triton_fused(*schedule_part(point, x, out, i + 1))),
            ]
    return EngineLaunch(*launches)


def _lengths_point(point: Point) -> Point:
    return part_point(dcp_lengths.operator, point)


def _lengths(out: Outputs, i: int, real: int) -> tuple[dcp_lengths.Inputs, dcp_lengths.Outputs]:
    """Of pass i, for dcp_lengths."""
    return dcp_lengths.Inputs(out.seq_lens[i], real), dcp_lengths.Outputs(out.local_seq_lens[i])


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
    return _passes(point, x, out, vllm_compute_slot_mappings.vllm, vllm_dcp_lengths.vllm, _kernels)


@variant("draft_passes", requires=NEEDS, known_failures=LIMITS)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's functions around them."""
    return _passes(point, x, out, vllm_compute_slot_mappings.vllm_call, vllm_dcp_lengths.vllm_call, _calls)


# --- model runner V1 --------------------------------------------------------------------------------------------------

STEP = Definitions("v1/spec_decode/utils.py", "eagle_step_slot_mapping_metadata_kernel")
END = "what passes the end gets position 0, length 1 and no slot (vLLM #33503)"


def _skip_v1(point: Point) -> str | None:
    if with_ranks(point):
        return "its kernel knows one rank"
    if point.num_groups > 1:
        return "model runner V1 maps the slots of one group"
    if point.advance == "no":
        return "model runner V1 launches nothing where positions stay"
    return "its kernel makes no schedule" if with_indexer(point) else None


def _fails_v1(point: Point, x: Inputs) -> bool:
    """Where a pass reaches the end of the model's range, or the group is not mapped."""
    real = num_real(point)
    longest = int((x.seq_lens[:real] - x.num_rejected[:real]).max()) + passes(point)
    return longest > point.max_model_len or not bool(x.enabled.all())


@variant(
    "draft_passes",
    requires=STEP.need,
    skip=_skip_v1,
    known_failures={"end of the model's range*": END},
    fails_on=_fails_v1,
)
def vllm_v1(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernel of model runner V1: one launch a pass for positions, lengths and slots. Boundaries, sampling keys
    and what lies behind the batch are not made there: writing them is not timed.
    """
    kernel, real, rows = STEP().eagle_step_slot_mapping_metadata_kernel, num_real(point), point.batch_size
    (block_size,), (by_slot,) = group_block_sizes(point), group_tables(point, x.tables)
    slots, table = x.idx_mapping[:real], by_slot.new_empty((real, by_slot.shape[1]))
    boundaries = torch.arange(point.max_num_seqs + 1, dtype=torch.int32, device=slots.device).clamp(max=real)
    first, ahead = out.positions.new_empty(real), torch.arange(passes(point), device=slots.device)[:, None] + 2

    def before() -> None:
        torch.index_select(by_slot, 0, slots, out=table)
        torch.sub(x.seq_lens[:real], x.num_rejected[:real], out=out.seq_lens[0, :real])
        torch.sub(out.seq_lens[0, :real], 1, out=first)
        torch.add(first, ahead, out=out.sample_src_positions[:, :real])
        out.query_start_loc.copy_(boundaries)
        out.seq_lens[:, real:].zero_()
        out.slot_mappings[:, :, rows:].fill_(-1)

    launches: list[Callable[[], None]] = [own(before)]
    for i in range(passes(point)):
        if i:
            launches.append(own(_copied_from(out.seq_lens[i, :real], out.seq_lens[i - 1, :real])))
        launches.append(
            _step_v1(
                kernel,
                rows,
                out.positions[i - 1, :real] if i else first,
                table,
                table.stride(0),
                out.seq_lens[i],
                out.positions[i],
                out.slot_mappings[i, 0],
                block_size,
                point.max_model_len,
                table.shape[1],
                -1,
                real,
            )
        )
    return EngineLaunch(*launches)


def _copied_from(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None]:
    return lambda: target.copy_(source)


def _step_v1(kernel: Any, rows: int, *arguments: Any) -> Callable[[], None]:
    """The kernel of a pass over all rows of the batch, padding included."""
    return lambda: kernel[(rows,)](*arguments)
