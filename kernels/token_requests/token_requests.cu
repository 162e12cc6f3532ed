// token_requests in one launch: each request writes its number to its tokens, two loads at once and a store in sequence.
// Blocks past the last request write padding tokens. Grid: x = blocks of rows and of padding tokens, y = strips that
// share long rows.
#include "load.cuh"

using namespace token_requests;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) token_requests_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    if ((int)blockIdx.x < n.row_blocks) {
        const int i = blockIdx.x * THREADS + threadIdx.x, b = i >> n.log2_lanes, lanes = 1 << n.log2_lanes;
        if (b >= n.batch_size) return;
        const int start = load(x.query_start_loc + b), end = load(x.query_start_loc + b + 1);
#pragma unroll 1
        for (int t = start + blockIdx.y * lanes + (i & (lanes - 1)); t < end; t += gridDim.y * lanes) out.requests[t] = b;
        return;
    }
    const int actual = load(x.query_start_loc + n.batch_size), worker = (blockIdx.x - n.row_blocks) * gridDim.y + blockIdx.y;
#pragma unroll 1
    for (int k = worker * THREADS + threadIdx.x; k < x.num_tokens - actual;
         k += (gridDim.x - n.row_blocks) * gridDim.y * THREADS)
        out.requests[actual + k] = n.is_own ? n.batch_size + k : 0;
}
