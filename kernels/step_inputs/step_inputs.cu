// step_inputs in one launch: a warp per row, its lanes are the row's tokens; logit rows are written by the lanes that
// hold their token and position. The threads of the grid also clear the lengths behind the last row.
//
// prompt_lens and all_token_ids may be in mapped pinned memory.
// Grid: x = max(ceil(num_reqs / 4), ceil((max_num_seqs - num_reqs) / THREADS)) blocks of THREADS, y = strips of a row.
//
// Versions on an H200, slowest first:
//
//   a kernel per launch of vLLM 0.33: four, five with prefill chunks
//   a warp per row, counts and tokens loaded together (slower than the first with arrays of the host)
//   loads before branches, strips skip shorter rows
//
// Two loads in sequence, slot and state, where the copy bound has one. Over the bus each read of prompt_lens shows, so
// a strip reads it only for rows that reach it.

#include "step_inputs.cuh"

using namespace step_inputs;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) step_inputs_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    prepare(blockIdx.x * THREADS + threadIdx.x, blockIdx.y, gridDim.y, x, out, n);
}
