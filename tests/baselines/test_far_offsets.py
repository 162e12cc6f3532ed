"""Offsets beyond 2^31: caches and pools of many GiB, of which a test touches a few pages.

On a CPU they are sparse files, mapped; on a GPU real memory, where there is enough. In front of what a kernel is given
lies as much as 32-bit arithmetic could fall back by, so that an offset which wraps reads other contents instead of
ending the process.
"""

import pytest
import torch

from baselines.k_quant_gather.operator import operator as gather
from baselines.mamba_state_copy.operator import operator as copy
from tests.runnable import DEVICE, healthy, on_device

#: Elements by which an int32 offset that wrapped can lie in front of its tensor; bytes, where elements are copied in
#: words of 4 bytes.
WRAP, WRAP_OF_WORDS = 2**31, 2**33


@pytest.fixture
def room(tmp_path):
    """elements, dtype -> a tensor on DEVICE whose contents nobody has written."""

    def make(elements, dtype):
        if DEVICE == "cuda":
            size, free = elements * dtype.itemsize, torch.cuda.mem_get_info()[0]
            if size > 0.9 * free:
                pytest.skip(f"needs {size >> 30} GiB of GPU memory, {free >> 30} are free")
            return torch.empty(elements, dtype=dtype, device=DEVICE)
        path = tmp_path / "sparse"
        mapped = torch.from_file(str(path), shared=True, size=elements, dtype=dtype)
        path.unlink()
        return mapped

    yield make
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


@pytest.mark.parametrize("stride", [WRAP - 16, WRAP - 17], ids=["copied in words", "copied in bytes"])
def test_blocks_of_a_cache_lie_beyond_32_bits(room, stride):
    """Blocks 2 GiB apart, of which the last one used begins beyond 2^31 words of 4 bytes, and all but one beyond
    2^31 bytes.
    """
    point = gather.complete({"batch_size": 2, "chunk_tokens": 40, "block_size": 16})
    near = gather.make_inputs(point, 5)
    near.block_table[:, :2] = torch.tensor([[6, 1], [3, 5]], dtype=torch.int32)
    near.cu_seq_lens.copy_(torch.tensor([0, 20, 40]))
    near.seq_lens.fill_(20)
    cache = near.kv_cache
    assert int(near.block_table[0, 0]) == len(cache) - 1
    assert (len(cache) - 1) * stride // 4 > 2**31
    far = room(WRAP_OF_WORDS + (len(cache) - 1) * stride + cache[0].numel(), torch.uint8)
    far = far.as_strided(cache.shape, (stride, *cache.stride()[1:]), WRAP_OF_WORDS).copy_(cache)
    expected = gather.reference(point, near)
    for variant in healthy("k_quant_gather"):
        out = on_device(gather.make_outputs(point))
        variant.setup(point, on_device(near, kv_cache=far), out)()
        for name, value in gather.views(point, out).items():
            assert torch.equal(value.cpu(), expected[name].value[: point.chunk_tokens]), (variant.id, name)


def test_slots_of_a_pool_lie_beyond_32_bits(room):
    """One pool for input and output, as an engine has it; the requests hold the last slots of 2^24."""
    point = copy.complete({**copy.edge_cases[0].point, "num_layers": 3, "ssm_state_bytes": 256})
    near, slots = copy.make_inputs(point, 5), 2**24
    held = near.ssm_states.shape[1]
    table = torch.where(near.block_table > 0, near.block_table + slots - held, near.block_table).to(DEVICE)
    expected = copy.reference(point, near)
    whole = {}
    for name in ("conv_states", "ssm_states"):
        shape = (point.num_layers, slots, *getattr(near, name).shape[2:])
        size = torch.Size(shape).numel()
        assert size > 2**31
        whole[name] = room(WRAP + size, getattr(near, name).dtype)[WRAP:].view(shape)
    for variant in healthy("mamba_state_copy"):
        if variant.origin.startswith("baselines."):
            continue  # chains may touch all of a pool
        for name, pool in whole.items():
            pool[:, -held:] = getattr(near, name).to(DEVICE)
        variant.setup(
            point, on_device(near, block_table=table, **whole), on_device(copy.make_outputs(point), **whole)
        )()
        for name, pool in whole.items():
            want = torch.where(expected[name].untouched, getattr(near, name), expected[name].value)
            assert torch.equal(pool[:, -held:].cpu(), want), (variant.id, name)
