// block_draft_inputs in one launch. A warp per row of the batch, group and 32 of the row's tokens, those of the context
// and then those of the drafter's query. Every thread of the grid also clears entries of the tails, from the end of the
// batch on.
//
// Grid: x = max(ceil(num_reqs / 4), ceil(longest tail / (2 * THREADS))) blocks, y = groups, z = strips of a row. Block:
// THREADS. The first group has what all groups have once.
//
// Three loads in sequence: the boundaries of a row, the position of its last kept token, a table entry. In a steady
// decode all rows have as many tokens, so their positions are loaded with the boundaries, from where they would be, and
// the last one comes from the lane that has it.

#include "load.cuh"

using namespace block_draft_inputs;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

// Positions are below 2^32. row: of a group's table, `width` columns.
template <bool RANKS>
__device__ __forceinline__ long long slot_of(
    long long position, const int* row, long long width, int block_size, const Sizes& n) {
    const unsigned per_column = (unsigned)block_size * (RANKS ? n.cp_size : 1), t = (unsigned)position;
    const unsigned column = t / per_column;
    unsigned own = t % per_column;
    bool is_here = column < width;
    if constexpr (RANKS) {
        const unsigned ranks = n.cp_size, interleave = n.cp_interleave;
        is_here &= own / interleave % ranks == n.cp_rank;
        own = own / (interleave * ranks) * interleave + own % interleave;
    }
    const long long block = is_here ? __ldg(row + column) : 0;
    return block != 0 ? block * block_size + own : -1;
}

// thread: index in the `threads` of a group.
__device__ __forceinline__ void clear_tails(
    int thread, int threads, bool first_group, long long* slots, const Outputs& out, const Sizes& n) {
    const int drafted = n.num_reqs * n.query, idle = n.max_num_seqs - n.num_reqs;
#pragma unroll 1
    for (int i = drafted + thread; i < n.max_num_batched_tokens; i += threads) {
        slots[i] = -1;
        if (first_group) out.input_ids[i] = 0, out.positions[i] = 0, out.is_padding[i] = true;
    }
    if (!first_group) return;
#pragma unroll 1
    for (int i = thread; i <= idle; i += threads) {
        out.query_start_loc[n.num_reqs + i] = drafted;
        if (i < idle) out.seq_lens[n.num_reqs + i] = 0;
    }
    const long long sampled = (long long)n.num_reqs * n.k;
#pragma unroll 1
    for (long long i = sampled + thread; i < (long long)n.max_num_seqs * n.k; i += threads)
        out.sample_indices[i] = 0, out.sample_pos[i] = 0, out.sample_idx_mapping[i] = -1;
}

template <bool RANKS>
__device__ __forceinline__ void prepare(const Inputs& x, const Outputs& out, const Sizes& n) {
    const int g = blockIdx.y, strip = blockIdx.z, strips = gridDim.z;
    const int thread = blockIdx.x * THREADS + threadIdx.x, b = thread >> 5, lane = thread & 31;
    const bool first_group = g == 0;
    long long* slots = out.slot_mappings + (long long)g * n.max_num_batched_tokens;
    long long* context_slots = out.context_slot_mappings + (long long)g * n.max_num_batched_tokens;
    if (b < n.num_reqs) {
        const int start = load(x.query_start_loc + b), end = load(x.query_start_loc + b + 1);
        const int rejected = load(x.num_rejected + b), guess = b * n.tokens_per_row;
        const long long early = load(x.target_positions + min(guess + lane, n.max_num_batched_tokens - 1));
        const long long s = load(x.idx_mapping + b);
        const int sampled = load(x.num_sampled + b), block_size = load(x.block_sizes + g);
        const long long table_start = load(x.table_starts + g), width = load(x.widths + g);
        int newest = 0, prompt_token = 0, temperature = 0;
        long long seed = 0;
        if (first_group) {
            newest = (int)load(x.last_sampled_tokens + s), prompt_token = load(x.next_prefill_tokens + s);
            if (strip == 0) {
                temperature = load(reinterpret_cast<const int*>(x.temperature) + s);  // its bits
                seed = load(x.seeds + s);
            }
        }
        const int tokens = end - start, kept = tokens - rejected, from = start + kept - 1 - guess;
        long long last = __shfl_sync(0xffffffff, early, from & 31);
        if (from < 0 || from >= 32) last = load(x.target_positions + start + kept - 1);
        const int* row = x.block_tables + table_start + b * width;
#pragma unroll 1
        for (int j = strip * 32 + lane; j < tokens + n.query; j += strips * 32) {
            const int t = start + j, ahead = j - tokens;
            long long position = 0;
            if (ahead >= 0) {
                position = last + 1 + ahead;
            } else if (j < kept) {
                position = t == guess + lane ? early : __ldg(x.target_positions + t);
            }
            const bool is_live = ahead >= 0 || j < kept;
            const long long slot = is_live ? slot_of<RANKS>(position, row, width, block_size, n) : -1;
            if (ahead < 0) {
                context_slots[t] = slot;
                if (first_group) out.context_positions[t] = position;
                continue;
            }
            const int i = b * n.query + ahead, draft = ahead - (n.query - n.k);
            slots[i] = slot;
            if (!first_group) continue;
            out.input_ids[i] = ahead > 0 ? x.mask_token_id : sampled > 0 ? newest : prompt_token;
            out.positions[i] = min(position, (long long)n.max_model_len - 1);
            out.is_padding[i] = false;
            if (draft >= 0) {
                const long long d = (long long)b * n.k + draft;
                out.sample_indices[d] = i;
                out.sample_pos[d] = last + 2 + draft;
                out.sample_idx_mapping[d] = s;
            }
        }
        if (first_group && strip == 0 && lane == 0) {
            out.query_start_loc[b] = b * n.query;
            out.seq_lens[b] = (int)min(last + 1 + n.query, (long long)n.max_model_len);
            reinterpret_cast<int*>(out.temperature)[s] = temperature;
            out.seeds[s] = seed;
        }
    }
    // After the row, whose chain of loads is longer.
    const int threads = gridDim.x * THREADS;
    clear_tails(strip * threads + thread, strips * threads, first_group, slots, out, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) block_draft_inputs_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    prepare<false>(x, out, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) block_draft_inputs_ranks_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    prepare<true>(x, out, n);
}
