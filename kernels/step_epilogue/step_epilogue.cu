// All that a sampled step leaves behind, in one launch: a warp per row does every part of it, and the threads of the grid
// clear the tails. triton.py says why blocks do not specialise. Further warps of a long row (blockIdx.y > 0) only shift its
// tokens; what they read is by row or never written.
//
// bins_before, bins, columns_before and moves may be null. prompt_lens and all_ids may be in mapped pinned memory.
// Grid: x = max(ceil(rows / 4), ceil((capacity + 1 - real) / THREADS)) blocks of THREADS, y = strips of a row.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192 (record whole_step; second column with states).
// Predicted: 2.0, post_update and draft_inputs one after another less a launch that only loads and stores; the floor is 1.22:
//
//   a kernel per launch of vLLM 0.33                          4, 6 launches      6.20   8.77
//   the parts' fused kernels                                 2, 3 launches      3.23   4.59
//   a warp per row does all of them: CUDA                    1 launch           2.66   2.82
//                                    Triton                  1 launch           2.24   2.47
//   target tokens with the counts, tails last: CUDA          1 launch           1.96   2.10
//                                              Triton        1 launch           1.82   2.12
//
// Blocks that specialise were not tried: state may be one array as input and output (triton.py).

#include "draft_inputs/draft_inputs.cuh"
#include "mamba_align_step/mamba_align_step.cuh"
#include "post_update/post_update.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) epilogue(
    const long long* __restrict__ idx, const int* __restrict__ cu_num_logits, const int* __restrict__ query_start_loc,
    const int* __restrict__ seq_lens, const int* sampled_before, const long long* __restrict__ tokens,
    const int* computed_before, const int* total_before, const int* bins_before, const int* __restrict__ prompt_lens,
    const int* __restrict__ next_prefill, const int* __restrict__ target_ids, const long long* __restrict__ target_pos,
    const int* __restrict__ columns_before, int* num_sampled, int* num_rejected, int* num_computed, int* total,
    long long* __restrict__ last, int* __restrict__ accepted, int* bins, int* __restrict__ all_ids, int* __restrict__ ids,
    long long* __restrict__ pos, int* __restrict__ lens, int* __restrict__ starts, long long* __restrict__ last_index,
    long long* __restrict__ step, int* __restrict__ moves, int rows, int real, int capacity, int tokens_stride,
    int history_len, int vocab_size, int mamba_block_size) {
    const int thread = blockIdx.x * THREADS + threadIdx.x, b = thread >> 5, lane = thread & 31;
    const int last_end = load(query_start_loc + real);
    if (b < rows) {
        const int start = load(query_start_loc + b), query = load(query_start_loc + b + 1) - start;
        const long long s = load(idx + b), slot = max(s, 0ll);
        if (blockIdx.y > 0) {
            if (b >= real || (int)blockIdx.y * 32 >= query) return;
            const draft_inputs::Shifted first =
                draft_inputs::load_shifted(start, blockIdx.y * 32 + lane, query, target_ids, target_pos);
            // prompt_lens may be read over the bus.
            int rejected = cu_num_logits[b + 1] - cu_num_logits[b] - sampled_before[b];
            if (rejected != 0 && seq_lens[b] < prompt_lens[slot]) rejected = 0;
            draft_inputs::shift_row(
                b, lane, blockIdx.y, gridDim.y, start, query - rejected, 0, 0, first, target_ids, target_pos, ids, pos, lens,
                starts, last_index);
            return;
        }
        const draft_inputs::Shifted first =
            draft_inputs::load_shifted(start, lane, b < real ? query : 0, target_ids, target_pos);
        const int prompt_token = load(next_prefill + slot), length = load(seq_lens + b);
        int column = 0;
        if (moves) column = load(columns_before + slot);
        const post_update::Row row = post_update::update(
            b, lane, s, query, length, cu_num_logits, sampled_before, tokens, computed_before, total_before, nullptr,
            bins_before, prompt_lens, num_sampled, num_rejected, num_computed, total, last, nullptr, bins, all_ids,
            tokens_stride, 0, history_len, vocab_size);
        if (lane == 0 && row.s >= 0) {
            const int count = max(row.ns, 1);
            accepted[row.s] =
                moves ? mamba_align_step::freeze(b, row.computed, column, count, moves, mamba_block_size) : count;
        } else if (lane == 0 && moves) {
            mamba_align_step::store_move(moves, b, false, 0, 0, 0);
        }
        if (b < real) {
            int token = prompt_token;
            if (lane == 0 && row.ns > 0) token = (int)tokens[(long long)b * tokens_stride + row.ns - 1];
            draft_inputs::shift_row(
                b, lane, 0, gridDim.y, start, query - row.nr, token, length, first, target_ids, target_pos, ids, pos, lens,
                starts, last_index);
        }
    }
    // After the row, whose chain of loads is longer.
    if (blockIdx.y == 0) draft_inputs::clear_tails(thread, real, capacity, last_end, lens, starts, last_index, step);
}
