// mamba_align_step, one launch per phase; the states themselves are not copied here.
//
// Before the forward pass LANES threads per row; all compute its column, the first writes the counts, and all write
// state slots of all groups, read from the tables by request slot. After sampling a thread per row.
//
// Versions on an H200, slowest first:
//
//   a kernel per launch of vLLM 0.33: six before the forward pass, two after sampling
//   all from the state by slot, in one launch
//   loads by slot together, table entries before stores; in Triton also a warp per program instead of two
//
// Before the forward pass three loads in sequence, slot, count, table entries; after sampling two, without the table.

#include "mamba_align_step.cuh"

using namespace mamba_align_step;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) mamba_align_step_before_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    before_forward(blockIdx.x * THREADS + threadIdx.x, x, out, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) mamba_align_step_after_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    const int b = blockIdx.x * THREADS + threadIdx.x;
    if (b >= n.num_reqs_padded) return;
    const long long s = load(x.idx_mapping + b), slot = max(s, 0ll);
    const int computed = load(x.num_computed_tokens + slot), column = load(x.state_columns_before + slot);
    const int count = load(x.num_accepted_tokens_before + slot);
    if (s < 0) {
        store_move(out.moves, b, false, 0, 0, 0);
        return;
    }
    out.num_accepted_tokens[s] = freeze(b, computed, column, count, out.moves, n.block_size);
}
