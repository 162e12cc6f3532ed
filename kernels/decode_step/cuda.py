"""decode_step in CUDA C++: the launch. triton.py explains why one is enough, decode_step.cu how blocks share work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.decode_flatten.operator import copied_columns
from baselines.decode_step.operator import Inputs, Outputs, schedule_point
from baselines.workloads.integers import cdiv, reciprocal
from harness.contract import GPU, Point, variant
from harness.cuda import launcher
from harness.launch import replayed
from kernels.decode_flatten.cuda import access_width
from kernels.decode_flatten.triton import STRIP_SIZES, request_grid

SOURCE = Path(__file__).with_name("decode_step.cu")
#: As in the CUDA source.
THREADS = 256


#: From THREADS - 1 SMs on, one more block writes the schedule.
SIZES = STRIP_SIZES | {"num_sms": (THREADS - 1,)}


@variant("decode_step", requires=GPU, sources=SOURCE, sizes=SIZES)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, with the device functions of the operators' own kernels."""
    size, width = point.batch_size, point.max_decode_len
    schedulers = 1 + cdiv(point.num_sms + 1, THREADS)
    many = "one" if size <= THREADS else "many"
    arguments = (
        x.seq_lens,
        x.query_start_loc,
        out.schedule,
        out.tile_scheduler_metadata,
        out.num_splits,
        schedulers,
        size,
        cdiv(size, THREADS),
        point.num_sms,
        *reciprocal(point.num_sms),
        int(point.remainder == "back"),
        point.num_sm_parts,
        point.overhead,
        *reciprocal(point.num_sm_parts),
        int(point.layout == "old"),
    )
    if point.decode_path == "native":
        grid, atoms = schedulers + cdiv(size * width, THREADS), schedule_point(point, "native").atoms
        return launcher(SOURCE, f"native_{many}", grid, THREADS, *arguments, out.lens, out.decode_lens, width, atoms)
    vector = access_width(x, out)
    across, strips = request_grid(x, out, THREADS * vector)
    return launcher(
        SOURCE,
        f"flatten_vec{vector}_{many}",
        (schedulers + across, strips),
        THREADS,
        *arguments,
        x.block_table,
        out.lens,
        out.decode_lens,
        out.block_table,
        x.num_decode_tokens,
        out.lens.numel(),
        point.block_size,
        copied_columns(x, out),
        x.block_table.stride(0),
        out.block_table.stride(0),
    )


@variant("decode_step", requires=GPU, sources=SOURCE, sizes=SIZES)
def cuda_replayed(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """cuda_fused, captured at set-up and replayed as a graph of one node: less host time. The host may not change an
    argument, as it could for cuda_fused.
    """
    return replayed(cuda_fused(point, x, out))
