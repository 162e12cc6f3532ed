// All metadata before a forward pass in one launch, in which no block waits for another. triton.py says why one is enough.
//
// Blocks specialise by index, the longest chains of dependent instructions first:
//
//   schedulers      tile schedule (1), paged-MQA schedule (1 per 256 rows)        lengths gathered by slot, no scratch
//   of_inputs       a warp per row, row_strips for long ones: positions, lengths, tokens, logit rows; the tail of the lengths
//   of_slots        per group, a warp per row: slot mappings; the tail behind the last token
//   of_states       LANES threads per row: columns, counts, state slots, moves
//   of_lengths      flatten: a row and a strip of its table; native: THREADS of the (B, L) lengths
//   of_tables       per group, a row and a strip of its table
//
// The bodies are those of the operators' own kernels. Block: THREADS.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192 (record whole_step; second column with a sparse indexer on the
// native path, third a hybrid of four groups, three of them states). Predicted: the longest part, 1.79 as step_inputs; the
// floor is 1.28 (?: the estimators disagree):
//
//   a kernel per launch of vLLM 0.33                    6, 17, 12 launches    10.5   24.2   18.6
//   the parts' fused kernels                           3, 7, 4 launches      5.17   10.6   7.60
//   blocks specialise, none waits for another: CUDA    1 launch              2.38   2.81?  8.45?
//                                              Triton  1 launch              2.40   3.21   3.46
//   few strips of tables, loads before branches: CUDA  1 launch              2.07   2.79?  2.58?
//                                              Triton  1 launch              2.43   3.23   2.63
//   slot mappings load in order: CUDA                  1 launch              2.03?  2.77?  2.59
//
// The hybrid had 5,120 blocks for tables, of which 512 had something to do. The gap to the prediction was not profiled.

#include "compute_slot_mappings/compute_slot_mappings.cuh"
#include "decode_flatten/decode_flatten.cuh"
#include "decode_native/decode_native.cuh"
#include "gather_block_tables/gather_block_tables.cuh"
#include "mamba_align_step/mamba_align_step.cuh"
#include "mla_tile_schedule/mla_tile_schedule.cuh"
#include "paged_mqa_schedule/paged_mqa_schedule.cuh"
#include "step_inputs/step_inputs.cuh"

constexpr int THREADS = 256;
static_assert(THREADS == decode_flatten::THREADS && THREADS == mla_tile_schedule::THREADS && THREADS == paged_mqa_schedule::THREADS);

// Lengths after the step in batch order, from the counts by slot; 0 for padding.
struct BySlot {
    const long long* idx;
    const int* query_start_loc;
    const int* num_computed;

    __device__ __forceinline__ int operator[](int b) const {
        const long long s = idx[b];
        const int query = query_start_loc[b + 1] - query_start_loc[b];
        return s >= 0 ? num_computed[s] + query : 0;
    }
};

enum Path { NONE, FLATTEN, NATIVE };

template <Path PATH, int VECTOR>
__device__ __forceinline__ void prologue(
    const long long* __restrict__ idx, const int* __restrict__ query_start_loc, const int* __restrict__ cu_num_logits,
    const int* __restrict__ num_computed, const long long* __restrict__ last, const long long* __restrict__ draft,
    const int* __restrict__ prompt_lens, const int* __restrict__ all_ids, const int* __restrict__ tables,
    const long long* __restrict__ starts, const long long* __restrict__ widths, const int* __restrict__ block_sizes,
    const int* __restrict__ reach, const bool* __restrict__ enabled, const int* __restrict__ num_blocks,
    int* __restrict__ seq_lens, long long* __restrict__ positions, int* __restrict__ input_ids,
    int* __restrict__ next_prefill, long long* __restrict__ logits_indices, long long* __restrict__ expanded_idx,
    int* __restrict__ expanded_pos, int* __restrict__ drafted, long long* __restrict__ logit_positions,
    int* __restrict__ block_tables, long long* __restrict__ slots, int rows, int real, int capacity, int k, int history_len,
    int look_ahead, int token_capacity, int groups, int row_strips, int of_inputs, int of_slots, int of_states, int of_tables, int strips,
    // states
    const int* __restrict__ state_tables, const int* columns_before, const int* accepted_before, int* accepted,
    int* __restrict__ moves, int* columns, int* __restrict__ source_columns, int* __restrict__ source_offsets,
    int* __restrict__ batch_accepted, int* __restrict__ state_slots, bool* __restrict__ mask, int* __restrict__ state_starts,
    int state_width, int slots_per_row, int state_groups, int mamba_block_size,
    // indexer
    int* __restrict__ lens, int* __restrict__ decode_lens, int* __restrict__ expanded, int* __restrict__ table_of_sms,
    int* __restrict__ metadata, int* __restrict__ num_splits, int schedulers, int of_lengths, int flatten_strips, int width,
    int num_queries, int block_size, int table_columns, int source_stride, int expanded_stride, int num_sms,
    int sms_multiplier, int sms_shift, int atoms, int back, int num_parts, int overhead, int parts_multiplier,
    int parts_shift) {
    int block = blockIdx.x;
    if (PATH != NONE) {
        if (block < schedulers) {
            const BySlot lengths{idx, query_start_loc, num_computed};
            if (block == 0) {
                mla_tile_schedule::tile_schedule<false>(
                    lengths, metadata, num_splits, rows, num_parts, overhead, parts_multiplier, parts_shift, 0);
                return;
            }
            const int rows_per_thread = (rows + THREADS - 1) / THREADS;
            if (PATH == FLATTEN) {
                const paged_mqa_schedule::Tokens<BySlot> work{lengths, query_start_loc, num_queries};
                if (rows <= THREADS) {
                    paged_mqa_schedule::schedule<false>(
                        work, table_of_sms, block - 1, rows, 1, num_sms, sms_multiplier, sms_shift, back);
                } else {
                    paged_mqa_schedule::schedule<true>(
                        work, table_of_sms, block - 1, rows, rows_per_thread, num_sms, sms_multiplier, sms_shift, back);
                }
            } else {
                const paged_mqa_schedule::Requests<BySlot> work{lengths, 1, atoms};
                if (rows <= THREADS) {
                    paged_mqa_schedule::schedule<false>(
                        work, table_of_sms, block - 1, rows, 1, num_sms, sms_multiplier, sms_shift, back);
                } else {
                    paged_mqa_schedule::schedule<true>(
                        work, table_of_sms, block - 1, rows, rows_per_thread, num_sms, sms_multiplier, sms_shift, back);
                }
            }
            return;
        }
        block -= schedulers;
    }
    if (block < of_inputs * row_strips) {
        step_inputs::prepare(
            block % of_inputs * THREADS + threadIdx.x, block / of_inputs, row_strips, idx, query_start_loc, cu_num_logits, num_computed, last, draft, prompt_lens,
            all_ids, seq_lens, positions, input_ids, next_prefill, logits_indices, expanded_idx, expanded_pos, drafted,
            logit_positions, real, capacity, k, history_len, look_ahead, 1);
        return;
    }
    block -= of_inputs * row_strips;
    if (block < of_slots * row_strips * groups) {
        compute_slot_mappings::map_rows<false>(
            block / (of_slots * row_strips), block % of_slots * THREADS + threadIdx.x, of_slots * THREADS,
            block / of_slots % row_strips, row_strips,
            compute_slot_mappings::Counted{num_computed}, idx, query_start_loc, tables, starts, widths, block_sizes, enabled,
            enabled, slots, rows, token_capacity, 1, 0, 1);
        return;
    }
    block -= of_slots * row_strips * groups;
    if (block < of_states) {
        mamba_align_step::before_forward(
            block * THREADS + threadIdx.x, idx, num_computed, columns_before, accepted_before, query_start_loc, state_tables,
            accepted, moves, columns, source_columns, source_offsets, batch_accepted, state_slots, mask, state_starts, rows,
            capacity, state_width, slots_per_row, state_groups, mamba_block_size);
        return;
    }
    block -= of_states;
    if (PATH != NONE) {
        if (block < of_lengths) {
            if (PATH == FLATTEN) {
                decode_flatten::flatten<VECTOR, true>(
                    num_computed, query_start_loc, tables, lens, decode_lens, expanded, block / flatten_strips,
                    block % flatten_strips, flatten_strips, rows, num_queries, token_capacity, block_size, table_columns,
                    source_stride, expanded_stride, idx);
                return;
            }
            const int i = block * THREADS + threadIdx.x;
            if (i >= rows * width) return;
            const int b = i / width, j = i % width, length = BySlot{idx, query_start_loc, num_computed}[b];
            lens[i] = decode_native::context_len(length, width, j, 1);
            if (j == 0) decode_lens[b] = query_start_loc[b + 1] - query_start_loc[b];
            return;
        }
        block -= of_lengths;
    }
    const int row = block % of_tables;
    gather_block_tables::gather<VECTOR>(
        row / strips, row % strips * THREADS + threadIdx.x, strips * THREADS, block / of_tables, idx, tables, num_computed, starts, widths,
        block_sizes, reach, num_blocks, block_tables, real, capacity);
}

#define PARAMETERS                                                                                                        \
    const long long *__restrict__ idx, const int *__restrict__ query_start_loc, const int *__restrict__ cu_num_logits,    \
        const int *__restrict__ num_computed, const long long *__restrict__ last, const long long *__restrict__ draft,    \
        const int *__restrict__ prompt_lens, const int *__restrict__ all_ids, const int *__restrict__ tables,             \
        const long long *__restrict__ starts, const long long *__restrict__ widths, const int *__restrict__ block_sizes,  \
        const int *__restrict__ reach, const bool *__restrict__ enabled, const int *__restrict__ num_blocks,              \
        int *__restrict__ seq_lens, long long *__restrict__ positions, int *__restrict__ input_ids,                       \
        int *__restrict__ next_prefill, long long *__restrict__ logits_indices, long long *__restrict__ expanded_idx,     \
        int *__restrict__ expanded_pos, int *__restrict__ drafted, long long *__restrict__ logit_positions,               \
        int *__restrict__ block_tables, long long *__restrict__ slots, int rows, int real, int capacity, int k,           \
        int history_len, int look_ahead, int token_capacity, int groups, int row_strips, int of_inputs, int of_slots,     \
        int of_states, int of_tables, int strips
#define ARGUMENTS                                                                                                         \
    idx, query_start_loc, cu_num_logits, num_computed, last, draft, prompt_lens, all_ids, tables, starts, widths,         \
        block_sizes, reach, enabled, num_blocks, seq_lens, positions, input_ids, next_prefill, logits_indices,            \
        expanded_idx, expanded_pos, drafted, logit_positions, block_tables, slots, rows, real, capacity, k, history_len,  \
        look_ahead, token_capacity, groups, row_strips, of_inputs, of_slots, of_states, of_tables, strips
#define STATES_PARAMETERS                                                                                                 \
    const int *__restrict__ state_tables, const int *columns_before, const int *accepted_before, int *accepted,           \
        int *__restrict__ moves, int *columns, int *__restrict__ source_columns, int *__restrict__ source_offsets,        \
        int *__restrict__ batch_accepted, int *__restrict__ state_slots, bool *__restrict__ mask,                         \
        int *__restrict__ state_starts, int state_width, int slots_per_row, int state_groups, int mamba_block_size
#define STATES_ARGUMENTS                                                                                                  \
    state_tables, columns_before, accepted_before, accepted, moves, columns, source_columns, source_offsets,              \
        batch_accepted, state_slots, mask, state_starts, state_width, slots_per_row, state_groups, mamba_block_size
#define INDEXER_PARAMETERS                                                                                                \
    int *__restrict__ lens, int *__restrict__ decode_lens, int *__restrict__ expanded, int *__restrict__ table_of_sms,    \
        int *__restrict__ metadata, int *__restrict__ num_splits, int schedulers, int of_lengths, int flatten_strips,     \
        int width, int num_queries, int block_size, int table_columns, int source_stride, int expanded_stride,            \
        int num_sms, int sms_multiplier, int sms_shift, int atoms, int back, int num_parts, int overhead,                 \
        int parts_multiplier, int parts_shift
#define INDEXER_ARGUMENTS                                                                                                 \
    lens, decode_lens, expanded, table_of_sms, metadata, num_splits, schedulers, of_lengths, flatten_strips, width,       \
        num_queries, block_size, table_columns, source_stride, expanded_stride, num_sms, sms_multiplier, sms_shift,       \
        atoms, back, num_parts, overhead, parts_multiplier, parts_shift
#define NO_STATES nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 0, 0, 1
#define NO_INDEXER nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0

// A kernel without states or indexer takes fewer arguments: each costs the host time.
#define KERNEL(NAME, PATH, VECTOR)                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(PARAMETERS, STATES_PARAMETERS, INDEXER_PARAMETERS) {       \
        prologue<PATH, VECTOR>(ARGUMENTS, STATES_ARGUMENTS, INDEXER_ARGUMENTS);                                           \
    }
#define BASE(NAME, VECTOR)                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(PARAMETERS) {                                              \
        prologue<NONE, VECTOR>(ARGUMENTS, NO_STATES, NO_INDEXER);                                                         \
    }                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS) states_##NAME(PARAMETERS, STATES_PARAMETERS) {                  \
        prologue<NONE, VECTOR>(ARGUMENTS, STATES_ARGUMENTS, NO_INDEXER);                                                  \
    }
BASE(base_vec4, 4)
BASE(base_vec1, 1)
KERNEL(flatten_vec4, FLATTEN, 4)
KERNEL(flatten_vec1, FLATTEN, 1)
KERNEL(native_vec4, NATIVE, 4)
KERNEL(native_vec1, NATIVE, 1)
