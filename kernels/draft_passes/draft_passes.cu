// Metadata of a drafter's passes 2 .. k in one launch. triton.py says why one is enough.
//
// blockIdx.y: pass. blockIdx.z: group. blockIdx.x < num_schedulers: THREADS rows of the indexer's schedule; from there
// on a thread per row, up to the R + 1 boundaries. Block: THREADS. enabled: bool.
//
// Versions on an H200, slowest first:
//
//   as vLLM 0.33: two kernels per pass, four with a sparse indexer
//   all passes from the closed form, in one launch
//   groups side by side, loads before branches (in Triton no gain with an indexer)
//   loads in order (CUDA)
//
// Two loads in sequence, slot and length, then the table entry.

#include "dcp_lengths/dcp_lengths.cuh"
#include "load.cuh"
#include "paged_mqa_schedule/paged_mqa_schedule.cuh"

using namespace draft_passes;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

static_assert(THREADS == paged_mqa_schedule::THREADS);

// Lengths in a pass, further tokens ahead of the last kept one; 0 for padding.
struct InPass {
    const int* seq_lens;
    const int* num_rejected;
    int num_reqs, max_model_len, further;

    __device__ __forceinline__ int operator[](int b) const {
        return b < num_reqs ? min(seq_lens[b] - num_rejected[b], max_model_len - further) + further : 0;
    }
};

// Context-parallel ranks, as arguments of a kernel.
struct Ranks {
    static constexpr bool SHARED = true;
    const bool* sharded;
    int* local_seq_lens;
    int size, rank, interleave;
};
struct OneRank {
    static constexpr bool SHARED = false;
};

template <class Of>
__device__ __forceinline__ void
rows_of_pass(int block, const Inputs& x, const Outputs& out, const Sizes& n, const Of& ranks) {
    const int i = blockIdx.y, g = blockIdx.z, b = block * THREADS + threadIdx.x;
    if (i == 0 && g == 0 && b <= n.max_num_seqs) out.query_start_loc[b] = min(b, n.num_reqs);
    if (b >= n.max_num_seqs) return;
    const long long of_pass = (long long)i * n.max_num_seqs + b;
    const bool live = b < n.num_reqs;
    const int size = load_in_order(x.block_sizes + g);
    const long long table_start = load_in_order(x.table_starts + g), width = load_in_order(x.widths + g);
    const bool on = load_in_order(x.enabled + g);
    int kept = 0, length = 0;
    long long slot = -1;
    if (live) {
        const long long s = load_in_order(x.idx_mapping + b);
        kept = load_in_order(x.seq_lens + b) - load_in_order(x.num_rejected + b);
        const int further = n.advance ? i + 1 : 0;
        length = min(kept, n.max_model_len - further) + further;
        int position = length - 1;
        bool is_local = true;
        if constexpr (Of::SHARED) {
            if (ranks.sharded[g]) {
                is_local = position / ranks.interleave % ranks.size == ranks.rank;
                position = position / (ranks.interleave * ranks.size) * ranks.interleave + position % ranks.interleave;
            }
        }
        if (on && is_local) slot = __ldg(x.tables + table_start + s * width + position / size) * size + position % size;
    }
    out.slot_mappings[((long long)i * gridDim.z + g) * n.max_num_seqs + b] = slot;
    if (g > 0) return;
    out.seq_lens[of_pass] = length;
    if constexpr (Of::SHARED) {
        const dcp_lengths::Local local{ranks.size * ranks.interleave, ranks.rank * ranks.interleave, ranks.interleave};
        ranks.local_seq_lens[of_pass] = local(length);
    }
    if (live) {
        out.sample_src_positions[of_pass] = (long long)kept + i + 1;
        out.positions[of_pass] = length - 1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) draft_passes_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    rows_of_pass(blockIdx.x, x, out, n, OneRank());
}

extern "C" __global__ void __launch_bounds__(THREADS) draft_passes_ranks_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    const bool* sharded, int* local_seq_lens, int size, int rank, int interleave) {
    rows_of_pass(blockIdx.x, x, out, n, Ranks{sharded, local_seq_lens, size, rank, interleave});
}

extern "C" __global__ void __launch_bounds__(THREADS) draft_passes_indexer_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    int* schedule) {
    const int block = (int)blockIdx.x - n.num_schedulers, rows = n.schedule.batch_size;
    if (block >= 0) {
        rows_of_pass(block, x, out, n, OneRank());
        return;
    }
    if (blockIdx.z > 0) return;
    const int further = n.advance ? (int)blockIdx.y + 1 : 0;
    const InPass lengths{x.seq_lens, x.num_rejected, n.num_reqs, n.max_model_len, further};
    const paged_mqa_schedule::Requests<InPass> work{lengths, 1, 1};
    int* table = schedule + (long long)blockIdx.y * (n.schedule.num_sms + 1) * 2;
    if (rows <= THREADS) {
        paged_mqa_schedule::schedule<false>(work, table, blockIdx.x, n.schedule);
    } else {
        paged_mqa_schedule::schedule<true>(work, table, blockIdx.x, n.schedule);
    }
}
