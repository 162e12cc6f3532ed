// compute_slot_mappings in one launch. A warp per row of the batch and 32 of its tokens. Every thread of the grid also
// clears entries of the tail, from the real number of tokens on, one per pass over the grid.
//
// Grid: x = max(ceil(num_reqs_padded / 4), ceil(max_num_batched_tokens / (4 * THREADS))) blocks, y = groups, z = strips
// of a row. Block: THREADS.
//
// Versions on an H200, slowest first, also beside prefill chunks and with four groups:
//
//   as vLLM 0.33: a program per row, one for the tail
//   warps for rows, the tail shared by all threads
//   loads before branches, a row's start guessed; in Triton tails last, a turn per strip
//   loads in order (CUDA)
//
// Two loads in sequence, position or query start, then the table entry; three where rows differ in length. Tried: a
// thread per token, which searches its row among query starts in shared memory, is faster at B = 1 and slower from
// B = 128 on.

#include "compute_slot_mappings.cuh"

using namespace compute_slot_mappings;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

template <bool RANKS>
__device__ __forceinline__ void map(const Inputs& x, const Outputs& out, const Sizes& n) {
    const Written positions{x.positions, n.tokens_per_row, n.max_num_batched_tokens};
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    map_rows<RANKS>(blockIdx.y, thread, gridDim.x * THREADS, blockIdx.z, gridDim.z, positions, x, out, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) compute_slot_mappings_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    map<false>(x, out, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) compute_slot_mappings_ranks_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    map<true>(x, out, n);
}
