// step_inputs in one launch: a warp per row, its lanes are the row's tokens; logit rows are written by the lanes that
// hold their token and position. The threads of the grid also clear the lengths behind the last row.
//
// prompt_lens and all_ids may be in mapped pinned memory.
// Grid: x = max(ceil(rows / 4), ceil((capacity - rows) / THREADS)) blocks of THREADS, y = strips of a row.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192; two prefill chunks beside decodes; the same with arrays of the
// host (record step). Predicted: 1.22, the floor:
//
//   a kernel per launch of vLLM 0.33                         4, 5 launches      6.29   7.76   13.9
//   a warp per row, counts and tokens loaded together        1 launch           1.85   2.27   18.8
//   loads before branches; strips skip shorter rows          1 launch           1.79   1.98   8.64
//                                                            Triton             1.81   2.14   7.61
//
// Two loads in sequence, slot and state, where the floor has one. Over the bus each read of prompt_lens shows, so a strip
// reads it only for rows that reach it.

#include "step_inputs.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) prepare(
    const long long* __restrict__ idx, const int* __restrict__ query_start_loc, const int* __restrict__ cu_num_logits,
    const int* __restrict__ num_computed, const long long* __restrict__ last, const long long* __restrict__ draft,
    const int* __restrict__ prompt_lens, const int* __restrict__ all_ids, int* __restrict__ seq_lens,
    long long* __restrict__ positions, int* __restrict__ input_ids, int* __restrict__ next_prefill,
    long long* __restrict__ logits_indices, long long* __restrict__ expanded_idx, int* __restrict__ expanded_pos,
    int* __restrict__ drafted, long long* __restrict__ logit_positions, int rows, int capacity, int k, int history_len,
    int look_ahead, int new_tokens) {
    step_inputs::prepare(
        blockIdx.x * THREADS + threadIdx.x, blockIdx.y, gridDim.y,
        idx, query_start_loc, cu_num_logits, num_computed, last, draft, prompt_lens, all_ids, seq_lens, positions,
        input_ids, next_prefill, logits_indices, expanded_idx, expanded_pos, drafted, logit_positions, rows,
        capacity, k, history_len, look_ahead, new_tokens);
}
