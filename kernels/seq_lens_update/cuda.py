"""seq_lens_update in CUDA C++: after one packed copy (cuda_fused), or reading pinned host memory (cuda_mapped)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from spec_decode_bench.baselines.seq_lens_update.operator import Inputs, Outputs, by_slot
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.seq_lens_update.triton import (
    THREADS,
    Sizes,
    bound_writer,
    device_copy,
    mapped,
    num_blocks,
    sizes,
)

SOURCE = cuda_source(
    Path(__file__).with_name("seq_lens_update.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS}
)


def _update(point: Point, x: Inputs, out: Outputs, host: torch.Tensor) -> Callable[[], None]:
    """Launches the kernel on ``host``, which is to_device or its copy on the device."""
    blocks = num_blocks(len(x.num_scheduled), len(out.seq_lens))
    kernel = "seq_lens_update_slots_kernel" if by_slot(point) else "seq_lens_update_kernel"
    return launcher(SOURCE, kernel, blocks, THREADS, sizes(point, x), bundle(x), bundle(out), host)


@variant("seq_lens_update", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++."""
    host, write_bound = device_copy(x, out), bound_writer(x, out)
    update = _update(point, x, out, host)

    def launch() -> None:
        host.copy_(x.to_device, non_blocking=True)
        update()
        write_bound()

    return launch


@variant("seq_lens_update", requires=GPU, sources=SOURCE)
def cuda_mapped(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The kernel of cuda_fused reads the pinned host array at its own address: no copy, one launch."""
    update, write_bound = _update(point, x, out, mapped(x, out)), bound_writer(x, out)

    def launch() -> None:
        update()
        write_bound()

    return launch
