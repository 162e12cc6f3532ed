// decode_native in one launch: context_lens[b, j] = max(seq_lens[b] - L + 1 + j, 0) / compress_ratio, contiguous (B,
// L). One thread per entry. is_front: rows are aligned at their front, and columns past a row are 0.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192 (record full). Predicted: 1.07, the copy bound:
//
//   operators into a fresh tensor, then the copy             5 launches         5.99
//   operators in place, on a view of the flat buffer         2 launches         2.67
//   a thread per entry, which is the whole batch at once     1 launch           1.18, Triton 1.16
//
// One load and one store in sequence, as the copy bound. No other shape was measured.

#include "decode_native.cuh"
#include "load.cuh"

using namespace decode_native;

extern "C" __global__ void decode_native_kernel(
    const __grid_constant__ Inputs x, const __grid_constant__ Outputs out, const __grid_constant__ Sizes n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n.batch_size * n.width) return;
    const int b = i / n.width, j = i % n.width;
    const int seq_len = load(x.seq_lens + b), row = n.is_front ? load(x.decode_lens + b) : n.width;
    out.buffer[i] = context_len(seq_len, row, j, n.compress_ratio);
}
