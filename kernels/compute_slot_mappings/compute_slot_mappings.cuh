// The body of compute_slot_mappings, for a warp per row and group; compute_slot_mappings.cu has the launch, step_prologue
// another one.

#pragma once

#include "load.cuh"

namespace compute_slot_mappings {

// Positions of tokens as they were written. In a steady decode all rows have per_row tokens, so a row's start can be guessed,
// and its first positions are loaded with its boundaries instead of a memory latency after them.
struct Written {
    const long long* positions;
    int per_row, capacity;

    __device__ __forceinline__ int early(int b, int j) const {
        const int t = b * per_row + j;
        return (int)load_in_order(positions + min(t, capacity - 1));
    }
    __device__ __forceinline__ int at(int t, int b, int j, long long, int early) const {
        return j < 32 && t == b * per_row + j ? early : (int)positions[t];
    }
};
// Counted from each row's first one by slot.
struct Counted {
    const int* num_computed;

    __device__ __forceinline__ int early(int, int) const { return 0; }
    __device__ __forceinline__ int at(int, int, int j, long long s, int) const { return num_computed[s] + j; }
};

// thread: index in the `threads` of a group's part. strip, strips: long rows are shared by as many warps, 32 tokens in
// turn. The threads also clear the tail, from the real number of tokens on.
template <bool RANKS, class Positions>
__device__ __forceinline__ void map_rows(
    int g, int thread, int threads, int strip, int strips, const Positions positions, const long long* __restrict__ idx,
    const int* __restrict__ query_start_loc, const int* __restrict__ tables, const long long* __restrict__ starts,
    const long long* __restrict__ widths, const int* __restrict__ block_sizes, const bool* __restrict__ enabled,
    const bool* __restrict__ sharded, long long* __restrict__ slots, int rows, int capacity, int ranks, int rank,
    int interleave) {
    long long* target = slots + (long long)g * capacity;
    const int b = thread >> 5, lane = thread & 31, tail = load_in_order(query_start_loc + rows), block_size = load_in_order(block_sizes + g);
    const int early = positions.early(min(b, rows), lane);
    const long long table_start = load_in_order(starts + g), width = load_in_order(widths + g);
    const bool on = load_in_order(enabled + g), split = RANKS && sharded[g];
    int start = 0, end = 0;
    long long s = -1;
    if (b < rows) {
        start = load_in_order(query_start_loc + b);
        end = load_in_order(query_start_loc + b + 1);
        s = load_in_order(idx + b);
    }
    const bool known = on && s >= 0;
    const int* table = tables + table_start + s * width;
#pragma unroll 1
    for (int t = start + strip * 32 + lane; t < end; t += strips * 32) {
        long long slot = -1;
        if (known) {
            int position = positions.at(t, b, t - start, s, early);
            bool mine = true;
            if (split) {
                const int own = position % (block_size * ranks);
                mine = own / interleave % ranks == rank;
                position = position / (block_size * ranks) * block_size + own / (interleave * ranks) * interleave + own % interleave;
            }
            if (mine) slot = table[position / block_size] * block_size + position % block_size;
        }
        target[t] = slot;
    }
    // After the row, whose chain of loads is longer.
#pragma unroll 1
    for (int t = tail + strip * threads + thread; t < capacity; t += strips * threads) target[t] = -1;
}

}  // namespace compute_slot_mappings
