"""Historic bugs of step_prologue, kept as negative controls: parts of different steps, rows or groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.decode_step import chains as decode_step
from spec_decode_bench.baselines.step_prologue.chains import CHAINS, on_device, op_chain
from spec_decode_bench.baselines.step_prologue.operator import PARTS, Inputs, Outputs, with_indexer
from spec_decode_bench.baselines.workloads.broken import on_changed
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


def _with_indexer(point: Point) -> str | None:
    return on_device(point) or (None if with_indexer(point) else "no indexer")


def _with_states(point: Point) -> str | None:
    return on_device(point) or (None if point.state_groups else "no group holds states")


def _several_groups(point: Point) -> str | None:
    return on_device(point) or (None if point.num_groups - point.state_groups > 1 else "one group")


@variant(
    "step_prologue",
    defect="the indexer gets the host's bound instead of the exact lengths (vllm-ascend #8914)",
    skip=_with_indexer,
)
def bounds_for_lengths(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def indexer(at: Point, step: decode_step.Inputs, made: decode_step.Outputs) -> Callable[[], None]:
        def bounds() -> torch.Tensor:
            return (step.seq_lens + point.next_n - 1).clamp(max=point.max_model_len) * (step.seq_lens > 0)

        return on_changed(decode_step.op_chain, at, step, made, seq_lens=bounds)

    return PARTS.sequence(*CHAINS[:-1], indexer)(point, x, out)


@variant(
    "step_prologue", defect="boundaries of set-up, stale under adaptive verification (vLLM #52795)", skip=on_device
)
def boundaries_of_setup(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    stale = replace(x, query_start_loc=x.query_start_loc.clone(), cu_num_logits=x.cu_num_logits.clone())
    return op_chain(point, stale, out)


@variant(
    "step_prologue",
    defect="further groups keep the slot mapping of the first one (like vLLM #34865)",
    skip=_several_groups,
)
def slots_of_the_first_group(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    others = out.slot_mappings[1 : point.num_groups - point.state_groups]
    return in_sequence(op_chain(point, x, out), lambda: others.copy_(out.slot_mappings[:1].expand_as(others)))


@variant(
    "step_prologue",
    defect="padding rows write the states of the request in slot 0 (like vLLM #49757)",
    skip=_with_states,
)
def padding_rows_own_slot_0(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Slot -1 is clamped for the gather and never told apart again."""
    states = x.tables[x.starts[point.num_groups - point.state_groups] :][: point.next_n]
    slots = out.state_slots[:, : point.batch_size]
    return in_sequence(
        op_chain(point, x, out),
        lambda: slots.copy_(torch.where((x.idx_mapping < 0)[None, :, None], states, slots)),
    )


@variant(
    "step_prologue",
    defect="columns of states are counted in blocks of attention (vLLM #53142, #55507)",
    skip=_with_states,
)
def scheduler_block_size(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def recount() -> None:
        s = x.idx_mapping.clamp(min=0)
        length = x.num_computed_tokens[s] + torch.diff(x.query_start_loc[: point.batch_size + 1])
        column = (length - 1).clamp(min=0) // point.block_size
        out.state_columns[s] = torch.where(x.idx_mapping >= 0, column, out.state_columns[s]).int()

    return in_sequence(op_chain(point, x, out), recount)
