// The body of post_update, for a warp per row; post_update.cu has the launch, step_epilogue another one.
//
// State may be one array as input and output. Penalty counts need no atomics: the lane of a token's first occurrence in
// the row stores the count of all of them. new_drafts, draft, bins_before and bins may be null. prompt_lens and all_ids may
// be in mapped pinned memory.

#pragma once

#include "load.cuh"

namespace post_update {

// What a row has become: its slot, tokens produced, drafts rejected, and tokens computed; all 0 behind slot -1.
struct Row {
    long long s;
    int ns, nr, computed;
};

// Everything but the accepted count, max(ns, 1), which a caller may go on to change. s, query, length: slot, query tokens
// and length of the row.
__device__ __forceinline__ Row update(
    int b, int lane, long long s, int query, int length, const int* __restrict__ cu_num_logits, const int* sampled_before,
    const long long* __restrict__ tokens, const int* computed_before, const int* total_before,
    const long long* __restrict__ new_drafts, const int* bins_before, const int* __restrict__ prompt_lens,
    int* num_sampled, int* num_rejected, int* num_computed, int* total, long long* __restrict__ last,
    long long* __restrict__ draft, int* bins, int* __restrict__ all_ids, int tokens_stride, int k, int history_len,
    int vocab_size) {
    const int logits = load(cu_num_logits + b + 1) - load(cu_num_logits + b);
    const int produced = load(sampled_before + b);
    const long long slot = max(s, 0ll), *row = tokens + (long long)b * tokens_stride;
    const long long early = load(row + max(min(lane, produced - 1), 0));
    long long drafted = 0;
    if (new_drafts && lane < k) drafted = load(new_drafts + (long long)b * k + lane);
    const int prompt = load(prompt_lens + slot), old = load(total_before + slot), computed = load(computed_before + slot);
    const bool samples = s >= 0 && length >= prompt;
    const int ns = samples ? produced : 0, nr = samples ? logits - produced : 0;
    __syncwarp();  // every lane has read before lane 0 writes: an array may be input and output
    if (lane == 0) {
        num_sampled[b] = ns;
        num_rejected[b] = nr;
        if (s >= 0) {
            num_computed[s] = computed + query - nr;
            total[s] = old + ns;
        }
    }
#pragma unroll 1
    for (int i = lane; i < ns; i += 32) {
        const long long token = i < 32 ? early : row[i];
        if (i == ns - 1) last[s] = token;
        all_ids[s * history_len + old + i] = (int)token;
        if (bins) {
            int occurs = 0;
            bool first = true;
#pragma unroll 1
            for (int j = 0; j < ns; ++j) {
                const bool same = row[j] == token;
                occurs += same;
                first = first && !(same && j < i);
            }
            const long long place = s * vocab_size + token;
            if (first) bins[place] = bins_before[place] + occurs;
        }
    }
    if (new_drafts && s >= 0) {
#pragma unroll 1
        for (int i = lane; i < k; i += 32) draft[s * k + i] = i < 32 ? drafted : new_drafts[(long long)b * k + i];
    }
    return {s, ns, nr, s >= 0 ? computed + query - nr : 0};
}

}  // namespace post_update
