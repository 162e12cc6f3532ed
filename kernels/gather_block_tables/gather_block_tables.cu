// gather_block_tables in one launch for all groups. A block per row and strip of THREADS * VECTOR columns; strips behind
// the owned blocks end at once. Where num_blocks lies in mapped pinned memory, which is read over the bus, a row has one
// strip, and its block takes turns. VECTOR = 4 needs rows that start at multiples of 16 bytes.
//
// Grid: rows to write, strips, groups. Block: THREADS.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192 (record step).
// Predicted: 1.30, the floor:
//
//   as vLLM 0.33: a program per row walks over its columns   1 launch           2.01
//   a block per strip, early columns before the count        1 launch           1.92, Triton 2.04
//
// Two loads in sequence, slot, then count and columns. With four groups and windows the engine's kernel is faster: 2.16
// against 2.84, Triton 2.30. Why was not found out.
// Not taken: a single strip per row. 1.85 against 1.88 in the same run, Triton with 128 columns 1.94 against 1.98, since all
// rows end in the first strip there. But a row of more than 512 blocks (Triton: 128) then takes turns, each a trip to memory.

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
