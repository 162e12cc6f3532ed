// The body of compute_slot_mappings, for a warp per row and group; compute_slot_mappings.cu has the launch, step_prologue
// another one.

#pragma once

namespace compute_slot_mappings {

// Positions of tokens as they were written, or counted from each row's first one by slot.
struct Written {
    const long long* positions;
    __device__ __forceinline__ int operator()(int t, int, long long) const { return (int)positions[t]; }
};
struct Counted {
    const int* num_computed;
    __device__ __forceinline__ int operator()(int, int j, long long s) const { return num_computed[s] + j; }
};

// thread: index in the `threads` of a group's part. The threads also clear the tail, from the real number of tokens on.
template <bool RANKS, class Positions>
__device__ __forceinline__ void map_rows(
    int g, int thread, int threads, const Positions positions, const long long* __restrict__ idx,
    const int* __restrict__ query_start_loc, const int* __restrict__ tables, const long long* __restrict__ starts,
    const long long* __restrict__ widths, const int* __restrict__ block_sizes, const bool* __restrict__ enabled,
    const bool* __restrict__ sharded, long long* __restrict__ slots, int rows, int capacity, int ranks, int rank,
    int interleave) {
    long long* target = slots + (long long)g * capacity;
    for (int t = query_start_loc[rows] + thread; t < capacity; t += threads) target[t] = -1;

    const int b = thread >> 5, lane = thread & 31;
    if (b >= rows) return;
    const int start = query_start_loc[b], end = query_start_loc[b + 1], block_size = block_sizes[g];
    const long long s = idx[b];
    const bool known = s >= 0 && enabled[g], split = RANKS && sharded[g];
    const int* table = tables + starts[g] + s * widths[g];
    for (int t = start + lane; t < end; t += 32) {
        long long slot = -1;
        if (known) {
            int position = positions(t, t - start, s);
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
}

}  // namespace compute_slot_mappings
