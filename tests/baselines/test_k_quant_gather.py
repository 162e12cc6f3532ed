"""k_quant_gather: the cache layout byte by byte, a round trip through the quantisation, invariants."""

import torch

from spec_decode_bench.baselines.k_quant_gather.operator import Inputs
from spec_decode_bench.baselines.k_quant_gather.operator import operator as gather
from spec_decode_bench.baselines.workloads.decode_batch import UNUSED_BLOCK_ID
from tests.baselines.random_batches import each_batch


def gathered(point, x):
    """The reference's real rows: (k [cu[B], head_dim], scale [cu[B], scale bytes]), uint8."""
    expected, real = gather.reference(point, x), int(x.cu_seq_lens[-1])
    return expected["k"].value[:real], expected["scale"].value[:real]


def test_every_byte_of_a_small_cache():
    """Blocks of two tokens, 16 values and two scales each; requests of 3, 0 and 1 tokens, one slack row.

    Byte i of block b is 100 * b + i: values of token o begin at 16 * o, its scales at 32 + 8 * o.
    """
    point = gather.complete(
        {
            "batch_size": 3,
            "chunk_tokens": 5,
            "slack": 1,
            "head_dim": 16,
            "quant_block_size": 8,
            "block_size": 2,
            "max_model_len": 4,
        }
    )
    storage = torch.arange(3)[:, None] * 100 + torch.arange(48)
    x = Inputs(
        kv_cache=storage.remainder(256).to(torch.uint8).view(3, 2, 24),
        block_table=torch.tensor([[2, 1], [-1, -1], [1, -1]], dtype=torch.int32),
        cu_seq_lens=torch.tensor([0, 3, 3, 4], dtype=torch.int32),
        seq_lens=torch.tensor([3, 0, 1], dtype=torch.int32),
        num_tokens=5,
    )
    k, scale = gathered(point, x)
    assert k.tolist() == [[first % 256 for first in range(begin, begin + 16)] for begin in (200, 216, 100, 100)]
    assert scale.tolist() == [[first % 256 for first in range(begin, begin + 8)] for begin in (232, 240, 132, 132)]
    for expected in gather.reference(point, x).values():
        assert expected.untouched.all(1).tolist() == [False] * 4 + [True] * (1 + 8)
        assert torch.equal(expected.untouched.any(1), expected.untouched.all(1))


def test_default_geometry():
    """132 bytes per token, 8448 per block; 264 bytes moved per token and an entry per 64 tokens."""
    point = gather.complete({"batch_size": 1, "chunk_tokens": 640})
    x = gather.make_inputs(point, 0)
    assert x.kv_cache.shape[1:] == (64, 132)
    assert x.kv_cache.stride(0) == 8448
    assert gather.bytes_moved(point, x) == 640 * 264 + 4 * 10 + 4 * 2
    padded = gather.make_inputs(gather.complete({"page_padding": 256, "chunk_tokens": 640}), 0)
    assert padded.kv_cache.stride(0) == 8704


def write(point, k, x):
    """Quantise k [tokens, head_dim] into the cache, token by token as the serving engine's writer does."""
    size, group = point.block_size, point.quant_block_size
    blocks, groups = x.kv_cache.view(len(x.kv_cache), -1), point.head_dim // point.quant_block_size
    start = x.cu_seq_lens.tolist()
    for b in range(point.batch_size):
        for p in range(start[b + 1] - start[b]):
            block, o = blocks[int(x.block_table[b, p // size])], p % size
            for h in range(groups):
                part = k[start[b] + p, h * group : (h + 1) * group]
                scale = (part.abs().max().clamp(min=1e-4) / 448).view(1)
                value, at = o * point.head_dim + h * group, size * point.head_dim + (o * groups + h) * 4
                block[value : value + group] = (part / scale).to(torch.float8_e4m3fn).view(torch.uint8)
                block[at : at + 4] = scale.view(torch.uint8)


def test_written_keys_come_back():
    """Write, gather, dequantise: e4m3 keeps three bits of mantissa, so no value is off by more than 3.6 % of its
    group's amax.
    """
    point = gather.complete({"batch_size": 4, "chunk_tokens": 150, "slack": 6, "quant_block_size": 32})
    x = gather.make_inputs(point, 3)
    real = int(x.cu_seq_lens[-1])
    k = (
        torch.randn(real, point.head_dim, generator=torch.Generator().manual_seed(0))
        * torch.logspace(-6, 3, real)[:, None]
    )
    write(point, k, x)
    quantised, scale = gathered(point, x)
    values = quantised.view(torch.float8_e4m3fn).float().view(real, 4, 32)
    original = k.view(real, 4, 32)
    amax = original.abs().amax(2).clamp(min=1e-4)
    error = (values * scale.view(torch.float32)[..., None] - original).abs()
    assert bool((error <= 0.036 * amax[..., None]).all())


@each_batch(gather, 200)
def test_inputs_are_legal(point, x):
    lens = torch.diff(x.cu_seq_lens)
    assert torch.equal(x.seq_lens, lens)
    assert int(lens.max()) <= point.max_model_len
    assert -(-point.slack // 2) <= x.num_tokens - int(x.cu_seq_lens[-1]) <= point.slack
    used = -(-lens // point.block_size)
    for row, columns in zip(x.block_table, used.tolist(), strict=True):
        assert bool(((row[:columns] > 0) & (row[:columns] < len(x.kv_cache))).all())
        assert columns == 0 or bool((row[columns:] == UNUSED_BLOCK_ID).all())


@each_batch(gather, 200)
def test_a_row_names_the_slot_it_came_from(point, x):
    """With slot numbers for contents: no slot twice, and a request's slots count up except where its block ends."""
    size, split = point.block_size, point.block_size * point.head_dim
    for number, block in enumerate(x.kv_cache.view(len(x.kv_cache), -1)):
        slots = number * size + torch.arange(size, dtype=torch.int32)
        block[:split].view(size, -1).copy_(slots.view(torch.uint8).view(size, 4).repeat(1, point.head_dim // 4))
        block[split:].view(size, -1).copy_((slots % 251).to(torch.uint8)[:, None].expand(size, -1))
    k, scale = gathered(point, x)
    slots = k.view(torch.int32)
    assert bool((slots == slots[:, :1]).all())
    assert torch.equal(scale, (slots[:, :1] % 251).to(torch.uint8).expand(scale.shape))
    slots = slots[:, 0].tolist()
    assert len(set(slots)) == len(slots)
    starts = set(x.cu_seq_lens.tolist())
    for t in range(1, len(slots)):
        if t not in starts and slots[t] % size:
            assert slots[t] == slots[t - 1] + 1
    assert all(slots[t] % size == 0 for t in starts if t < len(slots))
