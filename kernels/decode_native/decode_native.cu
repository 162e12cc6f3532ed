// decode_native in one launch: context_lens[b, j] = max(seq_lens[b] - L + 1 + j, 0) / compress_ratio, contiguous (B, L).
// One thread per entry. front != 0: rows are aligned at their front, and columns past a row are 0.

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
