// The body of compute_slot_mappings, for a warp per row and group; compute_slot_mappings.cu has the launch,
// step_prologue another one.

#pragma once

#include "load.cuh"

namespace compute_slot_mappings {

// Positions of tokens as they were written. In a steady decode all rows have as many tokens, so a row's start can be
// guessed, and its first positions are loaded with its boundaries instead of a memory latency after them.
struct Written {
    const long long* positions;
    int tokens_per_row, max_num_batched_tokens;

    __device__ __forceinline__ int early(int b, int j) const {
        const int t = b * tokens_per_row + j;
        return (int)load_in_order(positions + min(t, max_num_batched_tokens - 1));
    }
    __device__ __forceinline__ int at(int t, int b, int j, long long, int early) const {
        return j < 32 && t == b * tokens_per_row + j ? early : (int)__ldg(positions + t);
    }
};
// Counted from each row's first one by slot.
struct Counted {
    const int* num_computed_tokens;

    __device__ __forceinline__ int early(int, int) const { return 0; }
    __device__ __forceinline__ int at(int, int, int j, long long s, int) const {
        return __ldg(num_computed_tokens + s) + j;
    }
};

// thread: index in the `threads` of a group's part. strip, strips: long rows are shared by as many warps, 32 tokens in
// turn. The threads also clear the tail, from the real number of tokens on.
template <bool RANKS, class Positions, class In, class Out, class N>
__device__ __forceinline__ void map_rows(
    int g, int thread, int threads, int strip, int strips, const Positions positions, const In& x, const Out& out,
    const N& n) {
    long long* target = out.slot_mappings + (long long)g * n.max_num_batched_tokens;
    const int b = thread >> 5, lane = thread & 31, rows = n.num_reqs_padded;
    const int tail = load_in_order(x.query_start_loc + rows), block_size = load_in_order(x.block_sizes + g);
    const int early = positions.early(min(b, rows), lane);
    const long long table_start = load_in_order(x.starts + g), width = load_in_order(x.widths + g);
    const bool on = load_in_order(x.enabled + g);
    bool split = false;
    if constexpr (RANKS) split = x.sharded[g];
    int start = 0, end = 0;
    long long s = -1;
    if (b < rows) {
        start = load_in_order(x.query_start_loc + b);
        end = load_in_order(x.query_start_loc + b + 1);
        s = load_in_order(x.idx_mapping + b);
    }
    const bool known = on && s >= 0;
    const int* table = x.tables + table_start + s * width;
#pragma unroll 1
    for (int t = start + strip * 32 + lane; t < end; t += strips * 32) {
        long long slot = -1;
        if (known) {
            int position = positions.at(t, b, t - start, s, early);
            bool is_local = true;
            if constexpr (RANKS) {
                if (split) {
                    const int ranks = n.cp_size, interleave = n.cp_interleave;
                    is_local = position / interleave % ranks == n.cp_rank;
                    position = position / (interleave * ranks) * interleave + position % interleave;
                }
            }
            const int column = position / block_size;
            if (is_local && column < width) slot = __ldg(table + column) * block_size + position % block_size;
        }
        target[t] = slot;
    }
    // After the row, whose chain of loads is longer.
#pragma unroll 1
    for (int t = tail + strip * threads + thread; t < n.max_num_batched_tokens; t += strips * threads) target[t] = -1;
}

}  // namespace compute_slot_mappings
