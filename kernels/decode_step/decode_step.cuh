// The parts of decode_step: schedules, (B, L) lengths and flattened rows; decode_step.cu has the launches,
// step_prologue another one.

#pragma once

#include "dcp_lengths/dcp_lengths.cuh"
#include "decode_flatten/decode_flatten.cuh"
#include "decode_native/decode_native.cuh"
#include "mla_tile_schedule/mla_tile_schedule.cuh"
#include "paged_mqa_schedule/paged_mqa_schedule.cuh"

namespace decode_step {  // Sizes, Outputs, Tables, THREADS: declared by cuda.py

static_assert(THREADS == decode_flatten::THREADS, "of one block");
static_assert(THREADS == mla_tile_schedule::THREADS && THREADS == paged_mqa_schedule::THREADS, "of one block");

// One of the blocks in front. lengths: of the requests, on this rank. work: the weight of a request for the paged-MQA
// kernel.
template <bool MANY, class Lens, class Work>
__device__ __forceinline__ void schedule(const Lens lengths, const Work work, const Outputs& out, const Sizes& n) {
    if (blockIdx.x == 0) {
        mla_tile_schedule::tile_schedule<MANY>(lengths, out.tile_scheduler_metadata, out.num_splits, n.tiles);
    } else {
        paged_mqa_schedule::schedule<MANY>(work, out.schedule, blockIdx.x - 1, n.schedule);
    }
}

// Entry i of the (B, L) lengths, and the rows of its request.
template <class Lens, class Local = dcp_lengths::Whole>
__device__ __forceinline__ void native_entry(
    int i, const Lens lengths, const int* query_start_loc, const Outputs& out, const Sizes& n,
    const Local& local = {}) {
    if (i >= n.schedule.batch_size * n.width) return;
    const int b = i / n.width, j = i % n.width, length = lengths[b];
    const int rows = __ldg(query_start_loc + b + 1) - __ldg(query_start_loc + b);
    out.lens[i] = decode_native::context_len(length, n.width, j, 1, local);
    if (j == 0) out.decode_lens[b] = rows;
}

template <int VECTOR, bool BY_SLOT = false, class Local = dcp_lengths::Whole>
__device__ __forceinline__ void flatten(
    int b, int strip, int strips, const int* seq_lens, const int* query_start_loc, const Outputs& out,
    const Tables& tables,
    const long long* idx_mapping = nullptr, const Local& local = {}) {
    const decode_flatten::Outputs rows{out.lens, out.decode_lens, tables.expanded_block_table, nullptr, nullptr};
    decode_flatten::flatten<VECTOR, BY_SLOT>(
        b, strip, strips, seq_lens, query_start_loc, tables.block_table, rows, tables.flatten, idx_mapping, local);
}

}  // namespace decode_step
