"""mamba_spec_metadata of vLLM 0.33's model runner V1, where each metadata builder makes its aligned table."""

from __future__ import annotations

import os
from collections.abc import Callable

import triton

from spec_decode_bench.baselines.mamba_spec_metadata.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.mamba_steps import slots_per_step
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.upstream._vllm import Definitions
from spec_decode_bench.upstream.vllm import INTERPRETED

ALIGNED_TABLE = Definitions("v1/attention/backends/utils.py", "_mamba_align_block_table_kernel")


@variant(
    "mamba_spec_metadata",
    requires=ALIGNED_TABLE.need,
    skip=lambda p: None if p.cache_mode == "align" else "vLLM's kernel is for mode align",
    known_failures={
        "align, no real request, all rows hold stale inputs": "vLLM zeroes the lengths of padding before (vLLM #16072)",
    }
    | (INTERPRETED if os.environ.get("TRITON_INTERPRET") == "1" else {}),
)
def vllm_v1(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's aligned table of a metadata builder in model runner V1, the copy of its rows into the persistent buffer,
    and the staging of accepted counts, both with their padding.
    """
    kernel = ALIGNED_TABLE()._mamba_align_block_table_kernel
    rows, slots = point.batch_size, slots_per_step(point)
    fresh = out.input_slots.new_empty((rows, slots))
    targets = ((out.input_slots, fresh, 0), (out.num_accepted_tokens, x.num_accepted_tokens, 1))
    parts = [(to[: x.num_decodes], made[: x.num_decodes], to[x.num_decodes : rows], pad) for to, made, pad in targets]

    def launch() -> None:
        kernel[(rows,)](
            fresh,
            x.block_table,
            *x.block_table.stride(),
            x.seq_lens,
            x.seq_lens.stride(0),
            point.mamba_block_size,
            slots,
            BLOCK=triton.next_power_of_2(slots),
        )
        for real, made, padding, pad in parts:
            real.copy_(made)
            padding.fill_(pad)

    return launch
