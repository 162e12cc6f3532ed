// The body of post_update, for a warp per row; post_update.cu has the launch, step_epilogue another one.
//
// State may be one array as input and output. Penalty counts need no atomics: the lane of a token's first occurrence in
// the row stores the count of all of them. new_drafts, draft_tokens and output_bin_counts may be null.
// prompt_lens and all_token_ids may be in mapped pinned memory.

#pragma once

#include "load.cuh"

namespace post_update {

// What a row has become: its slot, tokens produced, drafts rejected, and tokens computed; all 0 behind slot -1.
struct Row {
    long long s;
    int ns, nr, computed;
};

// Everything but the accepted count, max(ns, 1), which a caller may go on to change. s, query, length: slot, query
// tokens and length of the row. DRAFTS: whether x, out and n have drafts.
template <bool DRAFTS, class In, class Out, class N>
__device__ __forceinline__ Row
update(int b, int lane, long long s, int query, int length, const In& x, const Out& out, const N& n) {
    const int logits = load(x.cu_num_logits + b + 1) - load(x.cu_num_logits + b);
    const int produced = load(x.num_sampled + b);
    const long long slot = max(s, 0ll), *row = x.sampled_tokens + (long long)b * n.tokens_stride;
    const long long early = load(row + max(min(lane, produced - 1), 0));
    long long drafted = 0;
    if constexpr (DRAFTS) {
        if (x.new_drafts && lane < n.k) drafted = load(x.new_drafts + (long long)b * n.k + lane);
    }
    const int prompt = load(x.prompt_lens + slot), total = load(x.total_len + slot);
    const int computed = load(x.num_computed_tokens + slot);
    const bool samples = s >= 0 && length >= prompt;
    const int ns = samples ? produced : 0, nr = samples ? logits - produced : 0;
    __syncwarp();  // every lane has read before lane 0 writes: an array may be input and output
    if (lane == 0) {
        out.num_sampled[b] = ns;
        out.num_rejected[b] = nr;
        if (s >= 0) {
            out.num_computed_tokens[s] = computed + query - nr;
            out.total_len[s] = total + ns;
        }
    }
#pragma unroll 1
    for (int i = lane; i < ns; i += 32) {
        const long long token = i < 32 ? early : row[i];
        if (i == ns - 1) out.last_sampled_tokens[s] = token;
        out.all_token_ids[s * n.history_len + total + i] = (int)token;
        if (x.output_bin_counts) {
            int occurs = 0;
            bool first = true;
#pragma unroll 1
            for (int j = 0; j < ns; ++j) {
                const bool same = row[j] == token;
                occurs += same;
                first = first && !(same && j < i);
            }
            const long long place = s * n.vocab_size + token;
            if (first) out.output_bin_counts[place] = x.output_bin_counts[place] + occurs;
        }
    }
    if constexpr (DRAFTS) {
        if (x.new_drafts && s >= 0) {
#pragma unroll 1
            for (int i = lane; i < n.k; i += 32)
                out.draft_tokens[s * n.k + i] = i < 32 ? drafted : x.new_drafts[(long long)b * n.k + i];
        }
    }
    return {s, ns, nr, s >= 0 ? computed + query - nr : 0};
}

}  // namespace post_update
