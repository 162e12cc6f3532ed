"""paged_mqa_schedule, fused: one launch, straight into the persistent table, nothing compiled per batch size.

    triton_fused   a few rows of the table per program: every program scans all lengths and counts those before its rows
    cuda_fused     one block: a scan, one barrier, a binary search per row

Triton cannot index shared memory, and a search by tl.gather costs a barrier per step; counting costs one reduction. For
that the lengths are read once per program, from L2. In CUDA C++ a step of the search is one shared-memory load.

On an H200, us in Triton and CUDA C++ (floor 1.06): 2.26 and 1.49 at B = 128, 2.23 and 2.17 at B = 1024, where the aims
were 1.6 and 2.2. Triton meets neither.
"""

from __future__ import annotations

from torch import Tensor

from harness.contract import GPU, variant
from kernels.paged_mqa_schedule._kernels import SOURCE, cuda_schedule, triton_schedule


def _lens(x) -> Tensor:
    """One length per request: the last column of a matrix, without a copy."""
    return x.context_lens if x.context_lens.dim() == 1 else x.context_lens[:, -1]


@variant("paged_mqa_schedule")
def triton_fused(point, x, out):
    """One launch; every program scans the lengths and counts the requests before its rows. Two tile sizes are
    compiled.
    """
    return triton_schedule(_lens(x), out.schedule, point.num_sms, point.atoms, point.remainder == "back")


@variant("paged_mqa_schedule", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """One launch, one block on any GPU of today: a scan, one barrier and a binary search per row; any batch in 1 KB of
    shared memory.
    """
    return cuda_schedule(_lens(x), out.schedule, point.num_sms, point.atoms, point.remainder == "back")
