// The body of step_inputs, for a warp per row; step_inputs.cu has the launch, step_prologue another one.
//
// thread: index in all threads of the part. strip, strips: long rows are shared by as many warps, 32 tokens in turn.
// prompt_lens and all_token_ids may be in mapped pinned memory.
//
// Loads are issued before it is known whether they are needed, where the address is legal anyway: the draft or last
// token of a lane comes with the counts of its row, not a memory latency after them.

#pragma once

#include "load.cuh"

namespace step_inputs {

template <class In, class Out, class N>
__device__ __forceinline__ void prepare(int thread, int strip, int strips, const In& x, const Out& out, const N& n) {
    if (strip == 0 && thread < n.max_num_seqs - n.num_reqs) out.seq_lens[n.num_reqs + thread] = 0;

    const int b = thread >> 5, lane = thread & 31;
    if (b >= n.num_reqs) return;
    const long long s = load(x.idx_mapping + b);
    const int start = load(x.query_start_loc + b), query = load(x.query_start_loc + b + 1) - start;
    const int first_logit = load(x.cu_num_logits + b), logits = load(x.cu_num_logits + b + 1) - first_logit;
    if (strip > 0 && strip * 32 >= query) return;  // before prompt_lens, which may be read over the bus
    const int ahead_of_lane = strip * 32 + lane - (query - logits);
    const bool drafted_lane = ahead_of_lane >= n.new_tokens && ahead_of_lane < logits;
    const long long proposed = load(
        drafted_lane ? x.draft_tokens + s * n.k + ahead_of_lane - n.new_tokens : x.last_sampled_tokens + s);
    const int computed = load(x.num_computed_tokens + s), prompt = load(x.prompt_lens + s), length = computed + query;
    const bool in_prompt = computed < prompt, past = length > prompt;
    const bool anchored = past && n.new_tokens == 1 && length - logits >= prompt;
    const int* history = x.all_token_ids + s * n.history_len;
    if (strip == 0 && in_prompt) {
#pragma unroll 1
        for (int ahead = lane; ahead < n.look_ahead; ahead += 32)
            out.next_prefill_tokens[(long long)ahead * n.max_num_seqs + s] =
                length + ahead < prompt ? __ldg(history + length + ahead) : 0;
    }
#pragma unroll 1
    for (int j = strip * 32 + lane; j < query; j += strips * 32) {
        const int i = j - (query - logits), t = start + j, position = computed + j;
        const bool is_draft = past && i >= n.new_tokens, is_last = anchored && i == 0;
        int token = 0;
        if (is_draft || is_last) {
            // In the first turn the token is there.
            const bool there = j < strips * 32;
            token = (int)(
                there      ? proposed
                : is_draft ? x.draft_tokens[s * n.k + i - n.new_tokens]
                           : x.last_sampled_tokens[s]);
        } else if (in_prompt) {
            token = __ldg(history + position);
        }
        if (is_draft || is_last || in_prompt) out.input_ids[t] = token;
        out.positions[t] = position;
        if (i < 0) continue;
        const int r = first_logit + i;
        out.logits_indices[r] = t;
        out.expanded_idx_mapping[r] = s;
        out.expanded_local_pos[r] = i;
        out.logit_positions[r] = position;
        out.draft_sampled[r] = i > 0 && position - i < prompt ? -1 : token;
    }
    if (strip == 0 && lane == 0) out.seq_lens[b] = length;
}

}  // namespace step_inputs
