// The bodies of mamba_align_step; mamba_align_step.cu has the launches, step_prologue and step_epilogue others.

#pragma once

#include "load.cuh"

namespace mamba_align_step {

// Threads of a row before the forward pass.
constexpr int LANES = 8;

__device__ __forceinline__ void store_move(int* moves, int b, bool moved, int from, int to, int shift) {
    moves[3 * b] = moved ? from : -1;
    moves[3 * b + 1] = moved ? to : -1;
    moves[3 * b + 2] = moved ? shift : 0;
}

// thread: index in all threads of the part.
__device__ __forceinline__ void before_forward(
    int thread, const long long* __restrict__ idx, const int* __restrict__ num_computed, const int* columns_before,
    const int* accepted_before, const int* __restrict__ query_start_loc, const int* __restrict__ slot_tables,
    int* accepted, int* __restrict__ moves, int* columns, int* __restrict__ source_columns,
    int* __restrict__ source_offsets, int* __restrict__ batch_accepted, int* __restrict__ state_slots,
    bool* __restrict__ mask, int* __restrict__ starts, int rows, int capacity, int width, int slots_per_row, int groups,
    int block_size) {
    const int b = thread / LANES, lane = thread % LANES;
    if (b >= rows) return;
    const long long s = load(idx + b), slot = max(s, 0ll);
    const int start = load(query_start_loc + b), end = load(query_start_loc + b + 1);
    const int computed = load(num_computed + slot), column = load(columns_before + slot), before = load(accepted_before + slot);
    const bool live = s >= 0;
    const int new_column = live ? (computed + end - start - 1) / block_size : 0, old = live ? column : -1;
    int count = live ? before : 1, entry = 0;
    // The first entry is loaded before anything is stored.
    const int first = max(new_column, 0);
    if (live && lane < groups * slots_per_row)
        entry = load(slot_tables + ((long long)(lane / slots_per_row) * capacity + s) * width + first + lane % slots_per_row);
    if (lane == 0) {
        const bool crosses = old >= 0 && old != new_column;
        if (live) {
            source_columns[s] = old;
            source_offsets[s] = max(count - 1, 0);
            columns[s] = new_column;
        }
        store_move(moves, b, crosses, old, new_column, max(count - 1, 0));
        if (crosses) count = 1;
        if (live) accepted[s] = count;
        batch_accepted[b] = count;
        mask[b] = live;
        starts[b] = start;
        if (b == rows - 1) starts[rows] = end;
    }
#pragma unroll 1
    for (int i = lane; i < groups * slots_per_row; i += LANES) {
        const int g = i / slots_per_row, j = i % slots_per_row;
        state_slots[((long long)g * capacity + b) * slots_per_row + j] =
            i == lane ? entry : live ? slot_tables[((long long)g * capacity + s) * width + first + j] : 0;
    }
}

// What a row's state becomes once it is computed up to `computed`, in column `column`, `count` tokens of it new. Returns the
// count that the next step starts from.
__device__ __forceinline__ int freeze(int b, int computed, int column, int count, int* moves, int block_size) {
    const int running = computed - count + 1, aligned = computed / block_size * block_size, to = aligned / block_size - 1;
    const bool frozen = aligned >= running;
    store_move(moves, b, frozen && (to != column || aligned > running), column, to, aligned - running);
    return frozen && to == column ? 1 : count;
}

}  // namespace mamba_align_step
