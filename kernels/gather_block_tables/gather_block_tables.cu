// gather_block_tables in one launch for all groups. A block per row and strip of THREADS * VECTOR columns; strips
// behind the owned blocks end at once. Where num_blocks lies in mapped pinned memory, which is read over the bus, a row
// has one strip, and its block takes turns. VECTOR = 4 needs rows that start at multiples of 16 bytes.
//
// Grid: rows to write, strips, groups. Block: THREADS.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192; four groups with windows (the last line: record step).
// Predicted: 1.26, the copy bound:
//
//   as vLLM 0.33: a program per row walks over its columns   1 launch           1.97   2.13
//   a strip for every 512 columns, early columns             1 launch           1.92   2.84, Triton 2.04   2.30
//   few strips where there are many rows                     1 launch           1.88   2.05
//   all loads before the first branch, whole vectors         1 launch           1.72   1.93
//   few strips, early columns, 256 columns per program       Triton             1.80   1.89
//
// Two loads in sequence, slot, then count and columns. With a strip for every 512 columns, four groups had 2,560
// blocks, of which 512 had something to do. A single strip takes 2.71 where all contexts are of 64K to 128K tokens,
// four strips 2.24.

#include "gather_block_tables.cuh"

constexpr int THREADS = 128;

using namespace gather_block_tables;

extern "C" __global__ void __launch_bounds__(THREADS) gather_block_tables_kernel_vec4(
    const __grid_constant__ Inputs x, const __grid_constant__ Outputs out, const __grid_constant__ Sizes n) {
    gather<4>(blockIdx.x, blockIdx.y * THREADS + threadIdx.x, gridDim.y * THREADS, blockIdx.z, x, out, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) gather_block_tables_kernel_vec1(
    const __grid_constant__ Inputs x, const __grid_constant__ Outputs out, const __grid_constant__ Sizes n) {
    gather<1>(blockIdx.x, blockIdx.y * THREADS + threadIdx.x, gridDim.y * THREADS, blockIdx.z, x, out, n);
}
