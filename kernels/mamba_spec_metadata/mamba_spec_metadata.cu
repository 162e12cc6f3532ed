// mamba_spec_metadata in one launch. A request has 2^log_lanes >= slots lanes of one warp, a lane per slot.
//
// all_states: the table entry depends on the anchor, and the anchor on the request slot. But the anchor is the last computed
// column or the next one, unless the block size is below the number of drafts, so the addresses of both entries do not need
// it, and it only selects: two loads in sequence. Columns are clamped into the row; a clamped entry is never selected, or
// belongs to a lane beyond the slots.
//
// ptxas would make four of them: it moves the entry that is written, and the count, behind the wait for the anchor, and
// predicates one of the entries on it. So the loads are ordered, and the selection is arithmetic.
//
// Versions, us on an H200 with three drafts, at B = 1, 128 and 1024, and at 128 with blocks of one token, measured together:
//
//   loads as ptxas moves them                          CUDA    1.54   1.69   1.87   1.81
//   the entry is selected by arithmetic                CUDA    1.53   1.59   1.77   1.68
//   the same, loads in order, the written entry first  CUDA    1.42   1.50   1.63   1.50
//                                                      Triton  1.48   1.59   1.73   1.61
//
// Blocks of 64 and 32 threads: 2 and 4 % slower at B = 128.
//
// Rows from num_decodes on are padding: they load the data of the last real request, so that stale slots and anchors are never
// dereferenced, and store the padding values. With no real request they load row 0 and use neither its slot nor its length.
//
// n / block_size is (n * multiplier) >> shift, exact below 2^30. anchors and next_anchors may be the same array, so neither is
// __restrict__; all lanes of a request have read it before the first one writes (__syncwarp).

#include "load.cuh"

constexpr int THREADS = 128;

__device__ __forceinline__ int divide(int n, int multiplier, int shift) { return (int)(((long long)n * multiplier) >> shift); }

extern "C" __global__ void __launch_bounds__(THREADS) all_states(
    const int* __restrict__ seq_lens, const int* __restrict__ query_start_loc, const int* __restrict__ accepted,
    const int* __restrict__ request_slots, const bool* __restrict__ fresh, const int* anchors, const int* __restrict__ table,
    int* __restrict__ input_slots, int* __restrict__ output_slots, int* __restrict__ conv_input, int* __restrict__ conv_output,
    int* __restrict__ scheduled_out, int* __restrict__ computed_out, int* __restrict__ previous_out, int* __restrict__ accepted_out,
    int* next_anchors,
    int num_decodes, int num_reqs, int width, int table_stride, int slots, int log_lanes, int multiplier, int shift) {
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    const int b = thread >> log_lanes, j = thread & ((1 << log_lanes) - 1);
    const int row = max(min(b, num_decodes - 1), 0), last_column = width - 1;
    const int slot = num_decodes > 0 ? load_in_order(request_slots + row) : 0;
    const int start = load_in_order(query_start_loc + row), end = load_in_order(query_start_loc + row + 1);
    int seq_len = load_in_order(seq_lens + row);
    if (num_decodes <= 0) seq_len = 0;
    const bool resumed = load_in_order(fresh + row);
    const int count = load_in_order(accepted + row);
    const int anchor = load_in_order(anchors + slot);

    const int computed = divide(max(seq_len - (end - start) - 1, 0), multiplier, shift);
    const int scheduled = divide(max(seq_len - 1, 0), multiplier, shift);
    const int* states = table + (long long)row * table_stride;
    int written = load_in_order(states + min(scheduled + j, last_column));
    const int here = load_in_order(states + min(computed + j, last_column));
    const int beyond = load_in_order(states + min(computed + 1 + j, last_column));
    int previous = resumed || anchor < 0 ? computed : anchor;
    int read = here ^ ((here ^ beyond) & -(int)(previous != computed));
    if ((unsigned)(previous - computed) > 1) read = states[min(previous + j, last_column)];
    __syncwarp();

    if (b >= num_reqs) return;
    if (b >= num_decodes) read = written = 0;
    if (j < slots) {
        input_slots[b * slots + j] = read;
        output_slots[b * slots + j] = written;
    }
    if (j == 0) {
        const bool live = b < num_decodes;
        conv_input[b] = read;
        conv_output[b] = written;
        scheduled_out[b] = live ? scheduled : 0;
        computed_out[b] = live ? computed : 0;
        previous_out[b] = live ? previous : 0;
        accepted_out[b] = live ? count : 1;
        if (live) next_anchors[slot] = scheduled;
    }
}

// Modes align (the window starts at the last scheduled block) and none (multiplier 0, so it starts at column 0).
extern "C" __global__ void __launch_bounds__(THREADS) window(
    const int* __restrict__ seq_lens, const int* __restrict__ accepted, const int* __restrict__ table,
    int* __restrict__ input_slots, int* __restrict__ accepted_out,
    int num_decodes, int num_reqs, int table_stride, int slots, int log_lanes, int multiplier, int shift) {
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    const int b = thread >> log_lanes, j = thread & ((1 << log_lanes) - 1);
    const int row = max(min(b, num_decodes - 1), 0);
    const int seq_len = num_decodes > 0 ? seq_lens[row] : 0, count = accepted[row];
    const int first = divide(max(seq_len - 1, 0), multiplier, shift);
    const int entry = table[(long long)row * table_stride + first + min(j, slots - 1)];
    if (b >= num_reqs) return;
    const bool live = b < num_decodes;
    if (j < slots) input_slots[b * slots + j] = live ? entry : 0;
    if (j == 0) accepted_out[b] = live ? count : 1;
}
