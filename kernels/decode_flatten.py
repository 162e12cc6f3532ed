"""decode_flatten, fused: what each rung of the ladder gained stands in the README's table.

    triton_uniform   one program per token, full rows, separate tail fill: uniform batches only (the kernel of vLLM #39458)
    triton_fused     one launch for every batch, request-major, used blocks only
    cuda_fused       the same in CUDA C++: 16-byte copies, table loads issued before the lengths have arrived

On an H200 both fused variants are 0.3 us above the floor at B = 1 and 0.4 to 0.7 us at B = 256 with short contexts; at 64K
to 128K tokens the CUDA kernel reaches it. The floor is one block that loads and stores; here the destination address
waits for query_start_loc, and blocks, tail and rows grow with B. Steps that were measured at B = 128 (us): loops unrolled
1.92, compact 1.62; the same with all loads of a block in flight and requests on the grid's x axis 1.55. Blocks of 64 or
32 threads, 16 tail entries per thread and no early table load were all slower.
"""

from __future__ import annotations

from pathlib import Path

import triton
import triton.language as tl

from harness.contract import GPU, variant
from harness.cuda import launcher

SOURCE = Path(__file__).parent / "cuda" / "decode_flatten.cu"
THREADS = 256
COLUMNS_PER_PROGRAM = 512
#: Blocks of the request part at which a table row is no longer split further: four per SM of a large GPU. Half as many are
#: 2 % faster where all contexts are short, but then one request of 134K tokens among 255 short ones makes the launch 40 %
#: slower, because one block copies its whole row strip after strip; twice as many cost 4 % at B = 256.
TARGET_BLOCKS = 528


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _grid(batch_size: int, columns: int, columns_per_block: int, capacity: int, tail_per_block: int) -> tuple[int, int]:
    """(requests and columns of blocks that clear the tail, strips a table row is split over).

    No more strips than a row has columns for, fewer where the requests fill the GPU anyway.
    """
    strips = max(1, min(_cdiv(columns, columns_per_block), TARGET_BLOCKS // batch_size))
    return batch_size + _cdiv(_cdiv(capacity, tail_per_block), strips), strips


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
            x.seq_lens, x.block_table, out.lens, out.decode_lens, out.block_table,
            decode_len, copied, x.block_table.stride(0), out.block_table.stride(0), CHUNK=1024,
        )  # fmt: skip
        out.lens[tokens:].fill_(0)

    return launch


@variant("decode_flatten", skip=_exact_uniform_batch)
def triton_uniform(point, x, out):
    """Full rows, one program per token, tail zeroed by a second launch; copies no further than both tables are wide."""
    copied = min(x.block_table.shape[1], out.block_table.shape[1])
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


@variant("decode_flatten", defect="T is recomputed as B * L: token padding is dropped (vllm-backport #49)", skip=_uniform_before_padding)
def tokens_recomputed(point, x, out):
    copied = min(x.block_table.shape[1], out.block_table.shape[1])
    return _launch_uniform(x, out, point.max_decode_len, point.batch_size * point.max_decode_len, copied)


# --- one launch for every batch ---------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["batch_size", "num_tokens", "capacity", "columns"])
def _fused(
    seq_lens, query_start_loc, source, lens, decode_lens, table,
    batch_size, num_tokens, capacity, columns, source_stride, table_stride,
    BLOCK_SIZE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    request, strip = tl.program_id(0), tl.program_id(1)
    strips = tl.num_programs(1)
    lanes = tl.arange(0, COLUMNS)
    if request < batch_size:
        row = source + request.to(tl.int64) * source_stride
        # Issued before the lengths are known: one memory latency instead of two. Later strips are rarely used.
        entries = tl.load(row + lanes, mask=lanes < columns - strip * columns, other=0)
        start = tl.load(query_start_loc + request)
        decode_len = tl.load(query_start_loc + request + 1) - start
        seq_len = tl.load(seq_lens + request)
        rows = tl.minimum(decode_len, num_tokens - start)
        first = table + start.to(tl.int64) * table_stride
        begin = strip * COLUMNS
        if strip == 0:
            for j in range(0, rows, COLUMNS):
                inside = j + lanes < rows
                tl.store(lens + start + j + lanes, tl.maximum(seq_len - decode_len + j + lanes + 1, 0), mask=inside)
                tl.store(decode_lens + start + j + lanes, tl.full((COLUMNS,), 1, tl.int32), mask=inside)
            inside = (lanes < columns) & (lanes * BLOCK_SIZE < seq_len)
            for j in range(rows):
                tl.store(first + j * table_stride + lanes, entries, mask=inside)
            begin += strips * COLUMNS
        used = tl.minimum(tl.cdiv(tl.maximum(seq_len, 0), BLOCK_SIZE), columns)
        if rows > 0:
            for column in range(begin, used, strips * COLUMNS):
                inside = column + lanes < used
                entries = tl.load(row + column + lanes, mask=inside, other=0)
                for j in range(rows):
                    tl.store(first + j * table_stride + column + lanes, entries, mask=inside)
    else:
        actual = tl.load(query_start_loc + batch_size)
        token = ((request - batch_size) * strips + strip) * COLUMNS + lanes
        padding = (token >= actual) & (token < num_tokens)
        zeros = tl.zeros((COLUMNS,), tl.int32)
        tl.store(lens + token, zeros, mask=(token >= actual) & (token < capacity))
        tl.store(decode_lens + token, zeros + 1, mask=padding)
        tl.store(table + token.to(tl.int64) * table_stride, zeros, mask=padding)


@variant("decode_flatten")
def triton_fused(point, x, out):
    """One launch for uniform, ragged, padded and token-padded batches; used blocks only; nothing is compiled
    per batch size or table width, and row strides only by whether 16 divides them."""
    batch_size, capacity = len(x.seq_lens), out.lens.numel()
    columns = min(x.block_table.shape[1], out.block_table.shape[1])
    grid = _grid(batch_size, columns, COLUMNS_PER_PROGRAM, capacity, COLUMNS_PER_PROGRAM)

    def launch():
        _fused[grid](
            x.seq_lens, x.query_start_loc, x.block_table, out.lens, out.decode_lens, out.block_table,
            batch_size, x.num_decode_tokens, capacity, columns, x.block_table.stride(0), out.block_table.stride(0),
            BLOCK_SIZE=point.block_size, COLUMNS=COLUMNS_PER_PROGRAM, num_warps=4,
        )  # fmt: skip

    return launch


@variant("decode_flatten", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """One launch for every batch in CUDA C++; 16-byte copies where both tables and the lengths are aligned for them."""
    batch_size, capacity = len(x.seq_lens), out.lens.numel()
    source, table = x.block_table, out.block_table
    columns = min(source.shape[1], table.shape[1])
    sizes = (columns, capacity, source.stride(0), table.stride(0))
    addresses = (source.data_ptr(), table.data_ptr(), out.lens.data_ptr())
    width = 4 if all(size % 4 == 0 for size in sizes) and all(address % 16 == 0 for address in addresses) else 1
    return launcher(
        SOURCE, f"flatten_vec{width}", _grid(batch_size, columns, THREADS * width, capacity, THREADS * width), THREADS,
        x.seq_lens, x.query_start_loc, source, out.lens, out.decode_lens, table,
        batch_size, x.num_decode_tokens, capacity, point.block_size, columns, source.stride(0), table.stride(0),
    )  # fmt: skip
