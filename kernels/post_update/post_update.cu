// post_update in one launch, a warp per row; post_update.cuh explains it. Grid: ceil(rows / 4) blocks of THREADS.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192 (record step).
// Predicted: 1.14, the floor:
//
//   as vLLM 0.33: counts, tokens and drafts apart            3 launches         4.17
//   a warp per row, no atomics                               1 launch           1.80, Triton 1.66
//   tokens and drafts loaded with the counts                 1 launch           1.58, Triton 1.39
//
// Two loads in sequence, slot and counts, then the stores that depend on both. The compiler had moved loads behind the branch
// on the slot: four in sequence.

#include "post_update.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) update(
    const long long* __restrict__ idx, const int* __restrict__ cu_num_logits, const int* __restrict__ query_start_loc,
    const int* __restrict__ seq_lens, const int* sampled_before, const long long* __restrict__ tokens,
    const int* computed_before, const int* total_before, const long long* __restrict__ new_drafts, const int* bins_before,
    const int* __restrict__ prompt_lens, int* num_sampled, int* num_rejected, int* num_computed, int* total,
    long long* __restrict__ last, int* __restrict__ accepted, long long* __restrict__ draft, int* bins,
    int* __restrict__ all_ids, int rows, int tokens_stride, int k, int history_len, int vocab_size) {
    const int b = (blockIdx.x * THREADS + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    if (b >= rows) return;
    const long long s = load(idx + b);
    const int query = load(query_start_loc + b + 1) - load(query_start_loc + b), length = load(seq_lens + b);
    const post_update::Row row = post_update::update(
        b, lane, s, query, length, cu_num_logits, sampled_before, tokens, computed_before, total_before, new_drafts,
        bins_before, prompt_lens, num_sampled, num_rejected, num_computed, total, last, draft, bins, all_ids, tokens_stride, k,
        history_len, vocab_size);
    if (lane == 0 && row.s >= 0) accepted[row.s] = max(row.ns, 1);
}
