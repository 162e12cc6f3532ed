"""decode_native in CUDA C++: the launch of decode_native.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.decode_native.operator import Inputs, Outputs
from baselines.workloads.integers import cdiv
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("decode_native.cu")
THREADS = 128


@variant("decode_native", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++."""
    batch_size, width = len(x.seq_lens), point.max_decode_len
    return launcher(
        SOURCE,
        "context_lens",
        cdiv(batch_size * width, THREADS),
        THREADS,
        x.seq_lens,
        x.decode_lens,
        out.buffer,
        batch_size,
        width,
        point.compress_ratio,
        int(point.row_alignment == "front"),
    )
