// mamba_spec_metadata in one launch. A request has 2^log_lanes >= slots lanes of one warp, a lane per slot.
//
// Mode all: the table entry depends on the anchor, and the anchor on the request slot. But the anchor is the last
// computed column or the next one, unless the block size is below the number of drafts, so the addresses of both
// entries do not need it, and it only selects: two loads in sequence. Columns are clamped into the row; a clamped entry
// is never selected, or belongs to a lane beyond the slots.
//
// ptxas would make four of them: it moves the entry that is written, and the count, behind the wait for the anchor, and
// predicates one of the entries on it. So the loads are ordered, and the selection is arithmetic.
//
// Versions on an H200 at B = 1, 128 and 1024, slowest first: loads as ptxas moves them; the entry selected by
// arithmetic; the same with loads in order, the written entry first. Blocks of 64 and 32 threads: slightly slower.
//
// Rows from num_reqs on are padding: they load the data of the last real request, so that stale slots and anchors
// are never dereferenced, and store the padding values. With no real request they load row 0 and use neither its slot
// nor its length.
//
// value / block_size is (value * multiplier) >> shift, exact below 2^30. anchors and next_anchors may be the same
// array; all lanes of a request have read it before the first one writes (__syncwarp).

#include "load.cuh"

__device__ __forceinline__ int divide(int value, int multiplier, int shift) {
    return (int)(((long long)value * multiplier) >> shift);
}

using namespace mamba_spec_metadata;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) mamba_spec_metadata_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    int table_stride) {
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    const int b = thread >> n.log_lanes, j = thread & ((1 << n.log_lanes) - 1);
    const int row = max(min(b, n.num_reqs - 1), 0), last_column = n.width - 1;
    const int slot = n.num_reqs > 0 ? load_in_order(x.request_slots + row) : 0;
    const int start = load_in_order(x.query_start_loc + row), end = load_in_order(x.query_start_loc + row + 1);
    int seq_len = load_in_order(x.seq_lens + row);
    if (n.num_reqs <= 0) seq_len = 0;
    const bool resumed = load_in_order(x.fresh + row);
    const int count = load_in_order(x.num_accepted_tokens + row);
    const int anchor = load_in_order(x.anchors + slot);

    const int computed = divide(max(seq_len - (end - start) - 1, 0), n.multiplier, n.shift);
    const int scheduled = divide(max(seq_len - 1, 0), n.multiplier, n.shift);
    const int* states = x.block_table + (long long)row * table_stride;
    int written = load_in_order(states + min(scheduled + j, last_column));
    const int here = load_in_order(states + min(computed + j, last_column));
    const int beyond = load_in_order(states + min(computed + 1 + j, last_column));
    int previous = resumed || anchor < 0 ? computed : anchor;
    int read = here ^ ((here ^ beyond) & -(int)(previous != computed));
    if ((unsigned)(previous - computed) > 1) read = states[min(previous + j, last_column)];
    __syncwarp();

    if (b >= n.num_reqs_padded) return;
    if (b >= n.num_reqs) read = written = 0;
    if (j < n.slots) {
        out.input_slots[b * n.slots + j] = read;
        out.output_slots[b * n.slots + j] = written;
    }
    if (j == 0) {
        const bool live = b < n.num_reqs;
        out.conv_input_slot[b] = read;
        out.conv_output_slot[b] = written;
        out.block_idx_last_scheduled_token[b] = live ? scheduled : 0;
        out.block_idx_last_computed_token[b] = live ? computed : 0;
        out.block_idx_last_scheduled_token_prev_step[b] = live ? previous : 0;
        out.num_accepted_tokens[b] = live ? count : 1;
        if (live) out.next_anchors[slot] = scheduled;
    }
}

// Modes align (the window starts at the last scheduled block) and none (at column 0).
extern "C" __global__ void __launch_bounds__(THREADS) mamba_spec_metadata_window_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    int table_stride) {
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    const int b = thread >> n.log_lanes, j = thread & ((1 << n.log_lanes) - 1);
    const int row = max(min(b, n.num_reqs - 1), 0);
    const int loaded = load(x.seq_lens + row), count = load(x.num_accepted_tokens + row);
    const int seq_len = n.num_reqs > 0 ? loaded : 0;
    const int first = divide(max(seq_len - 1, 0), n.multiplier, n.shift);
    const int entry = __ldg(x.block_table + (long long)row * table_stride + first + min(j, n.slots - 1));
    if (b >= n.num_reqs_padded) return;
    const bool live = b < n.num_reqs;
    if (j < n.slots) out.input_slots[b * n.slots + j] = live ? entry : 0;
    if (j == 0) out.num_accepted_tokens[b] = live ? count : 1;
}
