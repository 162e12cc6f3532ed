// draft_inputs, one launch per pass of the drafter.
//
// First pass: a warp per row shifts its tokens; the threads of the grid also clear the tails behind the last row.
// Second pass: a thread per entry of the R + 1 boundaries. Later passes: a block per row and strip of its hidden
// values.
//
// Versions on an H200, slowest first:
//
//   as vLLM 0.33: a program per row, one for the tails
//   rows share blocks, all threads share the tails
//   tails after the row, whose chain of loads is longer
//   loads before branches, a turn per strip
//
// With prefill chunks beside decodes, four turns of 16 tokens are much slower in Triton. In the first pass two loads in
// sequence, the row's counts and its tokens; later passes copy hidden rows.

#include "draft_inputs.cuh"

using namespace draft_inputs;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) draft_inputs_first_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    const int thread = blockIdx.x * THREADS + threadIdx.x, b = thread >> 5, lane = thread & 31;
    const int last_end = load(x.query_start_loc + n.num_reqs);
    if (b < n.num_reqs) {
        const int start = load(x.query_start_loc + b), end = load(x.query_start_loc + b + 1);
        const int kept = end - start - load(x.num_rejected + b), sampled = load(x.num_sampled + b);
        const int length = load(x.seq_lens + b);
        const long long s = load(x.idx_mapping + b);
        const Shifted first = load_shifted(start, blockIdx.y * 32 + lane, kept, x);
        const int newest = (int)load(x.last_sampled_tokens + s), prompt_token = load(x.next_prefill_tokens + s);
        const int token = sampled > 0 ? newest : prompt_token;
        shift_row(b, lane, blockIdx.y, gridDim.y, start, kept, token, length, first, x, out);
    }
    // After the row, whose chain of loads is longer.
    if (blockIdx.y == 0) clear_tails(thread, last_end, out, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) draft_inputs_second_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    int advance) {
    const int b = blockIdx.x * THREADS + threadIdx.x;
    if (b > n.max_num_seqs) return;
    out.query_start_loc[b] = min(b, n.num_reqs);
    if (b == n.max_num_seqs) return;
    if (b >= n.num_reqs) {
        out.seq_lens[b] = 0;
        return;
    }
    const long long p = __ldg(x.positions_before + b);
    const int length = __ldg(x.seq_lens + b) - __ldg(x.num_rejected + b);
    out.input_ids[b] = (int)__ldg(x.draft_tokens + (long long)b * n.k);
    out.sample_src_positions[b] = p + 2;
    out.positions[b] = advance ? min(p + 1, (long long)n.max_model_len - 1) : p;
    out.seq_lens[b] = advance ? min(length, n.max_model_len - 1) + 1 : length;
}

template <int VECTOR>
struct Vector;
template <>
struct Vector<8> {
    using type = int4;
};
template <>
struct Vector<1> {
    using type = short;
};

template <int VECTOR>
__device__ __forceinline__ void later(const Inputs& x, const Outputs& out, const Sizes& n, int advance) {
    using Values = typename Vector<VECTOR>::type;
    const int b = blockIdx.x, strip = blockIdx.y;
    const long long done = __ldg(x.current_draft_step);
    if (strip == 0 && threadIdx.x == 0) {
        const long long token = __ldg(x.sampled + b);
        out.draft_tokens[(long long)b * n.k + done] = token;
        if (done < n.k - 1) {
            out.input_ids[b] = (int)token;
            out.sample_src_positions[b] = x.sample_src_positions_before[b] + 1;
            out.positions[b] =
                advance ? min(x.positions_before[b] + 1, (long long)n.max_model_len - 1) : x.positions_before[b];
            out.seq_lens[b] = advance ? min(x.seq_lens_before[b], n.max_model_len - 1) + 1 : x.seq_lens_before[b];
        }
    }
    if (done >= n.k - 1) return;
    const Values* from = reinterpret_cast<const Values*>(x.hidden_states_before + (long long)b * n.hidden_size);
    Values* to = reinterpret_cast<Values*>(out.hidden_states + (long long)b * n.hidden_size);
    for (int h = strip * THREADS + threadIdx.x; h < n.hidden_size / VECTOR; h += gridDim.y * THREADS)
        to[h] = __ldg(from + h);
}

extern "C" __global__ void __launch_bounds__(THREADS) draft_inputs_later_kernel_vec8(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    int advance) {
    later<8>(x, out, n, advance);
}
extern "C" __global__ void __launch_bounds__(THREADS) draft_inputs_later_kernel_vec1(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    int advance) {
    later<1>(x, out, n, advance);
}
