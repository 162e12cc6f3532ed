// The body of post_update, for a warp per row; post_update.cu has the launch, step_epilogue another one.
//
// State may be one array as input and output. Penalty counts need no atomics: the lane of a token's first occurrence in
// the row stores the count of all of them. new_drafts, draft, bins_before and bins may be null. prompt_lens and all_ids may
// be in mapped pinned memory.

#pragma once

namespace post_update {

// What a row has become: its slot, tokens produced, drafts rejected, and tokens computed; all 0 behind slot -1.
struct Row {
    long long s;
    int ns, nr, computed;
};

// Everything but the accepted count, max(ns, 1), which a caller may go on to change.
__device__ __forceinline__ Row update(
    int b, int lane, const long long* __restrict__ idx, const int* __restrict__ cu_num_logits,
    const int* __restrict__ query_start_loc, const int* __restrict__ seq_lens, const int* sampled_before,
    const long long* __restrict__ tokens, const int* computed_before, const int* total_before,
    const long long* __restrict__ new_drafts, const int* bins_before, const int* __restrict__ prompt_lens,
    int* num_sampled, int* num_rejected, int* num_computed, int* total, long long* __restrict__ last,
    long long* __restrict__ draft, int* bins, int* __restrict__ all_ids, int tokens_stride, int k, int history_len,
    int vocab_size) {
    const long long s = idx[b];
    const int logits = cu_num_logits[b + 1] - cu_num_logits[b];
    const int query = query_start_loc[b + 1] - query_start_loc[b];
    const int produced = sampled_before[b], length = seq_lens[b];
    if (s < 0) {
        if (lane == 0) num_sampled[b] = num_rejected[b] = 0;
        return {s, 0, 0, 0};
    }
    // Loaded before it is known whether it counts: one memory latency less.
    const long long* row = tokens + (long long)b * tokens_stride;
    const long long early = lane < produced ? row[lane] : 0;
    const long long drafted = new_drafts && lane < k ? new_drafts[(long long)b * k + lane] : 0;
    const bool samples = length >= prompt_lens[s];
    const int ns = samples ? produced : 0, nr = samples ? logits - produced : 0;
    const int old = total_before[s], computed = computed_before[s];
    __syncwarp();  // every lane has read before lane 0 writes: an array may be input and output
    if (lane == 0) {
        num_sampled[b] = ns;
        num_rejected[b] = nr;
        num_computed[s] = computed + query - nr;
        total[s] = old + ns;
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
    if (new_drafts) {
#pragma unroll 1
        for (int i = lane; i < k; i += 32) draft[s * k + i] = i < 32 ? drafted : new_drafts[(long long)b * k + i];
    }
    return {s, ns, nr, computed + query - nr};
}

}  // namespace post_update
