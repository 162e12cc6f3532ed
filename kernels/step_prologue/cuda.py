"""step_prologue in CUDA C++: the launch of step_prologue.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from spec_decode_bench.baselines.gather_block_tables.operator import rows_to_write
from spec_decode_bench.baselines.step_prologue.operator import Inputs, Outputs, indexer_part, states_part, with_indexer
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import (
    group_tables,
    group_widths,
    num_real,
    table_starts,
    warps_per_row,
)
from spec_decode_bench.harness.bundle import bundle, bundle_type
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.compute_slot_mappings import cuda as compute_slot_mappings
from spec_decode_bench.kernels.decode_flatten import cuda as decode_flatten
from spec_decode_bench.kernels.decode_flatten.cuda import access_width
from spec_decode_bench.kernels.decode_flatten.triton import STRIP_SIZES, request_grid
from spec_decode_bench.kernels.decode_step import cuda as decode_step_cuda
from spec_decode_bench.kernels.decode_step import triton as decode_step
from spec_decode_bench.kernels.decode_step.cuda import Tables
from spec_decode_bench.kernels.gather_block_tables import cuda as gather_block_tables
from spec_decode_bench.kernels.gather_block_tables.triton import strips_of
from spec_decode_bench.kernels.mamba_align_step import cuda as mamba_align_step
from spec_decode_bench.kernels.mamba_align_step.triton import arguments as states_arguments
from spec_decode_bench.kernels.step_inputs import cuda as step_inputs
from spec_decode_bench.kernels.step_prologue.triton import INPUTS, OUTPUTS, Programs, Sizes, sizes

THREADS, LANES = 256, 8


class Indexer(NamedTuple):
    """out, n: of decode_step. tables: what flattening takes further."""

    out: bundle_type(decode_step.Outputs, *decode_step.OUTPUTS)
    n: decode_step.Sizes
    tables: Tables


SOURCE = cuda_source(
    Path(__file__).with_name("step_prologue.cu"),
    Programs,
    Sizes,
    bundle_type(Inputs, *INPUTS),
    bundle_type(Outputs, *OUTPUTS),
    Indexer,
    constants={"THREADS": THREADS},
    uses=(
        compute_slot_mappings.SOURCE,
        decode_step_cuda.SOURCE,
        gather_block_tables.SOURCE,
        mamba_align_step.SOURCE,
        step_inputs.SOURCE,
    ),
)


@variant("step_prologue", requires=GPU, sources=SOURCE, sizes=STRIP_SIZES | {"num_sms": (THREADS - 1,)})
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, with the device functions of the operators' own kernels."""
    rows, num_reqs, capacity = point.batch_size, num_real(point), point.max_num_seqs
    aligned = all(size % 4 == 0 for size in (*group_widths(point), *table_starts(point)))
    vector = 4 if aligned and x.tables.data_ptr() % 16 == out.block_tables.data_ptr() % 16 == 0 else 1
    kernel, further, counts = "step_prologue", [], {}
    if with_indexer(point):
        at, step, made = indexer_part(point, x, out)
        vector = min(vector, access_width(step, made))
        num_schedulers = 1 + cdiv(point.num_sms + 1, THREADS)
        across, strips = cdiv(rows * point.max_decode_len, THREADS), 1
        if point.indexer == "flatten":
            across, strips = request_grid(step, made, THREADS * vector)
        counts = {"num_schedulers": num_schedulers, "num_length_blocks": across * strips, "flatten_strips": strips}
        by_slot = group_tables(point, x.tables)[0]
        flatten = decode_flatten.cuda_sizes(at, step, made)._replace(source_stride=by_slot.stride(0))
        tables = Tables(by_slot, made.block_table, flatten)
        indexer = Indexer(bundle(made, *decode_step.OUTPUTS), decode_step.sizes(at, step, num_schedulers), tables)
        # Where no group has states nothing of them is read.
        kernel, further = f"step_prologue_{point.indexer}", [indexer, states_arguments(*states_part(point, x, out))]
    elif point.state_groups:
        kernel, further = "step_prologue_states", [states_arguments(*states_part(point, x, out))]
    table_strips = strips_of(point, THREADS * vector, THREADS)
    programs = Programs(
        num_schedulers=0,
        num_input_blocks=max(cdiv(num_reqs, THREADS // 32), cdiv(capacity - num_reqs, THREADS)),
        num_slot_blocks=max(cdiv(rows, THREADS // 32), cdiv(point.max_num_batched_tokens, 4 * THREADS)),
        num_state_blocks=cdiv(rows, THREADS // LANES) if point.state_groups else 0,
        num_length_blocks=0,
        num_table_blocks=rows_to_write(point) * table_strips,
        num_groups=point.num_groups,
        row_strips=warps_per_row(point),
        table_strips=table_strips,
        flatten_strips=1,
    )._replace(**counts)
    arguments = [programs, sizes(point), bundle(x, *INPUTS), bundle(out, *OUTPUTS), *further]
    return launcher(SOURCE, f"{kernel}_kernel_vec{vector}", programs.total(), THREADS, *arguments)
