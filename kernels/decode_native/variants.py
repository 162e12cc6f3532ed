"""decode_native, fused: one launch where the operator chain takes four to six. B * L threads, a load or two and a store
each.

On an H200, us in Triton and CUDA C++: 1.07 and 1.11 at B = 1, 1.09 and 1.13 at B = 128, 1.24 and 1.26 at B = 1024,
where the floor is 1.06 to 1.07.
"""

from __future__ import annotations

from harness.contract import GPU, variant
from kernels.decode_native._kernels import SOURCE, cuda_context_lens, triton_context_lens


@variant("decode_native")
def triton_fused(point, x, out):
    """One launch, clamp and compression included, straight into the flat buffer."""
    front = point.row_alignment == "front"
    return triton_context_lens(x.seq_lens, x.decode_lens, out.buffer, point.max_decode_len, point.compress_ratio, front)


@variant("decode_native", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """The same in CUDA C++."""
    front = point.row_alignment == "front"
    return cuda_context_lens(x.seq_lens, x.decode_lens, out.buffer, point.max_decode_len, point.compress_ratio, front)
