// post_update in one launch, a warp per row; post_update.cuh explains it. Grid: ceil(num_reqs_padded / 4) blocks of
// THREADS.
//
// Versions on an H200, slowest first:
//
//   as vLLM 0.33: counts, tokens and drafts apart, in three launches
//   a warp per row, no atomics
//   tokens and drafts loaded with the counts
//
// Two loads in sequence, slot and counts, then the stores that depend on both. The compiler had moved loads behind the
// branch on the slot: four in sequence.

#include "post_update.cuh"

using namespace post_update;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) post_update_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    const int b = (blockIdx.x * THREADS + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    if (b >= n.num_reqs_padded) return;
    const long long s = load(x.idx_mapping + b);
    const int query = load(x.query_start_loc + b + 1) - load(x.query_start_loc + b), length = load(x.seq_lens + b);
    const Row row = update<true>(b, lane, s, query, length, x, out, n);
    if (lane == 0 && row.s >= 0) out.num_accepted_tokens[row.s] = max(row.ns, 1);
}
