// gather_block_tables in one launch for all groups. A block per row and strip of THREADS * VECTOR columns; strips behind
// the owned blocks end at once. Where num_blocks is read over the bus a row has one strip, and its block takes turns. VECTOR = 4 needs rows that start at multiples of 16 bytes.
//
// num_blocks is in device memory or in mapped pinned memory.
// Grid: rows to write, strips, groups. Block: THREADS.

#include "gather_block_tables.cuh"

constexpr int THREADS = 128;

#define PARAMETERS                                                                                                        \
    const long long *__restrict__ idx, const int *__restrict__ source, const int *__restrict__ num_computed,              \
        const long long *__restrict__ starts, const long long *__restrict__ widths, const int *__restrict__ block_sizes,  \
        const int *__restrict__ reach, const int *__restrict__ num_blocks, int *__restrict__ target, int real,            \
        int max_num_seqs
#define ARGUMENTS                                                                                                         \
    blockIdx.x, blockIdx.y * THREADS + threadIdx.x, gridDim.y * THREADS, blockIdx.z, idx, source, num_computed, starts, widths, block_sizes, reach, num_blocks, target, real, max_num_seqs

extern "C" __global__ void __launch_bounds__(THREADS) gather_vec4(PARAMETERS) { gather_block_tables::gather<4>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) gather_vec1(PARAMETERS) { gather_block_tables::gather<1>(ARGUMENTS); }
