"""step_prologue as the fused kernels of its parts, one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from spec_decode_bench.baselines.step_prologue.operator import PARTS, Inputs, Outputs
from spec_decode_bench.baselines.workloads.request_slots import group_tables
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.kernels.compute_slot_mappings import cuda as slots_cuda
from spec_decode_bench.kernels.decode_flatten import cuda as flatten_cuda
from spec_decode_bench.kernels.decode_step import sequence as step_sequence
from spec_decode_bench.kernels.gather_block_tables import cuda as tables_cuda
from spec_decode_bench.kernels.mamba_align_step import cuda as states_cuda
from spec_decode_bench.kernels.step_inputs import cuda as inputs_cuda

CUDA_PARTS = (inputs_cuda, tables_cuda, slots_cuda, states_cuda)


@variant(
    "step_prologue",
    requires=GPU,
    sources=[*(part.SOURCE for part in CUDA_PARTS), *(part.SOURCE for part in step_sequence.CUDA_PARTS)],
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

        others = [part.cuda_fused for part in step_sequence.CUDA_PARTS[1:]]
        return step_sequence.sequence(step, inputs, outputs, flatten, *others)

    return PARTS.sequence(*(part.cuda_fused for part in CUDA_PARTS), indexer)(point, x, out)
