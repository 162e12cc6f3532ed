// draft_inputs, one launch per pass of the drafter.
//
// first_pass: a warp per row shifts its tokens; the threads of the grid also clear the tails behind the last row.
// second_pass: a thread per entry of the R + 1 boundaries. later_pass: a block per row and strip of its hidden values.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192, first, second and later pass (record step).
// Predicted: 1.22, 1.07 and 1.80, the floor:
//
//   as vLLM 0.33: a program per row, one for the tails       1 launch           2.01   1.50   3.31
//   rows share blocks, all threads share the tails           1 launch           1.94   1.20   2.34
//   tails after the row, whose chain of loads is longer      1 launch           1.82
//   loads before branches, a turn per strip                  1 launch           1.59   1.14   2.30
//                                                            Triton             1.46   1.09   2.29
//
// With prefill chunks of 1024 tokens beside decodes 1.71, Triton 1.62 (four turns of 16 tokens: 2.90), the engine's
// kernel 2.32. In the first pass two loads in sequence, the row's counts and its tokens; later passes copy hidden rows.

#include "draft_inputs.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) first_pass(
    const int* __restrict__ query_start_loc, const int* __restrict__ seq_lens, const int* __restrict__ num_rejected,
    const int* __restrict__ target_ids, const long long* __restrict__ target_pos, const long long* __restrict__ idx,
    const int* __restrict__ num_sampled, const long long* __restrict__ last, const int* __restrict__ next_prefill,
    int* __restrict__ ids, long long* __restrict__ pos, int* __restrict__ lens, int* __restrict__ starts,
    long long* __restrict__ last_index, long long* __restrict__ step, int rows, int capacity) {
    const int thread = blockIdx.x * THREADS + threadIdx.x, b = thread >> 5, lane = thread & 31;
    const int last_end = load(query_start_loc + rows);
    if (b < rows) {
        const int start = load(query_start_loc + b), end = load(query_start_loc + b + 1);
        const int kept = end - start - load(num_rejected + b), sampled = load(num_sampled + b), length = load(seq_lens + b);
        const long long s = load(idx + b);
        const draft_inputs::Shifted first =
            draft_inputs::load_shifted(start, blockIdx.y * 32 + lane, kept, target_ids, target_pos);
        const int newest = (int)load(last + s), prompt_token = load(next_prefill + s);
        draft_inputs::shift_row(
            b, lane, blockIdx.y, gridDim.y, start, kept, sampled > 0 ? newest : prompt_token, length, first, target_ids,
            target_pos, ids, pos, lens, starts, last_index);
    }
    // After the row, whose chain of loads is longer.
    if (blockIdx.y == 0) draft_inputs::clear_tails(thread, rows, capacity, last_end, lens, starts, last_index, step);
}

extern "C" __global__ void __launch_bounds__(THREADS) second_pass(
    const int* __restrict__ seq_lens, const int* __restrict__ num_rejected, const long long* __restrict__ pos_before,
    const long long* __restrict__ drafts, int* __restrict__ ids, long long* __restrict__ pos, int* __restrict__ lens,
    int* __restrict__ starts, long long* __restrict__ src, int rows, int capacity, int k, int most, int advance) {
    const int b = blockIdx.x * THREADS + threadIdx.x;
    if (b > capacity) return;
    starts[b] = min(b, rows);
    if (b == capacity) return;
    if (b >= rows) {
        lens[b] = 0;
        return;
    }
    const long long p = pos_before[b];
    const int length = seq_lens[b] - num_rejected[b];
    ids[b] = (int)drafts[(long long)b * k];
    src[b] = p + 2;
    pos[b] = advance ? min(p + 1, (long long)most - 1) : p;
    lens[b] = advance ? min(length, most - 1) + 1 : length;
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

#define LATER_PARAMETERS                                                                                                  \
    const long long *__restrict__ step, const long long *__restrict__ sampled, const long long *pos_before,               \
        const long long *src_before, const int *lens_before, const short *__restrict__ hidden_before,                     \
        int *__restrict__ ids, long long *pos, int *lens, long long *src, long long *__restrict__ drafts,                 \
        short *__restrict__ hidden, int k, int most, int hidden_size, int advance
#define LATER_ARGUMENTS                                                                                                   \
    step, sampled, pos_before, src_before, lens_before, hidden_before, ids, pos, lens, src, drafts, hidden, k, most,      \
        hidden_size, advance

template <int VECTOR>
__device__ __forceinline__ void later(LATER_PARAMETERS) {
    using Values = typename Vector<VECTOR>::type;
    const int b = blockIdx.x, strip = blockIdx.y;
    const long long done = *step;
    if (strip == 0 && threadIdx.x == 0) {
        const long long token = sampled[b];
        drafts[(long long)b * k + done] = token;
        if (done < k - 1) {
            ids[b] = (int)token;
            src[b] = src_before[b] + 1;
            pos[b] = advance ? min(pos_before[b] + 1, (long long)most - 1) : pos_before[b];
            lens[b] = advance ? min(lens_before[b], most - 1) + 1 : lens_before[b];
        }
    }
    if (done >= k - 1) return;
    const Values* from = reinterpret_cast<const Values*>(hidden_before + (long long)b * hidden_size);
    Values* to = reinterpret_cast<Values*>(hidden + (long long)b * hidden_size);
    for (int h = strip * THREADS + threadIdx.x; h < hidden_size / VECTOR; h += gridDim.y * THREADS) to[h] = from[h];
}

extern "C" __global__ void __launch_bounds__(THREADS) later_pass_vec8(LATER_PARAMETERS) { later<8>(LATER_ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) later_pass_vec1(LATER_PARAMETERS) { later<1>(LATER_ARGUMENTS); }
