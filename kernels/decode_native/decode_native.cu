// decode_native in one launch: context_lens[b, j] = max(seq_lens[b] - L + 1 + j, 0) / compress_ratio, contiguous (B, L).
// One thread per entry. front != 0: rows are aligned at their front, and columns past a row are 0.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192 (record full). Predicted: 1.07, the floor:
//
//   operators into a fresh tensor, then the copy             5 launches         5.99
//   operators in place, on a view of the flat buffer         2 launches         2.67
//   a thread per entry, which is the whole batch at once     1 launch           1.18, Triton 1.16
//
// One load and one store in sequence, as the floor. No other shape was measured.

#include "decode_native.cuh"

extern "C" __global__ void context_lens(
    const int* __restrict__ seq_lens, const int* __restrict__ decode_lens, int* __restrict__ out,
    int batch_size, int width, int compress_ratio, int front) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch_size * width) return;
    const int b = i / width, j = i % width;
    const int row = front ? decode_lens[b] : width;
    out[i] = decode_native::context_len(seq_lens[b], row, j, compress_ratio);
}
