// compute_slot_mappings in one launch. A warp per row of the batch: its lanes map 32 tokens at a time. Every thread of the
// grid also clears entries of the tail, from the real number of tokens on, one per pass over the grid.
//
// Grid: x = max(ceil(rows / 4), ceil(capacity / (4 * THREADS))) blocks, y = groups. Block: THREADS.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192 (record step).
// Predicted: 1.29, the floor:
//
//   as vLLM 0.33: a program per row, one for the tail        1 launch           2.24
//   warps for rows, the tail shared by all threads           1 launch           2.03, Triton 2.03
//   two warps and 256 entries of the tail per program        1 launch           Triton 1.94
//
// Three loads in sequence, query start, position, table entry. Four groups: 2.16, the engine's kernel 2.63.
// In the run of the last version the one before took 2.00 in both languages; CUDA C++ in blocks of 64 threads took 2.02.

#include "compute_slot_mappings.cuh"

constexpr int THREADS = 128;

#define PARAMETERS                                                                                                        \
    const long long *__restrict__ idx, const int *__restrict__ query_start_loc, const long long *__restrict__ positions,  \
        const int *__restrict__ tables, const long long *__restrict__ starts, const long long *__restrict__ widths,       \
        const int *__restrict__ block_sizes, const bool *__restrict__ enabled, const bool *__restrict__ sharded,          \
        long long *__restrict__ slots, int rows, int capacity, int per_row, int ranks, int rank, int interleave
#define ARGUMENTS                                                                                                         \
    blockIdx.y, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS, blockIdx.z, gridDim.z,                           \
        compute_slot_mappings::Written{positions, per_row, capacity}, idx, query_start_loc, tables, starts, widths,          \
        block_sizes, enabled, sharded, slots, rows, capacity, ranks, rank, interleave

extern "C" __global__ void __launch_bounds__(THREADS) map_one_rank(PARAMETERS) {
    compute_slot_mappings::map_rows<false>(ARGUMENTS);
}
extern "C" __global__ void __launch_bounds__(THREADS) map_ranks(PARAMETERS) {
    compute_slot_mappings::map_rows<true>(ARGUMENTS);
}
