// seq_lens_update in one launch: counts corrected by what the previous step accepted, lengths, their tail, positions.
//
// A warp per request: its lanes read the same words and write one position each. host is [2 * num_reqs + num_previous]:
// prev_pos, num_computed_tokens_cpu, prev_drafts, in device memory or in mapped pinned memory. Requests change rows
// between steps; prev_num_computed_tokens and num_computed_tokens are two buffers, so blocks need no order. Rows
// [num_reqs, max_num_seqs) of seq_lens are zeroed by the first threads of the grid, one each, before any load.
//
// Grid: max(ceil(num_reqs / 8), ceil((max_num_seqs - num_reqs) / THREADS)) blocks of THREADS.
//
// Versions on an H200, slowest first:
//
//   as vLLM 0.22: three small copies and a chain of operators
//   one packed copy, then this kernel
//   this kernel over mapped memory
//   row b loaded together with the former row of b, rows kept (Triton only)
//
// What is left is a read over the bus, which no copy bound of the suite has. The last version lost in CUDA C++, with
// volatile loads that kept the compiler from waiting for one before it issued the next. Probably lanes then read the
// bus each for itself; that was not checked.

using namespace seq_lens_update;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

// host: x.to_device, in pinned memory or copied. BY_SLOT: its first rows are slots, by which counts are, and drafts are
// by row; x.prev_num_computed_tokens and out.num_computed_tokens may then be one array.
template <bool BY_SLOT>
__device__ __forceinline__ void update_rows(const Inputs& x, const Outputs& out, const Sizes& n, const int* host) {
    const int thread = blockIdx.x * THREADS + threadIdx.x, rows = n.num_reqs;
    const int b = thread >> 5, lane = thread & 31;
    if (thread < n.max_num_seqs - rows) out.seq_lens[rows + thread] = 0;
    if (b >= rows) return;

    const int p = __ldg(host + b), expected = __ldg(host + rows + b);
    const int start = __ldg(x.query_start_loc + b), scheduled = __ldg(x.query_start_loc + b + 1) - start;
    const int own = BY_SLOT ? p : b;
    int computed = expected;
    if (p >= 0) {
        const int drafts = __ldg(host + 2 * rows + (BY_SLOT ? b : p)), produced = __ldg(x.valid + p);
        const int before = BY_SLOT ? x.prev_num_computed_tokens[p] : __ldg(x.prev_num_computed_tokens + p);
        if (drafts > 0) {
            computed = before + produced;
            if (lane == 0) out.num_accepted[own] = produced;
        }
    }
    if (BY_SLOT) __syncwarp();  // all lanes have read the count of before
    if (lane == 0) {
        out.num_computed_tokens[own] = computed;
        out.seq_lens[b] = computed + scheduled;
    }
#pragma unroll 1
    for (int j = lane; j < scheduled; j += 32) out.positions[start + j] = computed + j;
}

extern "C" __global__ void __launch_bounds__(THREADS) seq_lens_update_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    const int* host) {
    update_rows<false>(x, out, n, host);
}
extern "C" __global__ void __launch_bounds__(THREADS) seq_lens_update_slots_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    const int* host) {
    update_rows<true>(x, out, n, host);
}
