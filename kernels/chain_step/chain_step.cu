// chain_step in one launch, before the drafter runs. triton.py says why one is enough.
//
// Grid: x = rows, y = strips of a row's packed slots. Block: THREADS. Strip 0 also has what is small: slots, positions,
// tree, lengths. width: tokens of a chain.
//
// Two loads in sequence, length and row, then entries of the table; the lengths of the rows in front are added while
// the first of them are on their way.
#include "load.cuh"

using namespace chain_step;  // Sizes, Inputs, Outputs, THREADS, ITEMS: declared by cuda.py

// Sum over the block, in every thread.
__device__ __forceinline__ int sum_of_block(int value) {
    __shared__ int of_warp[THREADS / 32];
#pragma unroll
    for (int apart = 16; apart > 0; apart >>= 1) value += __shfl_xor_sync(0xffffffffu, value, apart);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    int total = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) total += of_warp[warp];
    return total;
}

__device__ __forceinline__ void chain_of_row(
    int b, int length, const int* row, const Sizes& n, const Outputs& out, int width) {
    const long long cells = (long long)n.num_reqs * width;
    for (int j = threadIdx.x; j < width; j += THREADS) {
        const long long at = (long long)b * width + j, slot = __ldg(row + length + j);
        out.positions[at] = length + j;
        out.tree[at] = at;
        out.tree[cells + at] = j + 1 < width ? j + 1 : -1;
        out.tree[2 * cells + at] = -1;
        out.slots[at] = slot;
        if (j + 1 < width) out.draft_slots[at - b] = slot;
    }
    bool* mask = out.tree_mask + (long long)b * width * width;
    for (int cell = threadIdx.x; cell < width * width; cell += THREADS) mask[cell] = cell % width <= cell / width;
    if (threadIdx.x == 0) {
        out.draft_positions[b] = length;
        out.prefix_lens[b] = length;
        out.extend_lens[b] = width;
        out.start_locs[b] = b * width;
        out.post_lens[b] = length + width;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) chain_step_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out, int width) {
    const int b = blockIdx.x, most = n.passes;
    const long long owner = load(x.req_pool_indices + b);
    const int length = (int)load(x.seq_lens + b);
    const int* row = x.req_to_token + owner * n.columns;
    // Pass i + 1 has `length + i + 1` entries; the last pass has the most.
    const int end = length + most, step = gridDim.y * THREADS * ITEMS;
    int first = blockIdx.y * THREADS * ITEMS + threadIdx.x;
    int entries[ITEMS];
    if (most > 0) {
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) entries[k] = first + k * THREADS < end ? __ldg(row + first + k * THREADS) : 0;
    }
    if (blockIdx.y == 0) chain_of_row(b, length, row, n, out, width);
    if (most == 0 || (int)(blockIdx.y * THREADS * ITEMS) >= end) return;  // the same for the whole block

    int before = 0;
    for (int other = threadIdx.x; other < b; other += THREADS) before += (int)__ldg(x.seq_lens + other);
    const int start = sum_of_block(before);

    for (bool loaded = true; first < end; first += step, loaded = false) {
        if (!loaded) {
#pragma unroll
            for (int k = 0; k < ITEMS; ++k)
                entries[k] = first + k * THREADS < end ? __ldg(row + first + k * THREADS) : 0;
        }
#pragma unroll 1
        for (int i = 0; i < most; ++i) {
            int* target = out.kv_indices + (long long)i * n.capacity + (start + b * (i + 1));
#pragma unroll
            for (int k = 0; k < ITEMS; ++k)
                if (first + k * THREADS < length + i + 1) target[first + k * THREADS] = entries[k];
        }
    }
    if (blockIdx.y > 0) return;
    for (int i = threadIdx.x; i < most; i += THREADS) {
        int* starts = out.kv_indptr + (long long)i * (n.max_num_seqs + 1);
        starts[b + 1] = start + length + (b + 1) * (i + 1);
        if (b == 0) starts[0] = 0;
    }
}
