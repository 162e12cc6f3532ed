// step_inputs in one launch: a warp per row, its lanes are the row's tokens; logit rows are written by the lanes that
// hold their token and position. The threads of the grid also clear the lengths behind the last row.
//
// prompt_lens and all_token_ids may be in mapped pinned memory.
// Grid: x = max(ceil(num_reqs / 4), ceil((max_num_seqs - num_reqs) / THREADS)) blocks of THREADS, y = strips of a row.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192; two prefill chunks beside decodes; the same with arrays of
// the host (record step). Predicted: 1.22, the copy bound:
//
//   a kernel per launch of vLLM 0.33                         4, 5 launches      6.29   7.76   13.9
//   a warp per row, counts and tokens loaded together        1 launch           1.85   2.27   18.8
//   loads before branches; strips skip shorter rows          1 launch           1.79   1.98   8.64
//                                                            Triton             1.81   2.14   7.61
//
// Two loads in sequence, slot and state, where the copy bound has one. Over the bus each read of prompt_lens shows, so
// a strip reads it only for rows that reach it.

#include "step_inputs.cuh"

constexpr int THREADS = 128;

using namespace step_inputs;

extern "C" __global__ void __launch_bounds__(THREADS) step_inputs_kernel(
    const __grid_constant__ Inputs x, const __grid_constant__ Outputs out, const __grid_constant__ Sizes n) {
    prepare(blockIdx.x * THREADS + threadIdx.x, blockIdx.y, gridDim.y, x, out, n);
}
