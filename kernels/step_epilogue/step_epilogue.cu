// All that a sampled step leaves behind, in one launch: a warp per row does every part of it, and the threads of the
// grid clear the tails. triton.py says why blocks do not specialise. Further warps of a long row (blockIdx.y > 0) only
// shift its tokens; what they read is by row or never written.
//
// prompt_lens and all_token_ids may be in mapped pinned memory. Grid: x =
// max(ceil(num_reqs_padded / 4), ceil((max_num_seqs + 1 - num_reqs) / THREADS)) blocks of THREADS, y = strips of a row.
//
// Versions on an H200, slowest first:
//
//   a kernel per launch of vLLM 0.33: four, six with states
//   the parts' fused kernels: two launches, three with states
//   a warp per row does all of them
//   target tokens with the counts, tails last
//
// Blocks that specialise were not tried: state may be one array as input and output (triton.py).

#include "draft_inputs/draft_inputs.cuh"
#include "mamba_align_step/mamba_align_step.cuh"
#include "post_update/post_update.cuh"

using namespace step_epilogue;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

// STATES: whether the model has recurrent states.
template <bool STATES>
__device__ __forceinline__ void epilogue(const Inputs& x, const Outputs& out, const Sizes& n) {
    const int thread = blockIdx.x * THREADS + threadIdx.x, b = thread >> 5, lane = thread & 31;
    const int last_end = load(x.query_start_loc + n.num_reqs);
    if (b < n.num_reqs_padded) {
        const int start = load(x.query_start_loc + b), query = load(x.query_start_loc + b + 1) - start;
        const long long s = load(x.idx_mapping + b), slot = max(s, 0ll);
        if (blockIdx.y > 0) {
            if (b >= n.num_reqs || (int)blockIdx.y * 32 >= query) return;
            const draft_inputs::Shifted first = draft_inputs::load_shifted(start, blockIdx.y * 32 + lane, query, x);
            // prompt_lens may be read over the bus.
            int rejected = x.cu_num_logits[b + 1] - x.cu_num_logits[b] - x.num_sampled[b];
            if (rejected != 0 && x.seq_lens[b] < x.prompt_lens[slot]) rejected = 0;
            draft_inputs::shift_row(
                b, lane, blockIdx.y, gridDim.y, start, query - rejected, 0, 0, first, x, out);
            return;
        }
        const draft_inputs::Shifted first = draft_inputs::load_shifted(start, lane, b < n.num_reqs ? query : 0, x);
        const int prompt_token = load(x.next_prefill_tokens + slot), length = load(x.seq_lens + b);
        int column = 0;
        if (STATES) column = load(x.state_columns_before + slot);
        const post_update::Row row = post_update::update<false>(b, lane, s, query, length, x, out, n);
        if (lane == 0 && row.s >= 0) {
            int count = max(row.ns, 1);
            if (STATES)
                count = mamba_align_step::freeze(b, row.computed, column, count, out.moves, n.mamba_block_size);
            out.num_accepted_tokens[row.s] = count;
        } else if (STATES && lane == 0) {
            mamba_align_step::store_move(out.moves, b, false, 0, 0, 0);
        }
        if (b < n.num_reqs) {
            int token = prompt_token;
            if (lane == 0 && row.ns > 0) token = (int)x.sampled_tokens[(long long)b * n.tokens_stride + row.ns - 1];
            draft_inputs::shift_row(b, lane, 0, gridDim.y, start, query - row.nr, token, length, first, x, out);
        }
    }
    // After the row, whose chain of loads is longer.
    if (blockIdx.y == 0) draft_inputs::clear_tails(thread, last_end, out, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) step_epilogue_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    epilogue<false>(x, out, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) step_epilogue_states_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    epilogue<true>(x, out, n);
}
