// The body of step_inputs, for a warp per row; step_inputs.cu has the launch, step_prologue another one.
//
// thread: index in all threads of the part. strip, strips: long rows are shared by as many warps, 32 tokens in turn.
// prompt_lens and all_ids may be in mapped pinned memory.
//
// Loads are issued before it is known whether they are needed, where the address is legal anyway: the draft or last token
// of a lane comes with the counts of its row, not a memory latency after them.

#pragma once

#include "load.cuh"

namespace step_inputs {

__device__ __forceinline__ void prepare(
    int thread, int strip, int strips, const long long* __restrict__ idx, const int* __restrict__ query_start_loc, const int* __restrict__ cu_num_logits,
    const int* __restrict__ num_computed, const long long* __restrict__ last, const long long* __restrict__ draft,
    const int* __restrict__ prompt_lens, const int* __restrict__ all_ids, int* __restrict__ seq_lens,
    long long* __restrict__ positions, int* __restrict__ input_ids, int* __restrict__ next_prefill,
    long long* __restrict__ logits_indices, long long* __restrict__ expanded_idx, int* __restrict__ expanded_pos,
    int* __restrict__ drafted, long long* __restrict__ logit_positions, int rows, int capacity, int k, int history_len,
    int look_ahead, int new_tokens) {
    if (strip == 0 && thread < capacity - rows) seq_lens[rows + thread] = 0;

    const int b = thread >> 5, lane = thread & 31;
    if (b >= rows) return;
    const long long s = load(idx + b);
    const int start = load(query_start_loc + b), query = load(query_start_loc + b + 1) - start;
    const int first_logit = load(cu_num_logits + b), n = load(cu_num_logits + b + 1) - first_logit;
    if (strip > 0 && strip * 32 >= query) return;  // before prompt_lens, which may be read over the bus
    const int ahead_of_lane = strip * 32 + lane - (query - n);
    const bool drafted_lane = ahead_of_lane >= new_tokens && ahead_of_lane < n;
    const long long proposed = load(drafted_lane ? draft + s * k + ahead_of_lane - new_tokens : last + s);
    const int computed = load(num_computed + s), prompt = load(prompt_lens + s), length = computed + query;
    const bool in_prompt = computed < prompt, past = length > prompt;
    const bool anchored = past && new_tokens == 1 && length - n >= prompt;
    const int* history = all_ids + s * history_len;
    if (strip == 0 && in_prompt) {
#pragma unroll 1
        for (int ahead = lane; ahead < look_ahead; ahead += 32)
            next_prefill[(long long)ahead * capacity + s] = length + ahead < prompt ? history[length + ahead] : 0;
    }
#pragma unroll 1
    for (int j = strip * 32 + lane; j < query; j += strips * 32) {
        const int i = j - (query - n), t = start + j, position = computed + j;
        const bool is_draft = past && i >= new_tokens, is_last = anchored && i == 0;
        int token = 0;
        if (is_draft || is_last) {
            // In the first turn the token is there.
            const bool there = j < strips * 32;
            token = (int)(there ? proposed : is_draft ? draft[s * k + i - new_tokens] : last[s]);
        } else if (in_prompt) {
            token = history[position];
        }
        if (is_draft || is_last || in_prompt) input_ids[t] = token;
        positions[t] = position;
        if (i < 0) continue;
        const int r = first_logit + i;
        logits_indices[r] = t;
        expanded_idx[r] = s;
        expanded_pos[r] = i;
        logit_positions[r] = position;
        drafted[r] = i > 0 && position - i < prompt ? -1 : token;
    }
    if (strip == 0 && lane == 0) seq_lens[b] = length;
}

}  // namespace step_inputs
