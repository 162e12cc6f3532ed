// staged_writes in one launch for all groups: the threads of a write load its place at once, then take its ids in turn.
// Grid: x = blocks of writes, y = strips that share long ones.
#include "load.cuh"

using namespace staged_writes;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) staged_writes_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    const int i = blockIdx.x * THREADS + threadIdx.x, w = i >> n.log2_lanes, lanes = 1 << n.log2_lanes;
    if (w >= n.num_writes) return;
    const int end = load(x.cu_lens + w), first = w > 0 ? load(x.cu_lens + w - 1) : 0;
    const int group = load(x.group_ids + w), column = load(x.write_starts + w);
    const long long slot = load(x.indices + w);
    int* const row = out.tables + load(x.starts + group) + slot * load(x.widths + group) + column;
#pragma unroll 1
    for (int j = blockIdx.y * lanes + (i & (lanes - 1)); j < end - first; j += gridDim.y * lanes)
        row[j] = load(x.contents + first + j);
}
