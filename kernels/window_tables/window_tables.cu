// window_tables in one launch: a block per token of a request, a thread per column; further blocks take padding tokens
// and tails in turn. Grid: x = max_decode_len blocks for every request and for every row of workers, y = strips that
// share long lists. Positions are never negative: unsigned division is shorter.
#include "load.cuh"

using namespace window_tables;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

namespace {

// -1 where no entry is there.
__device__ __forceinline__ int slot_of(const int* row, unsigned entry, bool there, unsigned block) {
    return there ? load(row + entry / block) * (int)block + (int)(entry % block) : -1;
}

// Everything of token t of request b at position p; of its list the columns of the strip.
__device__ __forceinline__ void write_token(
    int t, int b, int p, const Sizes& n, const Inputs& x, const Outputs& out) {
    const int lane = threadIdx.x, ended = (p + 1) / 128;
    const int* const c128_row = x.c128_table + (long long)b * n.state_columns;
    if (blockIdx.y == 0) {
        const bool has_window = load(x.slot_mappings + t) >= 0;
        const int first = max(p - (n.window - 1), 0), length = has_window ? p + 1 - first : 0;
        const int* const window_row = x.window_table + (long long)b * n.window_columns;
#pragma unroll 1
        for (int i = lane; i < n.window; i += THREADS)
            out.swa_indices[(long long)t * n.window + i] = slot_of(window_row, first + i, i < length, n.window_block);
        if (lane == 0) {
            const bool has_c4 = load(x.slot_mappings + n.capacity + t) >= 0;
            const bool has_c128 = load(x.slot_mappings + 2 * n.capacity + t) >= 0;
            const int* const c4_row = x.c4_table + (long long)b * n.state_columns;
            out.requests[t] = b;
            out.is_valid_token[t] = has_window;
            out.swa_lens[t] = length;
            out.c4_slots[t] = slot_of(c4_row, p / 4, (p + 1) % 4 == 0 && has_c4, 32 * n.states);
            out.c128_slots[t] = slot_of(c128_row, p / 128, (p + 1) % 128 == 0 && has_c128, n.states);
            out.c128_lens[t] = has_c128 ? ended : 0;
        }
    }
#pragma unroll 1
    for (int i = blockIdx.y * THREADS + lane; i < n.list_width; i += gridDim.y * THREADS)
        out.c128_indices[(long long)t * n.list_stride + i] = slot_of(c128_row, i, i < ended, n.states);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) window_tables_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    const int b = blockIdx.x / (unsigned)n.longest, j = blockIdx.x - b * n.longest;
    if (b < n.batch_size) {
        const int start = load(x.query_start_loc + b), end = load(x.query_start_loc + b + 1);
        const int length = load(x.seq_lens + b);
        if (j < end - start) write_token(start + j, b, length - (end - start) + j, n, x, out);
        return;
    }
    // Padding tokens: of request 0, at position 0, without slots.
    const int worker = blockIdx.x - n.batch_size * n.longest, workers = gridDim.x - n.batch_size * n.longest;
#pragma unroll 1
    for (int t = load(x.query_start_loc + n.batch_size) + worker; t < x.num_tokens; t += workers)
        write_token(t, 0, 0, n, x, out);
    if (blockIdx.y != 0) return;
#pragma unroll 1
    for (int t = x.num_tokens + worker * THREADS + threadIdx.x; t < n.capacity; t += workers * THREADS) {
        out.swa_lens[t] = 0;
        out.c4_slots[t] = out.c128_slots[t] = -1;
    }
}
