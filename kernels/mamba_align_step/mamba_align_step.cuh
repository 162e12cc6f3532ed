// The bodies of mamba_align_step; mamba_align_step.cu has the launches, step_prologue and step_epilogue others.

#pragma once

#include "load.cuh"

namespace mamba_align_step {  // Sizes, Inputs, Outputs, LANES: declared by cuda.py

__device__ __forceinline__ void store_move(int* moves, int b, bool moved, int from, int to, int shift) {
    moves[3 * b] = moved ? from : -1;
    moves[3 * b + 1] = moved ? to : -1;
    moves[3 * b + 2] = moved ? shift : 0;
}

// thread: index in all threads of the part.
__device__ __forceinline__ void before_forward(int thread, const Inputs& x, const Outputs& out, const Sizes& n) {
    const int b = thread / LANES, lane = thread % LANES, entries = n.num_groups * n.slots_per_row;
    if (b >= n.num_reqs_padded) return;
    const long long s = load(x.idx_mapping + b), slot = max(s, 0ll);
    const int start = load(x.query_start_loc + b), end = load(x.query_start_loc + b + 1);
    const int computed = load(x.num_computed_tokens + slot), column = load(x.state_columns_before + slot);
    const int before = load(x.num_accepted_tokens_before + slot);
    const bool live = s >= 0;
    const int new_column = live ? (computed + end - start - 1) / n.block_size : 0, old = live ? column : -1;
    int count = live ? before : 1, entry = 0;
    // The first entry is loaded before anything is stored.
    const int first = max(new_column, 0);
    if (live && lane < entries) {
        const long long row = (long long)(lane / n.slots_per_row) * n.max_num_seqs + s;
        entry = load(x.slot_tables + row * n.width + first + lane % n.slots_per_row);
    }
    if (lane == 0) {
        const bool crosses = old >= 0 && old != new_column;
        if (live) {
            out.source_columns[s] = old;
            out.source_offsets[s] = max(count - 1, 0);
            out.state_columns[s] = new_column;
        }
        store_move(out.moves, b, crosses, old, new_column, max(count - 1, 0));
        if (crosses) count = 1;
        if (live) out.num_accepted_tokens[s] = count;
        out.batch_accepted[b] = count;
        out.mask[b] = live;
        out.starts[b] = start;
        if (b == n.num_reqs_padded - 1) out.starts[n.num_reqs_padded] = end;
    }
#pragma unroll 1
    for (int i = lane; i < entries; i += LANES) {
        const int g = i / n.slots_per_row, j = i % n.slots_per_row;
        const long long table = (long long)g * n.max_num_seqs;
        out.state_slots[(table + b) * n.slots_per_row + j] =
            i == lane ? entry : live ? x.slot_tables[(table + s) * n.width + first + j] : 0;
    }
}

// What a row's state becomes once it is computed up to `computed`, in column `column`, `count` tokens of it new.
// Returns the count that the next step starts from.
__device__ __forceinline__ int freeze(int b, int computed, int column, int count, int* moves, int block_size) {
    const int running = computed - count + 1, aligned = computed / block_size * block_size;
    const int to = aligned / block_size - 1;
    const bool frozen = aligned >= running;
    store_move(moves, b, frozen && (to != column || aligned > running), column, to, aligned - running);
    return frozen && to == column ? 1 : count;
}

}  // namespace mamba_align_step
