"""Offsets beyond 2^31: caches, pools, histories and tables of many GiB, of which a test touches a few pages.

On a CPU they are sparse files, mapped; on a GPU real memory, where there is enough. In front of what a kernel is given
lies as much as 32-bit arithmetic could fall back by, so that an offset which wraps reads other contents instead of
ending the process.
"""

import pytest
import torch

from spec_decode_bench.baselines.gather_block_tables.operator import operator as gather_tables
from spec_decode_bench.baselines.k_quant_gather.operator import operator as gather
from spec_decode_bench.baselines.mamba_state_copy.operator import operator as copy
from spec_decode_bench.baselines.post_update.operator import operator as update
from spec_decode_bench.baselines.workloads import request_slots as slots
from tests.runnable import DEVICE, healthy, on_device
from tests.tier import full

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
        out = on_device(gather.outputs.empty(point))
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
        if variant.folder == "baselines":
            continue  # chains may touch all of a pool
        for name, pool in whole.items():
            pool[:, -held:] = getattr(near, name).to(DEVICE)
        variant.setup(
            point, on_device(near, block_table=table, **whole), on_device(copy.outputs.empty(point), **whole)
        )()
        for name, pool in whole.items():
            want = torch.where(expected[name].untouched, getattr(near, name), expected[name].value)
            assert torch.equal(pool[:, -held:].cpu(), want), (variant.id, name)


def test_histories_of_slots_lie_beyond_32_bits(room):
    """Five histories of 2^30 tokens each."""
    near = update.complete({"batch_size": 5, "max_num_seqs": 5, "history_len": 64, "context_len": 40})
    far = update.complete({**near, "history_len": 2**30})
    x = update.make_inputs(near, 5)
    expected = update.reference(near, x)["all_token_ids_device"]
    whole = room(WRAP + 5 * far.history_len, torch.int32)[WRAP:].view(5, far.history_len)
    for variant in healthy("post_update"):
        whole[:, : near.history_len] = -1
        variant.setup(far, on_device(x), on_device(update.outputs.empty(near), all_token_ids_device=whole))()
        want = torch.where(expected.untouched, -1, expected.value)
        assert torch.equal(whole[:, : near.history_len].cpu(), want), variant.id


@full
def test_rows_of_gathered_tables_lie_beyond_32_bits(room):
    """Two groups of 24 rows of 2^27 columns each, all of which were filled by the previous step, too."""
    near = gather_tables.complete({"batch_size": 24, "max_num_seqs": 24, "num_groups": 2, "max_model_len": 1000})
    far = gather_tables.complete({**near, "max_model_len": near.block_size * 2**27 - 1})
    x = gather_tables.make_inputs(near, 5)
    expected = gather_tables.reference(near, x)["block_tables"]
    size = slots.table_starts(far)[-1]
    source, target = room(size, torch.int32), room(WRAP + size, torch.int32)[WRAP:]
    columns = slots.group_widths(near)[0]
    for wide, narrow in zip(slots.group_tables(far, source), slots.group_tables(near, x.tables), strict=True):
        wide[:, :columns] = narrow
    layout = {"starts": torch.tensor(slots.table_starts(far)[:-1]), "widths": torch.tensor(slots.group_widths(far))}
    layout = {name: tensor.to(DEVICE) for name, tensor in layout.items()}
    for variant in healthy("gather_block_tables"):
        if variant.folder == "baselines":
            continue  # chains copy whole rows
        out = gather_tables.outputs.empty(near)
        variant.setup(far, on_device(x, tables=source, **layout), on_device(out, block_tables=target))()
        parts = (slots.group_tables(near, flat) for flat in (expected.value, expected.may_keep))
        for wide, value, may_keep in zip(slots.group_tables(far, target), *parts, strict=True):
            assert torch.equal(wide[:, :columns].cpu()[~may_keep], value[~may_keep]), variant.id
