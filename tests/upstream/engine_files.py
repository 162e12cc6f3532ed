"""A made-up engine: files where vLLM has its own, with kernels and functions of the same names and arguments.

The code is this suite's. It stands for what upstream/ takes out of vLLM's files; it is not vLLM's.
"""

TABLES = """
from vllm.v1.worker.gpu.buffer_utils import _load_ptr

class BlockTables:
    def __init__(self):
        raise RuntimeError

    def gather_block_tables(self, idx_mapping, rows, num_computed_tokens=None):
        rows = max(rows, self._num_dirty_rows)
        self._num_dirty_rows = len(idx_mapping)
        masked = self.has_sliding_window_groups
        _gather_block_tables_kernel[(self.num_kv_cache_groups, rows)](
            idx_mapping, self.block_table_ptrs, self.input_block_table_ptrs, self.block_table_strides,
            self.num_blocks.gpu, self.num_blocks.gpu.stride(0), len(idx_mapping), num_computed_tokens,
            self.sliding_window_reach, self.block_sizes_tensor, MASK_SLIDING_WINDOW=masked, BLOCK_SIZE=64)

@triton.jit
def _gather_block_tables_kernel(idx, sources, targets, strides, owned, owned_stride, rows, computed, reach, sizes,
                                MASK_SLIDING_WINDOW: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    g, b = tl.program_id(0), tl.program_id(1)
    width = tl.load(strides + g)
    to = _load_ptr(targets + g, tl.int32) + b * width
    if b < rows:
        s = tl.load(idx + b)
        source = _load_ptr(sources + g, tl.int32) + s * width
        count, below = tl.load(owned + g * owned_stride + s), 0
        if MASK_SLIDING_WINDOW:
            window = tl.load(reach + g)
            below = tl.where(window > 0, tl.maximum(tl.load(computed + s) - window, 0) // tl.load(sizes + g), 0)
        for first in range(0, count, BLOCK_SIZE):
            c = first + tl.arange(0, BLOCK_SIZE)
            tl.store(to + c, tl.load(source + c, mask=(c >= below) & (c < count), other=0), mask=c < count)
    else:
        for first in range(0, width, BLOCK_SIZE):
            c = first + tl.arange(0, BLOCK_SIZE)
            tl.store(to + c, 0, mask=c < width)
"""

BUFFERS = """
import an_engine_that_is_not_there

@triton.jit
def _load_ptr(address, kind):
    return tl.cast(tl.load(address), tl.pointer_type(kind))

@triton.jit
def _apply_write_kernel(tables, widths, slots, columns, ids, ends, groups, BLOCK_SIZE: tl.constexpr,
                        MULTI_GROUP: tl.constexpr):
    w = tl.program_id(0)
    slot = tl.load(slots + w).to(tl.int64)
    if MULTI_GROUP:
        g = tl.load(groups + w)
        row = _load_ptr(tables + g, tl.int32) + slot * tl.load(widths + g)
    else:
        row = tables + slot * widths
    first, end = tl.load(ends + w - 1, mask=w > 0, other=0), tl.load(ends + w)
    i = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    there = first + i < end
    tl.store(row + tl.load(columns + w) + i, tl.load(ids + first + i, mask=there), mask=there)
"""

#: In place: sampled counts, counts of the slots, penalty counts. LOOKAHEAD_BLOCK marks the version.
BATCH = """
LOOKAHEAD_BLOCK = None

@triton.jit
def _get_num_sampled_and_rejected_kernel(sampled, rejected, lens, cu, idx, prompts):
    b = tl.program_id(0)
    chunk = tl.load(lens + b) < tl.load(prompts + tl.load(idx + b))
    n = tl.where(chunk, 0, tl.load(sampled + b))
    tl.store(sampled + b, n)
    tl.store(rejected + b, tl.where(chunk, 0, tl.load(cu + b + 1) - tl.load(cu + b) - n))

def get_num_sampled_and_rejected(sampled, lens, cu, idx, prompts):
    rejected = torch.empty_like(sampled)
    _get_num_sampled_and_rejected_kernel[(len(idx),)](sampled, rejected, lens, cu, idx, prompts)
    return sampled, rejected

@triton.jit
def _post_update_kernel(idx, computed, last, bins, bins_stride, tokens, tokens_stride, sampled, rejected, starts, ids,
                        ids_stride, total, drafts, drafts_out, num_drafts):
    b = tl.program_id(0)
    s = tl.load(idx + b)
    if s >= 0:
        n, old = tl.load(sampled + b), tl.load(total + s)
        for i in range(num_drafts):
            tl.store(drafts_out + s * num_drafts + i, tl.load(drafts + b * num_drafts + i))
        for i in range(n):
            token = tl.load(tokens + b * tokens_stride + i)
            tl.store(ids + s * ids_stride + old + i, token)
            tl.store(last + s, token)
            if bins is not None:
                tl.store(bins + s * bins_stride + token, tl.load(bins + s * bins_stride + token) + 1)
        tl.store(total + s, old + n)
        gain = tl.load(starts + b + 1) - tl.load(starts + b) - tl.load(rejected + b)
        tl.store(computed + s, tl.load(computed + s) + gain)

def post_update(idx, computed, last, bins, tokens, sampled, rejected, starts, ids, total, drafts=None, out=None):
    count = 0 if drafts is None else drafts.shape[1]
    stride = 0 if bins is None else bins.stride(0)
    _post_update_kernel[(len(idx),)](idx, computed, last, bins, stride, tokens, tokens.stride(0), sampled, rejected,
                                     starts, ids, ids.stride(0), total, drafts, out, count)
"""

HYBRID = """
@triton.jit
def _scatter_num_accepted_kernel(idx, sampled, accepted):
    s = tl.load(idx + tl.program_id(0))
    if s >= 0:
        tl.store(accepted + s, tl.maximum(tl.load(sampled + tl.program_id(0)), 1))
"""

ALIGNED = """
@triton.jit
def _mamba_align_block_table_kernel(out, table, stride, column_stride, lens, lens_stride, block_size, width,
                                    BLOCK: tl.constexpr):
    b, j = tl.program_id(0), tl.arange(0, BLOCK)
    column = tl.maximum((tl.load(lens + b * lens_stride) - 1) // block_size, 0) + j
    entries = tl.load(table + b.to(tl.int64) * stride + column * column_stride, mask=j < width)
    tl.store(out + b * width + j, entries, mask=j < width)
"""

#: Past the end of the model's range as vLLM has it: position 0, length 1, no slot.
STEP_OF_DRAFTER = """
@triton.jit
def eagle_step_slot_mapping_metadata_kernel(positions, table, stride, lens, positions_out, slots,
                                            size: tl.constexpr, most: tl.constexpr, columns: tl.constexpr,
                                            PAD: tl.constexpr, rows):
    b = tl.program_id(0)
    if b < rows:
        p = tl.load(positions + b) + 1
        inside = p < most
        p = tl.where(inside, p, 0)
        block = tl.load(table + b * stride + tl.minimum(p // size, columns - 1))
        tl.store(slots + b, tl.where(inside, block * size + p % size, PAD))
        tl.store(positions_out + b, p)
        tl.store(lens + b, tl.where(inside, tl.load(lens + b) + 1, 1))
    else:
        tl.store(slots + b, PAD)
"""

DCP_LENGTHS = """
@triton.jit
def _dcp_local_seq_lens_kernel(out, lens, ranks, rank, interleave, rows, capacity, BLOCK: tl.constexpr):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    end, local = tl.load(lens + b, mask=b < rows, other=0), tl.zeros((BLOCK,), tl.int32)
    for j in range(interleave):
        first = rank * interleave + j
        local += tl.where(end > first, (end - first - 1) // (ranks * interleave) + 1, 0)
    tl.store(out + b, local, mask=b < capacity)

def prepare_dcp_local_seq_lens(out, lens, rows, ranks, rank, interleave, *, num_reqs_padded=None):
    _dcp_local_seq_lens_kernel[(-(-len(out) // 64),)](out, lens, ranks, rank, interleave, rows, len(out), 64)
    return out[:num_reqs_padded]
"""

TOKEN_REQUESTS = """
@triton.jit
def _token_request(starts, token, rows):
    request, beyond = tl.zeros_like(token), tl.zeros_like(token) + rows
    for _ in range(20):
        middle = (request + beyond) // 2
        is_before = tl.load(starts + middle) <= token
        request, beyond = tl.where(is_before, middle, request), tl.where(is_before, beyond, middle)
    return request

@triton.jit
def _token_request_mapping_kernel(starts, out, rows, mapped, tokens):
    t = tl.program_id(0) * 256 + tl.arange(0, 256)
    request = _token_request(starts, t, rows)
    tl.store(out + t, tl.where(t < mapped, request, 0), mask=t < tokens)

def compute_token_to_req_indices(starts, out, mapped, tokens):
    _token_request_mapping_kernel[(-(-tokens // 256),)](starts, out, starts.shape[0] - 1, mapped, tokens, num_warps=4)
    return out[:tokens]
"""

WINDOWS = """
@triton.jit
def _compute_swa_indices_and_lens_kernel(to, stride, lens, window, width, left, right, starts, ends, requests, valid,
                                         table, table_stride, size, floor, first_token, HAS_IMAGE: tl.constexpr,
                                         TRITON_BLOCK_SIZE: tl.constexpr):
    t = tl.program_id(0)
    b = tl.load(requests + t)
    p = tl.load(ends + b) - tl.load(starts + b + 1) + t
    first = tl.maximum(tl.maximum(p - window + 1, 0), tl.load(floor + b))
    count = tl.where(tl.load(valid + t), p + 1 - first, 0)
    tl.store(lens + t, count)
    i = tl.arange(0, TRITON_BLOCK_SIZE)
    block = tl.load(table + b * table_stride + (first + i) // size, mask=i < count, other=0)
    tl.store(to + t * stride + i, tl.where(i < count, block * size + (first + i) % size, -1), mask=i < width)
"""

COMPRESSED = """
class CompressedSlotMappingKernel:
    @staticmethod
    @triton.jit
    def kernel(to, slots, starts, ends, table, stride, size, ranks, interleave, COMPRESS_RATIO: tl.constexpr,
               PAD_ID: tl.constexpr, TRITON_BLOCK_SIZE: tl.constexpr):
        b = tl.program_id(0)
        start, end = tl.load(starts + b), tl.load(starts + b + 1)
        t = start + tl.arange(0, TRITON_BLOCK_SIZE)
        p = tl.load(ends + b) - end + t
        own = tl.load(slots + t, mask=t < end, other=PAD_ID)
        last = ((p + 1) % COMPRESS_RATIO == 0) & (own != PAD_ID)
        entry = p // COMPRESS_RATIO
        block = tl.load(table + b * stride + entry // size, mask=last, other=0)
        tl.store(to + t, tl.where(last, block * size + entry % size, PAD_ID), mask=t < end)
"""

LISTS = """
class BuildC128ATopkMetadataKernel:
    @staticmethod
    @triton.jit
    def kernel(to, stride, lens, other, other_stride, positions, ratio, width, decodes, requests, table, table_stride,
               size, slots, BLOCK_SIZE: tl.constexpr):
        t = tl.program_id(0)
        b, count = tl.load(requests + t), (tl.load(positions + t) + 1) // ratio
        tl.store(lens + t, tl.where(tl.load(slots + t) < 0, 0, count))
        for first in range(0, width, BLOCK_SIZE):
            i = first + tl.arange(0, BLOCK_SIZE)
            block = tl.load(table + b * table_stride + i // size, mask=i < count, other=0)
            tl.store(to + t * stride + i, tl.where(i < count, block * size + i % size, -1), mask=i < width)
"""

FILES = {
    "models/deepseek_v4/sparse_mla.py": LISTS,
    "v1/attention/backends/mla/compressor_utils.py": COMPRESSED,
    "v1/attention/backends/mla/sparse_swa.py": WINDOWS,
    "v1/attention/ops/metadata.py": TOKEN_REQUESTS,
    "v1/worker/gpu/cp_utils.py": DCP_LENGTHS,
    "v1/attention/backends/utils.py": ALIGNED,
    "v1/spec_decode/utils.py": STEP_OF_DRAFTER,
    "v1/worker/gpu/block_table.py": TABLES,
    "v1/worker/gpu/buffer_utils.py": BUFFERS,
    "v1/worker/gpu/input_batch.py": BATCH,
    "v1/worker/gpu/model_states/mamba_hybrid.py": HYBRID,
}


def write_package(folder, engine, files):
    """A package of an engine with these files, without __init__.py, in a folder."""
    for name, text in files.items():
        path = folder / engine / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write(folder):
    """The package ``vllm`` with these files."""
    write_package(folder, "vllm", FILES)
    (folder / "vllm-0.33.0.dist-info").mkdir()
    (folder / "vllm-0.33.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.33.0\n")
