"""mla_tile_schedule, fused: one launch that writes both persistent buffers, where upstream has a serial kernel and two
copies.

    triton_fused     one program, the search for the starts in two levels of a table
    cuda_fused       one block, a binary search per start

Greedy over requests is a serial chain of B + P steps, and a search per part is still one of P. Here the starts are
taken as an arithmetic progression in units of cost, which steps out of line only where a part is stretched by up to
``overhead`` to end on a request: a part that must pay the overhead again would get nothing for it. All parts look for
that at once, the first that is stretched shifts the later ones, and so on: as many rounds as stretched parts. Those are
about 6 in 100 where requests are 100 blocks long, but all P where every request is one block, or where all are alike
and a part falls just short of whole requests.

On an H200, us in Triton and CUDA C++ (floor 1.06; the aim was 10 at 132 parts): 2.01 and 2.19 at B = 128 with 16 parts,
2.28 and 2.50 at B = 1024, 5.57 and 3.94 at B = 1024 with 132 parts.
"""

from __future__ import annotations

from harness.contract import GPU, variant
from kernels.mla_tile_schedule._kernels import SOURCE, cuda_tiles, triton_tiles


@variant("mla_tile_schedule")
def triton_fused(point, x, out):
    """One program; compiled for batches up to 128, 1024 and 4096 requests, and up to 32, 256 and 512 parts."""
    return triton_tiles(
        x.seq_lens,
        out.tile_scheduler_metadata,
        out.num_splits,
        point.num_sm_parts,
        point.overhead,
        point.layout == "old",
    )


@variant("mla_tile_schedule", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """The same in CUDA C++, one block of 256 threads."""
    return cuda_tiles(
        x.seq_lens,
        out.tile_scheduler_metadata,
        out.num_splits,
        point.num_sm_parts,
        point.overhead,
        point.layout == "old",
    )
