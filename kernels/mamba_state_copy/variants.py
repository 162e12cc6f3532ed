"""mamba_state_copy, fused: one launch decides on the device who crosses a block boundary, and copies.

Few requests cross (q / block size of them), and nobody on the host knows which. So no block belongs to a request: every
block makes the same list of those that cross, 256 requests at a time, and takes every gridDim-th piece of their states.
One crossing request is spread over the whole GPU, and where nobody crosses a block reads five numbers per request and
ends.

A convolution may be shifted inside its slot. A lane owns channels and moves them from the first column to the last, and
reads what it is about to overwrite before it does, so no lane writes what another one still has to read.

On an H200, four layers of 16 KiB states, 10 % crossing: 3.19 us in Triton and 3.02 in CUDA C++ at B = 128, where the
floor is 1.55; 9.24 and 7.78 over 4.54 at B = 1024. Where nobody crosses (B = 1) it is 1.50 and 1.56 over 1.07, and one
crossing request among eight takes it to 2.79 and 2.67: lengths, the table entries they point to, and the states those
point to are three trips to memory one behind the other, and the list of those that cross is a scan over the block
between the first two. The floor knows one trip.

Counts and columns are the other way round: all blocks read num_accepted_tokens and state_columns, the first one writes
those of the next step, and nothing orders the two. So neither may be one array with its output.
"""

from __future__ import annotations

from pathlib import Path

import triton
import triton.language as tl

from baselines.workloads.integers import cdiv, reciprocal
from harness.contract import GPU, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("mamba_state_copy.cu")
THREADS = 256
#: Four blocks per SM of a large GPU, and no more than have 16 KiB to move each where everyone crosses.
TARGET_BLOCKS, BYTES_PER_BLOCK = 528, 16384
#: Accesses of a thread that are in flight together; of a piece of an SSM state.
ACCESSES = 4
#: int32 of an SSM state, and channels of a convolution, of one piece of the Triton kernel.
SSM_WORDS, CHANNELS = 4096, 512


@triton.jit(do_not_specialize=["num_reqs", "num_layers", "slots_in", "slots_out"])
def _copy(
    seq_lens,
    query_start_loc,
    accepted,
    state_columns,
    drafts,
    table,
    conv_in,
    ssm_in,
    conv_out,
    ssm_out,
    accepted_out,
    columns_out,
    num_reqs,
    table_stride,
    num_layers,
    slots_in,
    slots_out,
    AFTER: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    CONV_DIM: tl.constexpr,
    TIME_STRIDE: tl.constexpr,
    CHANNEL_STRIDE: tl.constexpr,
    WORDS: tl.constexpr,
    SSM_PIECES: tl.constexpr,
    PIECES: tl.constexpr,
    SSM_WORDS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILE: tl.constexpr,
):
    for tile in range(0, num_reqs, TILE):
        b = tile + tl.arange(0, TILE)
        request = b < num_reqs
        seq_len = tl.load(seq_lens + b, mask=request, other=0)
        start, end = (
            tl.load(query_start_loc + b, mask=request, other=0),
            tl.load(query_start_loc + b + 1, mask=request, other=0),
        )
        count, column = tl.load(accepted + b, mask=request, other=1), tl.load(state_columns + b, mask=request, other=-1)
        last = tl.where(seq_len > 0, (seq_len - 1) // BLOCK_SIZE, -1)
        if AFTER:
            running = seq_len - tl.load(drafts + b, mask=request, other=0)
            blocks = (running + count - 1) // BLOCK_SIZE
            target, shift = blocks - 1, blocks * BLOCK_SIZE - running
            crosses = (seq_len > 0) & (shift >= 0)
        else:
            computed = seq_len - (end - start)
            column = tl.where(column >= 0, column, tl.where(computed > 0, (computed - 1) // BLOCK_SIZE, -1))
            target, shift = last, count - 1
            crosses = (column >= 0) & (column != last) & (seq_len > 0)
        row = table + b.to(tl.int64) * table_stride
        conv_from = tl.load(row + column, mask=crosses, other=0)
        ssm_from = tl.load(row + column + shift, mask=crosses, other=0)
        to = tl.load(row + target, mask=crosses, other=0)
        if tl.program_id(0) == 0:
            settled = crosses & (conv_from == to) if AFTER else crosses
            tl.store(accepted_out + b, tl.where(settled, 1, count), mask=request)
            if not AFTER:
                tl.store(columns_out + b, last, mask=request)

        crossing = crosses.to(tl.int32)
        rank = tl.cumsum(crossing, 0)
        for piece in range(tl.program_id(0), tl.sum(crossing, 0) * num_layers * PIECES, tl.num_programs(0)):
            layer = (piece // PIECES) % num_layers
            chosen = crosses & (rank == piece // PIECES // num_layers + 1)
            source = tl.sum(tl.where(chosen, ssm_from, 0), 0)
            destination = tl.sum(tl.where(chosen, to, 0), 0)
            part = piece % PIECES
            from_layer, to_layer = layer.to(tl.int64) * slots_in, layer.to(tl.int64) * slots_out
            # Names of their own in either branch: compiled, one name has one shape.
            if part < SSM_PIECES:
                word = part * SSM_WORDS + tl.arange(0, SSM_WORDS)
                of_state = word < tl.where(source != destination, WORDS, 0)
                state = tl.load(ssm_in + (from_layer + source) * WORDS + word, mask=of_state)
                tl.store(ssm_out + (to_layer + destination) * WORDS + word, state, mask=of_state)
            else:
                origin = tl.sum(tl.where(chosen, conv_from, 0), 0)
                skipped = tl.sum(tl.where(chosen, shift, 0), 0)
                channel = (part - SSM_PIECES) * CHANNELS + tl.arange(0, CHANNELS)
                inside = channel < tl.where((origin != destination) | (skipped > 0), CONV_DIM, 0)
                read = (
                    conv_in
                    + (from_layer + origin) * (COLUMNS * CONV_DIM)
                    + channel * CHANNEL_STRIDE
                    + skipped * TIME_STRIDE
                )
                written = conv_out + (to_layer + destination) * (COLUMNS * CONV_DIM) + channel * CHANNEL_STRIDE
                kept = COLUMNS - skipped
                for time in range(0, kept, 2):
                    more = inside & (channel < tl.where(time + 1 < kept, CONV_DIM, 0))
                    first = tl.load(read + time * TIME_STRIDE, mask=inside)
                    second = tl.load(read + (time + 1) * TIME_STRIDE, mask=more)
                    tl.store(written + time * TIME_STRIDE, first, mask=inside)
                    tl.store(written + (time + 1) * TIME_STRIDE, second, mask=more)


def _blocks(point, x, pieces: int) -> int:
    """Blocks of the grid; one request alone has work for num_layers x pieces."""
    per_layer = sum(pool[0, 0].nbytes for pool in (x.conv_states, x.ssm_states))
    return min(
        TARGET_BLOCKS,
        max(point.num_layers * pieces, cdiv(point.batch_size * point.num_layers * per_layer, BYTES_PER_BLOCK)),
    )


def _strides(point, columns: int) -> tuple[int, int]:
    """Elements between two columns in time and between two channels of a convolution's state."""
    return (point.conv_dim, 1) if point.conv_layout == "SD" else (1, columns)


@variant("mamba_state_copy")
def triton_fused(point, x, out):
    """One launch; nothing is compiled per batch size."""
    columns, words, after = (
        x.conv_states[0, 0].numel() // point.conv_dim,
        x.ssm_states.shape[2],
        point.phase == "after_sampling",
    )
    ssm_pieces, (time_stride, channel_stride) = cdiv(words, SSM_WORDS), _strides(point, columns)
    pieces = ssm_pieces + cdiv(point.conv_dim, CHANNELS)
    grid = (_blocks(point, x, pieces),)
    columns_out = out.num_accepted_tokens if after else out.state_columns

    def launch():
        _copy[grid](
            x.seq_lens,
            x.query_start_loc,
            x.num_accepted_tokens,
            x.state_columns,
            x.num_draft_tokens,
            x.block_table,
            x.conv_states,
            x.ssm_states,
            out.conv_states,
            out.ssm_states,
            out.num_accepted_tokens,
            columns_out,
            point.batch_size,
            x.block_table.stride(0),
            point.num_layers,
            x.ssm_states.shape[1],
            out.ssm_states.shape[1],
            AFTER=after,
            BLOCK_SIZE=point.mamba_block_size,
            COLUMNS=columns,
            CONV_DIM=point.conv_dim,
            TIME_STRIDE=time_stride,
            CHANNEL_STRIDE=channel_stride,
            WORDS=words,
            SSM_PIECES=ssm_pieces,
            PIECES=pieces,
            SSM_WORDS=SSM_WORDS,
            CHANNELS=CHANNELS,
            TILE=THREADS,
            num_warps=8,
        )

    return launch


def _vector(size: int, widest: int, *pools) -> int:
    """Elements per access: 16 bytes where a state's size and both pools allow it, else one element."""
    return widest if size % widest == 0 and all(pool.data_ptr() % 16 == 0 for pool in pools) else 1


@variant("mamba_state_copy", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """The same in CUDA C++: 16-byte accesses where sizes and addresses allow them, several in flight per thread."""
    columns, words, after = (
        x.conv_states[0, 0].numel() // point.conv_dim,
        x.ssm_states.shape[2],
        point.phase == "after_sampling",
    )
    sd = point.conv_layout == "SD"
    ssm_vector = _vector(words, 4, x.ssm_states, out.ssm_states)
    conv_vector = _vector(point.conv_dim, 8, x.conv_states, out.conv_states) if sd else 1
    time_stride, channel_stride = _strides(point, columns)
    ssm_pieces = cdiv(words, THREADS * ACCESSES * ssm_vector)
    pieces = ssm_pieces + cdiv(point.conv_dim, THREADS * conv_vector)
    multiplier, shift = reciprocal(point.mamba_block_size)
    return launcher(
        SOURCE,
        f"copy_ssm{ssm_vector}_conv{conv_vector}",
        _blocks(point, x, pieces),
        THREADS,
        x.seq_lens,
        x.query_start_loc,
        x.num_accepted_tokens,
        x.state_columns,
        x.num_draft_tokens,
        x.block_table,
        x.conv_states,
        x.ssm_states,
        out.conv_states,
        out.ssm_states,
        out.num_accepted_tokens,
        out.num_accepted_tokens if after else out.state_columns,
        point.batch_size,
        x.block_table.stride(0),
        int(after),
        point.mamba_block_size,
        multiplier,
        shift,
        point.num_layers,
        x.ssm_states.shape[1],
        out.ssm_states.shape[1],
        words // ssm_vector,
        ssm_pieces,
        pieces,
        columns,
        point.conv_dim // conv_vector,
        time_stride // conv_vector if sd else 1,
        channel_stride,
    )
