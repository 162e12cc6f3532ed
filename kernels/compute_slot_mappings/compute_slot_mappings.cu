// compute_slot_mappings in one launch, a thread per token and group. Larger batches than MOST_ROWS have a warp per row.
//
// Grid: tokens, x = ceil(capacity / THREADS) blocks, y = groups; rows, x = max(ceil(rows / 4), ceil(capacity / (4 * THREADS))),
// y = groups, z = strips of a row. Block: THREADS.
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
        long long *__restrict__ slots, int rows, int search, int capacity, int ranks, int rank, int interleave
#define OF_GROUPS idx, query_start_loc, tables, starts, widths, block_sizes, enabled, sharded, slots, rows
#define TOKENS blockIdx.y, blockIdx.x, positions, OF_GROUPS, search, capacity, ranks, rank, interleave
#define ROWS                                                                                                               \
    blockIdx.y, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS, blockIdx.z, gridDim.z,                           \
        compute_slot_mappings::Written{positions}, OF_GROUPS, capacity, ranks, rank, interleave
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)

KERNEL tokens_one_rank(PARAMETERS) { compute_slot_mappings::map_tokens<false, THREADS>(TOKENS); }
KERNEL tokens_ranks(PARAMETERS) { compute_slot_mappings::map_tokens<true, THREADS>(TOKENS); }
KERNEL rows_one_rank(PARAMETERS) { compute_slot_mappings::map_rows<false>(ROWS); }
KERNEL rows_ranks(PARAMETERS) { compute_slot_mappings::map_rows<true>(ROWS); }
