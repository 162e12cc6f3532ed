"""A made-up engine: files where SGLang has its own, with kernels and functions of the same names and arguments.

The code is this suite's. It stands for what upstream/ takes out of SGLang's files; it is not SGLang's. Constants are
smaller, so that small batches split rows.
"""

SLOTS = """
import an_engine_that_is_not_there

@triton.jit
def assign_extend_cache_locs(owners, table, starts, ends, to, width: tl.constexpr, ROWS: tl.constexpr):
    b, other = tl.program_id(0), tl.arange(0, ROWS)
    before = tl.load(ends + other, mask=other < b, other=0) - tl.load(starts + other, mask=other < b, other=0)
    to += tl.sum(before, 0)
    start, row = tl.load(starts + b), table + tl.load(owners + b) * width
    count = tl.load(ends + b) - start
    for first in range(0, count, 16):
        j = first + tl.arange(0, 16)
        tl.store(to + j, tl.load(row + start + j, mask=j < count), mask=j < count)

@triton.jit
def assign_draft_cache_locs_contiguous(owners, table, lens, to, width: tl.constexpr, branches: tl.constexpr,
                                       steps: tl.constexpr, positions=None, mrope=None, BS=0,
                                       WRITE_POSITIONS: tl.constexpr = False, WRITE_MROPE: tl.constexpr = False):
    b = tl.program_id(0)
    length, row = tl.load(lens + b), table + tl.load(owners + b) * width
    for j in range(branches * steps):
        tl.store(to + b * branches * steps + j, tl.load(row + length + j))
    if WRITE_POSITIONS:
        for j in range(branches):
            tl.store(positions + b * branches + j, length)

def assign_draft_cache_locs_contiguous_func(owners, table, lens, to, branches, steps, positions=None):
    assert not _is_cpu
    assign_draft_cache_locs_contiguous[(len(lens),)](owners, table, lens, to, table.shape[1], branches, steps,
                                                     positions=positions, WRITE_POSITIONS=positions is not None)

@triton.jit
def _translate_token_ids(slots, TRANSLATE: tl.constexpr):
    tl.static_assert(not TRANSLATE)
    return slots

@triton.jit
def _load_token_ids(row, columns, mask, TRANSLATE: tl.constexpr):
    return _translate_token_ids(tl.load(row + columns, mask=mask), TRANSLATE)

@triton.jit
def generate_draft_decode_kv_indices(owners, table, lens, to, starts, positions, width, to_width: tl.constexpr,
                                     starts_width: tl.constexpr, ROWS: tl.constexpr, PASSES: tl.constexpr,
                                     TOKENS: tl.constexpr, PAGE: tl.constexpr, NUM_STEPS: tl.constexpr = 0):
    b, passes, strips, strip = tl.program_id(1), tl.num_programs(0), 1, 0
    i = tl.program_id(0)
    if NUM_STEPS > 0:
        passes, strips, strip, i = NUM_STEPS, tl.num_programs(0) // NUM_STEPS, i // NUM_STEPS, i % NUM_STEPS
    other, count = tl.arange(0, ROWS), tl.load(lens + b) + i + 1
    first = tl.sum(tl.load(lens + other, mask=other < b, other=0), 0) + b * (i + 1)
    row = table + tl.load(owners + b) * width
    for begin in range(strip * 512, count, strips * 512):
        c = begin + tl.arange(0, 512)
        tl.store(to + i * to_width + first + c, _load_token_ids(row, c, c < count, False), mask=c < count)
    if strip == 0:
        tl.store(starts + i * starts_width + b + 1, first + count)
"""

CHAIN = """
import an_engine_that_is_not_there

@triton.jit
def _build_chain_tree_kernel(last, drafts, lens, mask, positions, tree, ids, rows, width: tl.constexpr,
                             last_stride: tl.constexpr, drafts_row: tl.constexpr, drafts_column: tl.constexpr,
                             lens_stride: tl.constexpr, LANES: tl.constexpr, owners, table, slots, mrope,
                             owners_stride: tl.constexpr, table_row: tl.constexpr, table_column: tl.constexpr,
                             WRITE_CACHE: tl.constexpr, WRITE_MROPE: tl.constexpr):
    cell = tl.program_id(0) * LANES + tl.arange(0, LANES)
    tl.store(mask + cell, cell % width <= cell // width % width, mask=cell < rows * width * width)
    b, j, inside = cell // width, cell % width, cell < rows * width
    draft = tl.load(drafts + b * drafts_row + (j - 1) * drafts_column, mask=inside & (j > 0), other=0)
    tl.store(ids + cell, tl.where(j > 0, draft, tl.load(last + b * last_stride, mask=inside, other=0)), mask=inside)
    position = tl.load(lens + b * lens_stride, mask=inside, other=0) + j
    tl.store(positions + cell, position, mask=inside)
    if WRITE_CACHE:
        row = table + tl.load(owners + b * owners_stride, mask=inside, other=0) * table_row
        tl.store(slots + cell, tl.load(row + position * table_column, mask=inside, other=0), mask=inside)
    child = tl.where(j < width - 1, j + 1, -1)
    tl.store(tree + cell, cell, mask=inside)
    tl.store(tree + rows * width + cell, child, mask=inside)
    tl.store(tree + 2 * rows * width + cell, tl.zeros_like(child) - 1, mask=inside)

def build_chain_tree(last, drafts, lens, req_pool_indices, req_to_token):
    rows, width = len(lens), drafts.shape[1] + 1
    mask = torch.empty(rows * width * width, dtype=torch.bool, device=lens.device)
    positions, slots, ids = (torch.empty(rows * width, dtype=torch.int64, device=lens.device) for _ in range(3))
    tree = torch.empty(3, rows, width, dtype=torch.int64, device=lens.device)
    _build_chain_tree_kernel[(-(-len(mask) // 128),)](
        last, drafts, lens, mask, positions, tree, ids, rows, width, last.stride(0), drafts.stride(0),
        drafts.stride(1), lens.stride(0), 128, req_pool_indices, req_to_token, slots, None,
        req_pool_indices.stride(0), req_to_token.stride(0), req_to_token.stride(1), True, False)
    return mask, positions, tree[0], tree[1], tree[2], ids, slots, None

@triton.jit
def _prepare_draft_extend_lengths_kernel(lens, before, new, after, rows, stride: tl.constexpr, width: tl.constexpr,
                                         front: tl.constexpr, LANES: tl.constexpr, positions=None, starts=None,
                                         mrope=None, MAKE_POSITIONS: tl.constexpr = False):
    i = tl.program_id(0) * LANES + tl.arange(0, LANES)
    length = tl.load(lens + i * stride, mask=i < rows, other=0)
    tl.store(before + i, length - front, mask=i < rows)
    tl.store(new + i, tl.zeros_like(i) + width + front, mask=i < rows)
    tl.store(after + i, length + width, mask=i < rows)
    if MAKE_POSITIONS:
        tl.store(starts + i, i * width, mask=i < rows)
        start = tl.load(lens + i // width * stride, mask=i < rows * width, other=0)
        tl.store(positions + i, start + i % width, mask=i < rows * width)

def prepare_draft_extend_layout(lens, width, with_mrope):
    rows = len(lens)
    before, new, starts = (torch.empty(rows, dtype=torch.int32, device=lens.device) for _ in range(3))
    after, positions = torch.empty_like(lens), lens.new_empty(rows * width)
    _prepare_draft_extend_lengths_kernel[(-(-rows * width // 128),)](
        lens, before, new, after, rows, lens.stride(0), width, 0, 128, positions, starts, None, True)
    return before, new, after, (positions, starts, None)
"""

INDICES = """
import an_engine_that_is_not_there

_MIN_TOKENS_PER_BLOCK = 512
_TARGET_PROGRAMS = 512
SPEC_KV_INDEX_BLOCKS_MIN_CONTEXT = 1024

def kv_indices_num_token_blocks(columns, programs):
    return max(min(-(-columns // _MIN_TOKENS_PER_BLOCK), _TARGET_PROGRAMS // programs), 1)

def spec_kv_index_token_blocks(columns, total, rows, base_programs=None):
    if columns < SPEC_KV_INDEX_BLOCKS_MIN_CONTEXT:
        return 1
    return kv_indices_num_token_blocks(min(columns, total), base_programs or rows)

_FLASHMLA_CREATE_KV_BLOCK_SIZE = 4096
FLASHMLA_CREATE_KV_BLOCK_SIZE_TRITON = tl.constexpr(_FLASHMLA_CREATE_KV_BLOCK_SIZE)

def get_num_page_per_block_flashmla(page_size=64):
    return _FLASHMLA_CREATE_KV_BLOCK_SIZE // page_size

def get_num_kv_index_blocks_flashmla(width, page_size):
    return -(-width // get_num_page_per_block_flashmla(page_size))

@triton.jit
def create_flashmla_kv_indices_triton(table, owners, lens, starts, to, width: tl.constexpr, to_width: tl.constexpr,
                                      PAGED_SIZE: tl.constexpr = 64):
    PAGES: tl.constexpr = FLASHMLA_CREATE_KV_BLOCK_SIZE_TRITON // PAGED_SIZE
    tl.static_assert(starts is None)
    b, p = tl.program_id(0), tl.program_id(1) * PAGES + tl.arange(0, PAGES)
    inside = p < tl.cdiv(tl.load(lens + b), PAGED_SIZE)
    slots = tl.load(table + tl.load(owners + b) * width + p * PAGED_SIZE, mask=inside)
    tl.store(to + b * to_width + p, slots // PAGED_SIZE, mask=inside)
"""

PLAN = """
import an_engine_that_is_not_there

@triton.jit
def _schedule_topk_prep_kernel(confidence, survival, chosen, drafts, columns, G_P2: tl.constexpr):
    b, j = tl.program_id(0), tl.arange(0, G_P2)
    p = tl.cumprod(tl.load(confidence + b * drafts + j, mask=j < drafts, other=1.0).to(tl.float32), 0)
    tl.store(survival + b * columns + j, p, mask=j < columns)
    tl.store(chosen + b, 0)

@triton.jit
def _schedule_topk_selected_extra_kernel(survival, chosen, budget, columns, total, least, BLOCK_C: tl.constexpr,
                                         BLOCK_CP: tl.constexpr):
    i = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.load(survival + i, mask=i < total, other=-1.0)
    p = tl.where(p < least, -1.0, p)
    place = i % columns * total + i // columns
    rank = tl.zeros((BLOCK_C,), tl.int32)
    for first in range(0, total, BLOCK_CP):
        other = first + tl.arange(0, BLOCK_CP)
        q = tl.load(survival + other, mask=other < total, other=-1.0)
        q = tl.where(q < least, -1.0, q)
        is_before = other % columns * total + other // columns
        is_before = (q[None, :] == p[:, None]) & (is_before[None, :] < place[:, None])
        rank += tl.sum(((q[None, :] > p[:, None]) | is_before).to(tl.int32), 1)
    tl.atomic_add(chosen + i // columns, 1, mask=(i < total) & (p >= least) & (rank < budget))

@triton.jit
def _schedule_topk_finalize_kernel(chosen, lens, added, least, most, rows, BLOCK: tl.constexpr):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    length = tl.load(chosen + b, mask=b < rows, other=0) + added
    tl.store(lens + b, tl.minimum(tl.maximum(length, least), most), mask=b < rows)

def schedule_verify_lens_topk_triton(*, confidence, budget, cfg):
    rows, drafts = confidence.shape
    most = cfg.resolved_max_verify_len()
    columns = min(drafts, most)
    survival = torch.empty(rows, columns, dtype=torch.float32, device=confidence.device)
    chosen, lens = (torch.empty(rows, dtype=torch.int32, device=confidence.device) for _ in range(2))
    _schedule_topk_prep_kernel[(rows,)](
        confidence, survival, chosen, drafts, columns, G_P2=triton.next_power_of_2(drafts))
    if budget > 0:
        _schedule_topk_selected_extra_kernel[(-(-rows * columns // 16),)](
            survival, chosen, budget, columns, rows * columns, cfg.survival_eps, BLOCK_C=16, BLOCK_CP=32)
    _schedule_topk_finalize_kernel[(-(-rows // 32),)](
        chosen, lens, cfg.min_verify_len, max(cfg.min_verify_len, 1), most, rows, BLOCK=32)
    return lens
"""

RAGGED = """
import an_engine_that_is_not_there

@triton.jit
def _padded_to_bucket_kernel(lens, to, rows, padded, tokens, BLOCK: tl.constexpr):
    b = tl.arange(0, BLOCK)
    length = tl.load(lens + b, mask=b < rows, other=0)
    rest, added = tokens - tl.sum(length, 0), padded - rows
    share = rest // tl.maximum(added, 1)
    extra = tl.where(b - rows < rest - share * added, share + 1, share)
    last = tl.where((added == 0) & (b == rows - 1), rest, 0)
    tl.store(to + b, tl.where(b < rows, length + last, extra), mask=b < padded)

def pad_verify_lens_to_bucket_triton(*, verify_lens, graph_num_tokens, bs, padded_bs):
    padded = verify_lens.new_empty(padded_bs)
    _padded_to_bucket_kernel[(1,)](
        verify_lens, padded, bs, padded_bs, graph_num_tokens, BLOCK=triton.next_power_of_2(padded_bs))
    return padded

class QoIndptrResult(msgspec.Struct):
    qo_indptr: torch.Tensor
    extend_start_loc: torch.Tensor

@triton.jit
def _qo_indptr_kernel(lens, boundaries, starts, rows, BLOCK: tl.constexpr):
    b = tl.arange(0, BLOCK)
    length = tl.load(lens + b, mask=b < rows, other=0)
    end = tl.cumsum(length, 0)
    tl.store(boundaries, 0)
    tl.store(boundaries + b + 1, end, mask=b < rows)
    tl.store(starts + b, end - length, mask=b < rows)

def build_qo_indptr_triton(*, verify_lens):
    rows = len(verify_lens)
    boundaries, starts = verify_lens.new_empty(rows + 1), verify_lens.new_empty(rows)
    _qo_indptr_kernel[(1,)](verify_lens, boundaries, starts, rows, BLOCK=triton.next_power_of_2(max(rows, 1)))
    return QoIndptrResult(qo_indptr=boundaries, extend_start_loc=starts)
"""

FILES = {
    "kernels/ops/speculative/cache_locs.py": SLOTS,
    "kernels/ops/speculative/eagle.py": CHAIN,
    "kernels/ops/attention/kv_indices.py": INDICES,
    "kernels/ops/speculative/dspark/dspark_schedule.py": PLAN,
    "kernels/ops/speculative/ragged_verify_kernels.py": RAGGED,
}
