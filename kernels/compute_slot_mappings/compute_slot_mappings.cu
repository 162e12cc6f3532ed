// compute_slot_mappings in one launch. A warp per row of the batch and 32 of its tokens. Every thread of the grid also
// clears entries of the tail, from the real number of tokens on, one per pass over the grid.
//
// Grid: x = max(ceil(num_reqs_padded / 4), ceil(max_num_batched_tokens / (4 * THREADS))) blocks, y = groups, z = strips
// of a row. Block: THREADS.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192; two prefill chunks beside decodes (the last two lines:
// record step). Predicted: 1.25, the copy bound:
//
//   as vLLM 0.33: a program per row, one for the tail        1 launch           2.20   2.40
//   warps for rows, the tail shared by all threads           1 launch           2.03   2.35, Triton 2.03   2.52
//   loads before branches, a row's start guessed             1 launch           1.68   1.98
//   the same, tails last, a turn per strip                   Triton             1.72   2.12
//   loads in order: CUDA                                     1 launch           1.59   1.88
//
// Two loads in sequence, position or query start, then the table entry; three where rows differ in length. Four groups:
// 1.76, the engine's kernel 2.56. Tried: a thread per token, which searches its row among query starts in shared
// memory, takes 2.17 at B = 128 and 3.51 at 1024, but 1.62 at B = 1 and 1.94 with prefill chunks.

#include "compute_slot_mappings.cuh"

constexpr int THREADS = 128;

using namespace compute_slot_mappings;

template <bool RANKS>
__device__ __forceinline__ void map(const Inputs& x, const Outputs& out, const Sizes& n) {
    const Written positions{x.positions, n.tokens_per_row, n.max_num_batched_tokens};
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    map_rows<RANKS>(blockIdx.y, thread, gridDim.x * THREADS, blockIdx.z, gridDim.z, positions, x, out, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) compute_slot_mappings_kernel(
    const __grid_constant__ Inputs x, const __grid_constant__ Outputs out, const __grid_constant__ Sizes n) {
    map<false>(x, out, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) compute_slot_mappings_ranks_kernel(
    const __grid_constant__ Inputs x, const __grid_constant__ Outputs out, const __grid_constant__ Sizes n) {
    map<true>(x, out, n);
}
