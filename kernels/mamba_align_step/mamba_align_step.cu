// mamba_align_step, one launch per phase; the states themselves are not copied here.
//
// before_forward: LANES threads per row; all compute its column, the first writes the counts, and all write state slots of
// all groups, read from the tables by request slot. after_sampling: a thread per row.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192, before the forward pass and after sampling (record step).
// Predicted: 1.15 and 1.07, the floor:
//
//   a kernel per launch of vLLM 0.33                         6 and 2 launches   7.41   2.51
//   all from the state by slot                               1 launch           2.02   1.31
//                                                            Triton             1.98   1.34
//   loads by slot together, table entries before stores      1 launch           1.91   1.29
//   a warp per program instead of two                        Triton             1.77   1.29
//
// Before the forward pass three loads in sequence, slot, count, table entries; after sampling two, without the table.

#include "mamba_align_step.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) before_forward(
    const long long* __restrict__ idx, const int* __restrict__ num_computed, const int* columns_before,
    const int* accepted_before, const int* __restrict__ query_start_loc, const int* __restrict__ slot_tables,
    int* accepted, int* __restrict__ moves, int* columns, int* __restrict__ source_columns,
    int* __restrict__ source_offsets, int* __restrict__ batch_accepted, int* __restrict__ state_slots,
    bool* __restrict__ mask, int* __restrict__ starts, int rows, int capacity, int width, int slots_per_row, int groups,
    int block_size) {
    mamba_align_step::before_forward(
        blockIdx.x * THREADS + threadIdx.x,
        idx, num_computed, columns_before, accepted_before, query_start_loc, slot_tables, accepted, moves, columns,
        source_columns, source_offsets, batch_accepted, state_slots, mask, starts, rows, capacity, width,
        slots_per_row, groups, block_size);
}

extern "C" __global__ void __launch_bounds__(THREADS) after_sampling(
    const long long* __restrict__ idx, const int* __restrict__ num_computed, const int* __restrict__ columns_before,
    const int* accepted_before, int* accepted, int* __restrict__ moves, int rows, int block_size) {
    const int b = blockIdx.x * THREADS + threadIdx.x;
    if (b >= rows) return;
    const long long s = load(idx + b), slot = max(s, 0ll);
    const int computed = load(num_computed + slot), column = load(columns_before + slot), count = load(accepted_before + slot);
    if (s < 0) {
        mamba_align_step::store_move(moves, b, false, 0, 0, 0);
        return;
    }
    accepted[s] = mamba_align_step::freeze(b, computed, column, count, moves, block_size);
}
