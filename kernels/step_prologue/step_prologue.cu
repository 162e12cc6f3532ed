// All metadata before a forward pass in one launch, in which no block waits for another. triton.py says why one is
// enough.
//
// Blocks specialise by index, the longest chains of dependent instructions first:
//
//   num_schedulers      tile schedule (1), paged-MQA schedule (1 per 256 rows); lengths by slot, no scratch
//   num_input_blocks    a warp per row, row_strips for long ones: positions, lengths, tokens, logit rows; the tail
//   num_slot_blocks     per group, a warp per row: slot mappings; the tail behind the last token
//   num_state_blocks    LANES threads per row: columns, counts, state slots, moves
//   num_length_blocks   flatten: a row and a strip of its table; native: THREADS of the (B, L) lengths
//   num_table_blocks    per group, a row and a strip of its table
//
// The bodies are those of the operators' own kernels. Block: THREADS.
//
// Versions on an H200, slowest first. The longest part, step_inputs, is what the launch can reach at best:
//
//   a kernel per launch of vLLM 0.33: 6, with a sparse indexer 17, in a hybrid of four groups 12
//   the parts' fused kernels: 3, 7 and 4 launches; faster than the next version in the hybrid (CUDA)
//   blocks specialise, none waits for another
//   few strips of tables, loads before branches (in Triton a gain in the hybrid alone, which had 5,120 blocks for
//   tables, 512 of them with work)
//   slot mappings load in order (CUDA)
//
// The gap to the longest part was not profiled.

#include "compute_slot_mappings/compute_slot_mappings.cuh"
#include "decode_step/decode_step.cuh"
#include "gather_block_tables/gather_block_tables.cuh"
#include "mamba_align_step/mamba_align_step.cuh"
#include "step_inputs/step_inputs.cuh"

using namespace step_prologue;  // Programs, Sizes, Inputs, Outputs, Indexer, THREADS: declared by cuda.py

static_assert(THREADS == decode_step::THREADS, "of one block");

// Lengths after the step in batch order, from the counts by slot; 0 for padding.
struct BySlot {
    const long long* idx_mapping;
    const int* query_start_loc;
    const int* num_computed_tokens;

    __device__ __forceinline__ int operator[](int b) const {
        const long long s = __ldg(idx_mapping + b);
        const int query = __ldg(query_start_loc + b + 1) - __ldg(query_start_loc + b);
        return s >= 0 ? __ldg(num_computed_tokens + s) + query : 0;
    }
};

enum Path { NONE, FLATTEN, NATIVE };

// The indexer's schedules over lengths by slot; those of more than THREADS requests are another instance.
template <Path PATH, bool MANY>
__device__ __forceinline__ void schedule(const BySlot lengths, const Indexer& indexer) {
    const paged_mqa_schedule::Sizes& n = indexer.n.schedule;
    if (PATH == FLATTEN) {
        const paged_mqa_schedule::Tokens<BySlot> work{lengths, lengths.query_start_loc, n.num_queries};
        paged_mqa_schedule::schedule<MANY>(work, indexer.out.schedule, blockIdx.x - 1, n);
    } else {
        const paged_mqa_schedule::Requests<BySlot> work{lengths, 1, n.factor};
        paged_mqa_schedule::schedule<MANY>(work, indexer.out.schedule, blockIdx.x - 1, n);
    }
}

// Without an indexer, or states, their arguments are not used.
template <Path PATH, int VECTOR, bool STATES>
__device__ __forceinline__ void prologue(
    const Inputs& x, const Outputs& out, const Sizes& n, const Programs& programs, const Indexer& indexer,
    const mamba_align_step::Arguments& states) {
    const BySlot lengths{x.idx_mapping, x.query_start_loc, x.num_computed_tokens};
    const int row_strips = programs.row_strips;
    int block = blockIdx.x;
    if (PATH != NONE) {
        if (block < programs.num_schedulers) {
            if (block == 0) {
                mla_tile_schedule::tile_schedule<false>(
                    lengths, indexer.out.tile_scheduler_metadata, indexer.out.num_splits, indexer.n.tiles);
            } else if (indexer.n.schedule.batch_size <= THREADS) {
                schedule<PATH, false>(lengths, indexer);
            } else {
                schedule<PATH, true>(lengths, indexer);
            }
            return;
        }
        block -= programs.num_schedulers;
    }
    int blocks = programs.num_input_blocks;
    if (block < blocks * row_strips) {
        const int thread = block % blocks * THREADS + threadIdx.x;
        step_inputs::prepare(thread, block / blocks, row_strips, x, out, n);
        return;
    }
    block -= blocks * row_strips;
    blocks = programs.num_slot_blocks;
    if (block < blocks * row_strips * programs.num_groups) {
        const int thread = block % blocks * THREADS + threadIdx.x, strip = block / blocks % row_strips;
        const compute_slot_mappings::Counted positions{x.num_computed_tokens};
        compute_slot_mappings::map_rows<false>(
            block / (blocks * row_strips), thread, blocks * THREADS, strip, row_strips, positions, x, out, n);
        return;
    }
    block -= blocks * row_strips * programs.num_groups;
    if (STATES) {
        if (block < programs.num_state_blocks) {
            mamba_align_step::before_forward(block * THREADS + threadIdx.x, states.x, states.out, states.n);
            return;
        }
        block -= programs.num_state_blocks;
    }
    if (PATH != NONE) {
        if (block < programs.num_length_blocks) {
            const int strips = programs.flatten_strips;
            if (PATH == FLATTEN) {
                decode_step::flatten<VECTOR, true>(
                    block / strips, block % strips, strips, x.num_computed_tokens, x.query_start_loc, indexer.out,
                    indexer.tables, x.idx_mapping);
            } else {
                const int i = block * THREADS + threadIdx.x;
                decode_step::native_entry(i, lengths, lengths.query_start_loc, indexer.out, indexer.n);
            }
            return;
        }
        block -= programs.num_length_blocks;
    }
    const int of_group = block % programs.num_table_blocks, strips = programs.table_strips;
    gather_block_tables::gather<VECTOR>(
        of_group / strips, of_group % strips * THREADS + threadIdx.x, strips * THREADS,
        block / programs.num_table_blocks, x, out, n);
}

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)
#define BASE \
    const __grid_constant__ Programs programs, const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, \
        const __grid_constant__ Outputs out
#define WITH_STATES BASE, const __grid_constant__ mamba_align_step::Arguments states
#define WITH_INDEXER \
    BASE, const __grid_constant__ Indexer indexer, const __grid_constant__ mamba_align_step::Arguments states

KERNEL step_prologue_kernel_vec4(BASE) { prologue<NONE, 4, false>(x, out, n, programs, {}, {}); }
KERNEL step_prologue_kernel_vec1(BASE) { prologue<NONE, 1, false>(x, out, n, programs, {}, {}); }
KERNEL step_prologue_states_kernel_vec4(WITH_STATES) { prologue<NONE, 4, true>(x, out, n, programs, {}, states); }
KERNEL step_prologue_states_kernel_vec1(WITH_STATES) { prologue<NONE, 1, true>(x, out, n, programs, {}, states); }
KERNEL step_prologue_flatten_kernel_vec4(WITH_INDEXER) {
    prologue<FLATTEN, 4, true>(x, out, n, programs, indexer, states);
}
KERNEL step_prologue_flatten_kernel_vec1(WITH_INDEXER) {
    prologue<FLATTEN, 1, true>(x, out, n, programs, indexer, states);
}
KERNEL step_prologue_native_kernel_vec4(WITH_INDEXER) {
    prologue<NATIVE, 4, true>(x, out, n, programs, indexer, states);
}
KERNEL step_prologue_native_kernel_vec1(WITH_INDEXER) {
    prologue<NATIVE, 1, true>(x, out, n, programs, indexer, states);
}
