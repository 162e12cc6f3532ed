// Bodies of compute_slot_mappings, for a thread per token or a warp per row; compute_slot_mappings.cu has the launches,
// step_prologue another one.

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

// The slot of a token that its row maps; -1 on other ranks. table: the row's.
template <bool RANKS>
__device__ __forceinline__ long long slot_of(
    int position, const int* __restrict__ table, int block_size, bool split, int ranks, int rank, int interleave) {
    if (RANKS && split) {
        const int own = position % (block_size * ranks);
        if (own / interleave % ranks != rank) return -1;
        position = position / (block_size * ranks) * block_size + own / (interleave * ranks) * interleave + own % interleave;
    }
    return table[position / block_size] * block_size + position % block_size;
}

// A thread per token of group g, or entry of the tail. Every block loads the starts and slots of all rows, at most
// MOST_ROWS, while its positions arrive, and searches them in shared memory. search: the largest power of two below rows,
// or 0.
constexpr int MOST_ROWS = 1024;

template <bool RANKS, int THREADS>
__device__ __forceinline__ void map_tokens(
    int g, int block, const long long* __restrict__ positions, const long long* __restrict__ idx,
    const int* __restrict__ query_start_loc, const int* __restrict__ tables, const long long* __restrict__ starts,
    const long long* __restrict__ widths, const int* __restrict__ block_sizes, const bool* __restrict__ enabled,
    const bool* __restrict__ sharded, long long* __restrict__ slots, int rows, int search, int capacity, int ranks, int rank,
    int interleave) {
    __shared__ int row_start[MOST_ROWS + 1], row_slot[MOST_ROWS];
    const int t = block * THREADS + threadIdx.x;
    const int position = t < capacity ? (int)positions[t] : 0;
    const int block_size = block_sizes[g];
    const bool on = enabled[g], split = RANKS && sharded[g];
    const int* group = tables + starts[g];
    const long long width = widths[g];
#pragma unroll 4
    for (int b = threadIdx.x; b <= rows; b += THREADS) {
        row_start[b] = query_start_loc[b];
        if (b < rows) row_slot[b] = (int)idx[b];
    }
    __syncthreads();
    if (t >= capacity) return;
    long long slot = -1;
    if (on && t < row_start[rows]) {
        int b = 0;
#pragma unroll 1
        for (int step = search; step > 0; step /= 2) {
            if (b + step < rows && row_start[b + step] <= t) b += step;
        }
        const int s = row_slot[b];
        if (s >= 0) slot = slot_of<RANKS>(position, group + s * width, block_size, split, ranks, rank, interleave);
    }
    slots[(long long)g * capacity + t] = slot;
}

// A warp per row of group g. thread: index in the `threads` of the group's part. strip, strips: long rows are shared by as
// many warps, 32 tokens in turn. The threads also clear the tail, from the real number of tokens on.
template <bool RANKS, class Positions>
__device__ __forceinline__ void map_rows(
    int g, int thread, int threads, int strip, int strips, const Positions positions, const long long* __restrict__ idx,
    const int* __restrict__ query_start_loc, const int* __restrict__ tables, const long long* __restrict__ starts,
    const long long* __restrict__ widths, const int* __restrict__ block_sizes, const bool* __restrict__ enabled,
    const bool* __restrict__ sharded, long long* __restrict__ slots, int rows, int capacity, int ranks, int rank,
    int interleave) {
    long long* target = slots + (long long)g * capacity;
    const int b = thread >> 5, lane = thread & 31, tail = query_start_loc[rows];
    const int start = b < rows ? query_start_loc[b] : 0, end = b < rows ? query_start_loc[b + 1] : 0;
    const int block_size = block_sizes[g];
    const long long s = b < rows ? idx[b] : -1;
    const bool known = s >= 0 && enabled[g], split = RANKS && sharded[g];
    const int* table = tables + starts[g] + s * widths[g];
    for (int t = start + strip * 32 + lane; t < end; t += strips * 32) {
        target[t] =
            known ? slot_of<RANKS>(positions(t, t - start, s), table, block_size, split, ranks, rank, interleave) : -1;
    }
    // After the row, whose chain of loads is longer.
    for (int t = tail + strip * threads + thread; t < capacity; t += strips * threads) target[t] = -1;
}

}  // namespace compute_slot_mappings
