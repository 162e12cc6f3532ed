// decode_native in one launch: context_lens[b, j] = max(seq_lens[b] - L + 1 + j, 0) / compress_ratio, contiguous (B,
// L). is_front: rows are aligned at their front, and columns past a row are 0.
//
// A thread per entry, so the whole batch is in flight at once: one load and one store in sequence, as in the copy
// bound. No other shape was tried.
#include "decode_native.cuh"
#include "load.cuh"

using namespace decode_native;  // Sizes, Inputs, Outputs: declared by cuda.py

template <class Local>
__device__ __forceinline__ void entry(const Sizes& n, const Inputs& x, const Outputs& out, const Local& local) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n.batch_size * n.width) return;
    const int b = i / n.width, j = i % n.width;
    const int seq_len = load(x.seq_lens + b), row = n.is_front ? load(x.decode_lens + b) : n.width;
    out.buffer[i] = context_len(seq_len, row, j, n.compress_ratio, local);
}

extern "C" __global__ void decode_native_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    entry(n, x, out, dcp_lengths::Whole());
}
// On one of several context-parallel ranks.
extern "C" __global__ void decode_native_ranks_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    const __grid_constant__ dcp_lengths::Local local) {
    entry(n, x, out, local);
}
