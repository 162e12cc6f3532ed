// mamba_align_step, one launch per phase; the states themselves are not copied here.
//
// Before the forward pass LANES threads per row; all compute its column, the first writes the counts, and all write
// state slots of all groups, read from the tables by request slot. After sampling a thread per row.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192, before the forward pass and after sampling (record step).
// Predicted: 1.15 and 1.07, the copy bound:
//
//   a kernel per launch of vLLM 0.33                         6 and 2 launches   7.41   2.51
//   all from the state by slot                               1 launch           2.02   1.31
//                                                            Triton             1.98   1.34
//   loads by slot together, table entries before stores      1 launch           1.91   1.29
//   a warp per program instead of two                        Triton             1.77   1.29
//
// Before the forward pass three loads in sequence, slot, count, table entries; after sampling two, without the table.

#include "mamba_align_step.cuh"

constexpr int THREADS = 128;

using namespace mamba_align_step;

extern "C" __global__ void __launch_bounds__(THREADS) mamba_align_step_before_kernel(
    const __grid_constant__ Inputs x, const __grid_constant__ Outputs out, const __grid_constant__ Sizes n) {
    before_forward(blockIdx.x * THREADS + threadIdx.x, x, out, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) mamba_align_step_after_kernel(
    const __grid_constant__ Inputs x, const __grid_constant__ Outputs out, const __grid_constant__ Sizes n) {
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
