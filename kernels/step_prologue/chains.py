"""step_prologue as an engine launches it, and as the fused kernels of its parts in sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from spec_decode_bench.baselines.decode_step.operator import native_part, schedule_part, tile_part
from spec_decode_bench.baselines.step_prologue.operator import PARTS, Inputs, Outputs, indexer_part
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.baselines.workloads.request_slots import group_tables
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.kernels.compute_slot_mappings import chains as slots_unfused
from spec_decode_bench.kernels.compute_slot_mappings import cuda as slots_cuda
from spec_decode_bench.kernels.decode_flatten import cuda as flatten_cuda
from spec_decode_bench.kernels.decode_flatten import triton as flatten_triton
from spec_decode_bench.kernels.decode_step import chains as step_chains
from spec_decode_bench.kernels.gather_block_tables import chains as tables_unfused
from spec_decode_bench.kernels.gather_block_tables import cuda as tables_cuda
from spec_decode_bench.kernels.mamba_align_step import chains as states_unfused
from spec_decode_bench.kernels.mamba_align_step import cuda as states_cuda
from spec_decode_bench.kernels.mla_tile_schedule import triton as tiles_triton
from spec_decode_bench.kernels.paged_mqa_schedule import triton as schedule_triton
from spec_decode_bench.kernels.step_inputs import chains as inputs_unfused
from spec_decode_bench.kernels.step_inputs import cuda as inputs_cuda


def _unfused_lengths(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Lengths and table rows of the indexer. Native: six PyTorch operators. Flattened: the fused kernel, where vLLM has
    a kernel and a fill for a uniform batch and 18 operators for another one, so that this is a lower bound.
    """
    step, inputs, outputs = indexer_part(point, x, out)
    if step.decode_path == "flatten":
        return flatten_triton.triton_fused(step, inputs, outputs)
    width, decode_lens = point.max_decode_len, native_part(step, inputs, outputs)[1].decode_lens
    lens = outputs.lens[: point.batch_size * width].view(-1, width)
    columns = torch.arange(width, dtype=torch.int32, device=lens.device)
    ends, seq_lens = x.query_start_loc[1 : point.batch_size + 1], inputs.seq_lens[:, None]

    def launch() -> None:
        torch.sub(ends, x.query_start_loc[: point.batch_size], out=decode_lens)
        lens.copy_((seq_lens - width + 1 + columns).clamp(min=0))

    return launch


def _unfused_indexer(point: Point, x: Inputs, out: Outputs) -> list[Callable[[], None]]:
    """Lengths, then two schedules, each made in fresh tensors and copied into the persistent ones."""
    step, inputs, outputs = indexer_part(point, x, out)
    names = ("schedule", "tile_scheduler_metadata", "num_splits")
    fresh = replace(outputs, **{name: torch.zeros_like(getattr(outputs, name)) for name in names})
    copies = [
        (outputs.schedule, fresh.schedule),
        (outputs.tile_scheduler_metadata[: point.num_sm_parts], fresh.tile_scheduler_metadata[: point.num_sm_parts]),
        (outputs.num_splits[: point.batch_size + 1], fresh.num_splits[: point.batch_size + 1]),
    ]

    def launch() -> None:
        for target, source in copies:
            target.copy_(source)

    return [
        _unfused_lengths(point, x, out),
        schedule_triton.triton_fused(*schedule_part(step, fresh)),
        tiles_triton.triton_fused(*tile_part(step, inputs, fresh)),
        launch,
    ]


@variant("step_prologue", waives="no_alloc")
def unfused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The engine's way, one launch per launch of vLLM 0.33: 6 or 7, 6 more with states, 6 or 11 with an indexer."""
    indexer = lambda *part: in_sequence(*_unfused_indexer(point, x, out))  # noqa: E731
    parts = (inputs_unfused, tables_unfused, slots_unfused, states_unfused)
    return PARTS.sequence(*(part.unfused for part in parts), indexer)(point, x, out)


CUDA_PARTS = (inputs_cuda, tables_cuda, slots_cuda, states_cuda)


@variant(
    "step_prologue",
    requires=GPU,
    sources=[*(part.SOURCE for part in CUDA_PARTS), *(part.SOURCE for part in step_chains.CUDA_PARTS)],
)
def cuda_sequence(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The fused CUDA kernels of the parts in sequence: three launches, one more with states, 3 or 4 with an indexer.
    decode_flatten reads the tables by slot: it copies whole vectors, and the unused columns of the gathered ones hold
    anything.
    """

    def indexer(step: Point, inputs: Any, outputs: Any) -> Callable[[], None]:
        tables_by_slot = replace(inputs, block_table=group_tables(point, x.tables)[0])

        def flatten(*_: object) -> Callable[[], None]:
            return flatten_cuda.by_slot(step, tables_by_slot, outputs, x.idx_mapping, x.num_computed_tokens)

        others = [part.cuda_fused for part in step_chains.CUDA_PARTS[1:]]
        return step_chains.sequence(step, inputs, outputs, flatten, *others)

    return PARTS.sequence(*(part.cuda_fused for part in CUDA_PARTS), indexer)(point, x, out)
