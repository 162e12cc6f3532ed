"""decode_flatten, fused: what each rung of the ladder gained stands in the README's table.

    triton_uniform   one program per token, full rows, separate tail fill: uniform batches only (the kernel of vLLM #39458)
    triton_fused     one launch for every batch, request-major, used blocks only
    cuda_fused       the same in CUDA C++: 16-byte copies, table loads issued before the lengths have arrived

On an H200 both fused variants are 0.3 us above the floor at B = 1 and 0.5 to 0.8 us at B = 256 with short contexts; at
B = 256 with 64K to 128K tokens the CUDA kernel reaches it. The floor is one block that loads and stores; here the
destination address waits for query_start_loc, and blocks, tail and rows grow with B. Steps that were measured at B =
128 (us): loops unrolled 1.92, compact 1.62; the same with all loads of a block in flight and requests on the grid's x
axis 1.55. Blocks of 64 or 32 threads, 16 tail entries per thread and no early table load were all slower.
"""

from __future__ import annotations

import triton
import triton.language as tl

from harness.contract import GPU, variant
from kernels.decode_flatten._kernels import SOURCE, columns_of, cuda_flatten, triton_flatten

# --- one program per token, uniform batches ---------------------------------------------------------------------------


@triton.jit
def _uniform_rows(
    seq_lens, source, lens, decode_lens, table, decode_len, copied, source_stride, table_stride, CHUNK: tl.constexpr
):
    token = tl.program_id(0)
    request = token // decode_len
    tl.store(lens + token, tl.maximum(tl.load(seq_lens + request) - decode_len + token % decode_len + 1, 0))
    tl.store(decode_lens + token, 1)
    columns = tl.arange(0, CHUNK)
    for begin in range(0, copied, CHUNK):
        inside = begin + columns < copied
        entries = tl.load(source + request.to(tl.int64) * source_stride + begin + columns, mask=inside)
        tl.store(table + token.to(tl.int64) * table_stride + begin + columns, entries, mask=inside)


def _exact_uniform_batch(point):
    if point.decode_len != "uniform" or point.padding or point.host_lens == "stale":
        return "uniform batches only"
    if point.token_padding:
        return "no token padding: writes B * L rows"
    return None


def _launch_uniform(x, out, decode_len: int, tokens: int, copied: int):
    def launch():
        _uniform_rows[(tokens,)](
            x.seq_lens,
            x.block_table,
            out.lens,
            out.decode_lens,
            out.block_table,
            decode_len,
            copied,
            x.block_table.stride(0),
            out.block_table.stride(0),
            CHUNK=1024,
        )
        out.lens[tokens:].fill_(0)

    return launch


@variant("decode_flatten", skip=_exact_uniform_batch)
def triton_uniform(point, x, out):
    """Full rows, one program per token, tail zeroed by a second launch; copies no further than both tables are wide."""
    copied = columns_of(x.block_table, out.block_table)
    return _launch_uniform(x, out, point.max_decode_len, x.num_decode_tokens, copied)


@variant(
    "decode_flatten",
    defect="the row copy is bounded by the destination's row stride: reads past narrower rows (vLLM #46074)",
    skip=_exact_uniform_batch,
)
def copy_bounded_by_destination(point, x, out):
    return _launch_uniform(x, out, point.max_decode_len, x.num_decode_tokens, out.block_table.stride(0))


def _uniform_before_padding(point):
    return "uniform batches only" if point.decode_len != "uniform" or point.padding else None


@variant(
    "decode_flatten",
    defect="T is recomputed as B * L: token padding is dropped (vllm-backport #49)",
    skip=_uniform_before_padding,
)
def tokens_recomputed(point, x, out):
    copied = columns_of(x.block_table, out.block_table)
    return _launch_uniform(x, out, point.max_decode_len, point.batch_size * point.max_decode_len, copied)


# --- one launch for every batch ---------------------------------------------------------------------------------------


@variant("decode_flatten")
def triton_fused(point, x, out):
    """One launch for uniform, ragged, padded and token-padded batches; used blocks only; nothing is compiled
    per batch size or table width, and row strides only by whether 16 divides them."""
    return triton_flatten(x, out, point.block_size)


@variant("decode_flatten", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """One launch for every batch in CUDA C++; 16-byte copies where both tables and the lengths are aligned for them."""
    return cuda_flatten(x, out, point.block_size)
