// gather_block_tables in one launch for all groups. A block per row and strip of THREADS * VECTOR columns; strips
// behind the owned blocks end at once. Where num_blocks lies in mapped pinned memory, which is read over the bus, a row
// has one strip, and its block takes turns. VECTOR = 4 needs rows that start at multiples of 16 bytes.
//
// Grid: rows to write, strips, groups. Block: THREADS.
//
// Versions on an H200, slowest first (the second one lost to the first with four groups):
//
//   as vLLM 0.33: a program per row walks over its columns
//   a strip for every 512 columns, early columns
//   few strips where there are many rows
//   all loads before the first branch, whole vectors; in Triton 256 columns per program
//
// Two loads in sequence, slot, then count and columns. With a strip for every 512 columns, four groups had 2,560
// blocks, of which 512 had something to do. A single strip is slower than four where all contexts are of 64K to 128K
// tokens.

#include "gather_block_tables.cuh"

using namespace gather_block_tables;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) gather_block_tables_kernel_vec4(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    gather<4>(blockIdx.x, blockIdx.y * THREADS + threadIdx.x, gridDim.y * THREADS, blockIdx.z, x, out, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) gather_block_tables_kernel_vec1(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    gather<1>(blockIdx.x, blockIdx.y * THREADS + threadIdx.x, gridDim.y * THREADS, blockIdx.z, x, out, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) gather_block_tables_kernel_vec4_by_token(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    gather<4, true>(blockIdx.x, blockIdx.y * THREADS + threadIdx.x, gridDim.y * THREADS, blockIdx.z, x, out, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) gather_block_tables_kernel_vec1_by_token(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    gather<1, true>(blockIdx.x, blockIdx.y * THREADS + threadIdx.x, gridDim.y * THREADS, blockIdx.z, x, out, n);
}
