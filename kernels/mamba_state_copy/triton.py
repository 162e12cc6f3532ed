"""mamba_state_copy in one launch: decides on the device which requests cross a block boundary, and copies.

Few requests cross (about q / block size of them), and the host does not know which. So no block belongs to a request:
every block builds the same list of crossing requests, 256 requests at a time, and takes every gridDim-th piece of their
states. A single crossing request is spread over the whole GPU; if none crosses, a block reads five numbers per request
and ends.

A convolution may be shifted inside its slot. A lane owns channels and moves them from the first column to the last, and
reads what it is about to overwrite before it writes, so no lane overwrites what another one still has to read.

All blocks read num_accepted_tokens and state_columns, one block writes those of the next step, and nothing orders
the two. So neither may share an array with its output.

The copy bound includes one trip to memory; the kernel needs three in sequence: lengths, the table entries they point
to, the states those point to. The scan that builds the list comes between the first two.

mamba_state_copy.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.mamba_state_copy.operator import (
    Inputs,
    Outputs,
    by_slot,
    conv_columns,
    state_bytes,
    time_first,
)
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Requests that a block looks at together.
REQUESTS = 256
#: int32 of an SSM state, and channels of a convolution, of one piece.
SSM_WORDS, CHANNELS = 4096, 512
#: At most four blocks per SM of a large GPU, and at most as many as have 16 KiB each to move when all requests cross.
TARGET_BLOCKS, BYTES_PER_BLOCK = 528, 16384
#: Layers of two pieces that reach TARGET_BLOCKS, so that blocks take several pieces each; requests that take a block
#: several turns of its scan, also where the other sizes of a point are large.
GRID_SIZES = {"num_layers": (TARGET_BLOCKS // 2,), "batch_size": (8 * REQUESTS,)}


def num_blocks(point: Point, pieces: int) -> int:
    """Blocks of the grid. ``pieces``: of one request and layer, so that one request alone has work for all of them."""
    everything = point.batch_size * point.num_layers * state_bytes(point)
    return min(TARGET_BLOCKS, max(point.num_layers * pieces, cdiv(everything, BYTES_PER_BLOCK)))


class Sizes(NamedTuple):
    """slots_in, slots_out: of a layer in the pools that are read and written."""

    num_reqs: int
    num_layers: int
    slots_in: int
    slots_out: int
    layers_per_group: int


class Shape(NamedTuple):
    """Known when the kernel is compiled. BLOCK_SIZE: tokens of a state. COLUMNS, CONV_DIM, TIME_STRIDE, CHANNEL_STRIDE:
    of a convolution's state. WORDS: int32 of an SSM state. PIECES: of a request and layer, of which the first
    SSM_PIECES, SSM_WORDS each, are the SSM state, the others CHANNELS of the convolution. TILE: requests looked at
    together.
    """

    BLOCK_SIZE: int
    COLUMNS: int
    CONV_DIM: int
    TIME_STRIDE: int
    CHANNEL_STRIDE: int
    WORDS: int
    SSM_PIECES: int
    PIECES: int
    SSM_WORDS: int
    CHANNELS: int
    TILE: int


@triton.jit(do_not_specialize=["group_stride"])
def mamba_state_copy_kernel(
    n, x, out, table_stride, group_stride, BY_SLOT: tl.constexpr, AFTER: tl.constexpr, SHAPE: tl.constexpr
):
    """table_stride: outside the bundles, as Triton shall specialize on it."""
    for tile in range(0, n.num_reqs, SHAPE.TILE):
        b = tile + tl.arange(0, SHAPE.TILE)
        request = b < n.num_reqs
        start = tl.load(x.query_start_loc + b, mask=request, other=0)
        end = tl.load(x.query_start_loc + b + 1, mask=request, other=0)
        if BY_SLOT:
            owner = tl.load(x.idx_mapping + b, mask=request, other=-1)
            request = owner >= 0
            seq_len = tl.load(x.num_computed_tokens + owner, mask=request, other=0)
            seq_len += 0 if AFTER else end - start
        else:
            owner = b.to(tl.int64)
            seq_len = tl.load(x.seq_lens + b, mask=request, other=0)
        count = tl.load(x.num_accepted_tokens + owner, mask=request, other=1)
        column = tl.load(x.state_columns + owner, mask=request, other=-1)
        last = tl.where(seq_len > 0, (seq_len - 1) // SHAPE.BLOCK_SIZE, -1)
        if AFTER and BY_SLOT:
            target = seq_len // SHAPE.BLOCK_SIZE - 1
            shift = (target + 1) * SHAPE.BLOCK_SIZE - (seq_len - count + 1)
            crosses = request & (shift >= 0)
        elif AFTER:
            running = seq_len - tl.load(x.num_draft_tokens + b, mask=request, other=0)
            blocks = (running + count - 1) // SHAPE.BLOCK_SIZE
            target, shift = blocks - 1, blocks * SHAPE.BLOCK_SIZE - running
            crosses = (seq_len > 0) & (shift >= 0)
        else:
            computed = seq_len - (end - start)
            if not BY_SLOT:
                column = tl.where(column >= 0, column, tl.where(computed > 0, (computed - 1) // SHAPE.BLOCK_SIZE, -1))
            target, shift = last, count - 1
            crosses = (column >= 0) & (column != last) & (seq_len > 0)
        if BY_SLOT:  # columns: state slots differ from group to group
            conv_from, ssm_from, to = column, column + shift, target
        else:
            row = x.block_table + owner * table_stride
            conv_from = tl.load(row + column, mask=crosses, other=0)
            ssm_from = tl.load(row + column + shift, mask=crosses, other=0)
            to = tl.load(row + target, mask=crosses, other=0)
        if tl.program_id(0) == 0:
            settled = crosses & (conv_from == to) if AFTER else crosses
            tl.store(out.num_accepted_tokens + owner, tl.where(settled, 1, count), mask=request)
            if not AFTER:
                tl.store(out.state_columns + owner, last, mask=request)

        crossing = crosses.to(tl.int32)
        rank = tl.cumsum(crossing, 0)
        for piece in range(tl.program_id(0), tl.sum(crossing, 0) * n.num_layers * SHAPE.PIECES, tl.num_programs(0)):
            layer = (piece // SHAPE.PIECES) % n.num_layers
            chosen = crosses & (rank == piece // SHAPE.PIECES // n.num_layers + 1)
            source = tl.sum(tl.where(chosen, ssm_from, 0), 0)
            destination = tl.sum(tl.where(chosen, to, 0), 0)
            if BY_SLOT:
                slots = x.block_table + (layer // n.layers_per_group).to(tl.int64) * group_stride
                slots += tl.sum(tl.where(chosen, owner, 0), 0) * table_stride
                source, destination = tl.load(slots + source), tl.load(slots + destination)
            part = piece % SHAPE.PIECES
            from_layer, to_layer = layer.to(tl.int64) * n.slots_in, layer.to(tl.int64) * n.slots_out
            # The two branches share no names: when compiled, one name has one shape.
            if part < SHAPE.SSM_PIECES:
                word = part * SHAPE.SSM_WORDS + tl.arange(0, SHAPE.SSM_WORDS)
                of_state = word < tl.where(source != destination, SHAPE.WORDS, 0)
                state = tl.load(x.ssm_states + (from_layer + source) * SHAPE.WORDS + word, mask=of_state)
                tl.store(out.ssm_states + (to_layer + destination) * SHAPE.WORDS + word, state, mask=of_state)
            else:
                origin = tl.sum(tl.where(chosen, conv_from, 0), 0)
                if BY_SLOT:
                    origin = tl.load(slots + origin)
                skipped = tl.sum(tl.where(chosen, shift, 0), 0)
                channel = (part - SHAPE.SSM_PIECES) * SHAPE.CHANNELS + tl.arange(0, SHAPE.CHANNELS)
                inside = channel < tl.where((origin != destination) | (skipped > 0), SHAPE.CONV_DIM, 0)
                size, place = SHAPE.COLUMNS * SHAPE.CONV_DIM, channel * SHAPE.CHANNEL_STRIDE
                read = x.conv_states + (from_layer + origin) * size + place + skipped * SHAPE.TIME_STRIDE
                written = out.conv_states + (to_layer + destination) * size + place
                kept = SHAPE.COLUMNS - skipped
                for time in range(0, kept, 2):
                    more = inside & (channel < tl.where(time + 1 < kept, SHAPE.CONV_DIM, 0))
                    first = tl.load(read + time * SHAPE.TIME_STRIDE, mask=inside)
                    second = tl.load(read + (time + 1) * SHAPE.TIME_STRIDE, mask=more)
                    tl.store(written + time * SHAPE.TIME_STRIDE, first, mask=inside)
                    tl.store(written + (time + 1) * SHAPE.TIME_STRIDE, second, mask=more)


@variant("mamba_state_copy", sizes=GRID_SIZES)
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch; not recompiled for another batch size."""
    words, after = x.ssm_states.shape[2], point.phase == "after_sampling"
    time_stride, channel_stride = time_first(point, x.conv_states).stride()[2:]
    ssm_pieces = cdiv(words, SSM_WORDS)
    pieces = ssm_pieces + cdiv(point.conv_dim, CHANNELS)
    shape = Shape(
        BLOCK_SIZE=point.mamba_block_size,
        COLUMNS=conv_columns(point),
        CONV_DIM=point.conv_dim,
        TIME_STRIDE=time_stride,
        CHANNEL_STRIDE=channel_stride,
        WORDS=words,
        SSM_PIECES=ssm_pieces,
        PIECES=pieces,
        SSM_WORDS=SSM_WORDS,
        CHANNELS=CHANNELS,
        TILE=REQUESTS,
    )
    layers_per_group = point.num_layers // point.num_groups
    n = Sizes(point.batch_size, point.num_layers, x.ssm_states.shape[1], out.ssm_states.shape[1], layers_per_group)
    strides = x.block_table.stride(-2), x.block_table.stride(0)
    arguments = n, bundle(x), bundle(out), *strides
    settings = {"BY_SLOT": by_slot(point), "AFTER": after, "SHAPE": shape, "num_warps": 8}
    return fixed_launch(mamba_state_copy_kernel, (num_blocks(point, pieces),), *arguments, **settings)
