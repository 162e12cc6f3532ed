"""The kernels of decode_flatten that handle every batch in one launch, with their launches."""

from __future__ import annotations

from pathlib import Path

import triton
import triton.language as tl
from torch import Tensor

from baselines.workloads.integers import cdiv
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("decode_flatten.cu")
THREADS = 256
COLUMNS_PER_PROGRAM = 512
#: Blocks of the request part at which a table row is no longer split further: four per SM of a large GPU. Half as many
#: are 2 % faster where all contexts are short, but then one request of 134K tokens among 255 short ones makes the
#: launch 40 % slower, because one block copies its whole row strip after strip; twice as many cost 4 % at B = 256.
TARGET_BLOCKS = 528


def grid_of(
    batch_size: int, columns: int, columns_per_block: int, capacity: int, tail_per_block: int
) -> tuple[int, int]:
    """(requests and columns of blocks that clear the tail, strips a table row is split over).

    No more strips than a row has columns for, fewer where the requests fill the GPU anyway.
    """
    strips = max(1, min(cdiv(columns, columns_per_block), TARGET_BLOCKS // batch_size))
    return batch_size + cdiv(cdiv(capacity, tail_per_block), strips), strips


def columns_of(source: Tensor, table: Tensor) -> int:
    """Columns that both block tables have."""
    return min(source.shape[1], table.shape[1])


def access_width(source: Tensor, table: Tensor, lens: Tensor) -> int:
    """int32 of one access in CUDA C++: 4 where tables and lengths are aligned for it, else 1."""
    sizes = (columns_of(source, table), lens.numel(), source.stride(0), table.stride(0))
    aligned = all(size % 4 == 0 for size in sizes) and all(t.data_ptr() % 16 == 0 for t in (source, table, lens))
    return 4 if aligned else 1


@triton.jit
def flatten_rows(
    request,
    strip,
    strips,
    seq_lens,
    query_start_loc,
    source,
    lens,
    decode_lens,
    table,
    batch_size,
    num_tokens,
    capacity,
    columns,
    source_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A strip of a request's table row for all its tokens, or past the batch a stretch of the lengths to clear."""
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
        # Rounded up without a sum that overflows near 2^31; 1 for an empty request, but no later strip begins in column
        # 0.
        used = tl.minimum(tl.maximum(seq_len - 1, 0) // BLOCK_SIZE + 1, columns)
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


@triton.jit(do_not_specialize=["batch_size", "num_tokens", "capacity", "columns"])
def _fused(
    seq_lens,
    query_start_loc,
    source,
    lens,
    decode_lens,
    table,
    batch_size,
    num_tokens,
    capacity,
    columns,
    source_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    flatten_rows(
        tl.program_id(0),
        tl.program_id(1),
        tl.num_programs(1),
        seq_lens,
        query_start_loc,
        source,
        lens,
        decode_lens,
        table,
        batch_size,
        num_tokens,
        capacity,
        columns,
        source_stride,
        table_stride,
        BLOCK_SIZE=BLOCK_SIZE,
        COLUMNS=COLUMNS,
    )


def triton_flatten(x, out, block_size: int):
    """A closure over the operator's inputs and outputs, or those of a whole step."""
    source, table = x.block_table, out.block_table
    batch_size, capacity, columns = len(x.seq_lens), out.lens.numel(), columns_of(source, table)
    grid = grid_of(batch_size, columns, COLUMNS_PER_PROGRAM, capacity, COLUMNS_PER_PROGRAM)

    def launch():
        _fused[grid](
            x.seq_lens,
            x.query_start_loc,
            source,
            out.lens,
            out.decode_lens,
            table,
            batch_size,
            x.num_decode_tokens,
            capacity,
            columns,
            source.stride(0),
            table.stride(0),
            BLOCK_SIZE=block_size,
            COLUMNS=COLUMNS_PER_PROGRAM,
            num_warps=4,
        )

    return launch


def cuda_flatten(x, out, block_size: int):
    """The same in CUDA C++."""
    source, table = x.block_table, out.block_table
    batch_size, capacity, columns = len(x.seq_lens), out.lens.numel(), columns_of(source, table)
    width = access_width(source, table, out.lens)
    return launcher(
        SOURCE,
        f"flatten_vec{width}",
        grid_of(batch_size, columns, THREADS * width, capacity, THREADS * width),
        THREADS,
        x.seq_lens,
        x.query_start_loc,
        source,
        out.lens,
        out.decode_lens,
        table,
        batch_size,
        x.num_decode_tokens,
        capacity,
        block_size,
        columns,
        source.stride(0),
        table.stride(0),
    )
