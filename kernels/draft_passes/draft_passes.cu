// Metadata of a drafter's passes 2 .. k in one launch. triton.py says why one is enough.
//
// blockIdx.y: pass. blockIdx.z: group. blockIdx.x < schedulers: THREADS rows of the indexer's schedule; from there on a
// thread per row, up to the R + 1 boundaries. Block: THREADS. enabled: bool.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192, k = 3 (record whole_step; second column with a sparse indexer, third
// four groups). Predicted: 1.17, 1.21 and 1.22, the floor:
//
//   as vLLM 0.33: two or four kernels per pass               4, 8, 4 launches   7.42   12.5   7.95
//   all passes from the closed form: CUDA                    1 launch           1.89   1.94   2.99
//                                    Triton                  1 launch           2.12   2.36   3.08
//   groups side by side, loads before branches: CUDA         1 launch           1.67   1.75   1.70
//                                               Triton       1 launch           1.61   2.36   1.65
//   loads in order: CUDA                                     1 launch           1.57   1.64   1.59
//
// Two loads in sequence, slot and length, then the table entry.

#include "load.cuh"
#include "paged_mqa_schedule/paged_mqa_schedule.cuh"

constexpr int THREADS = 256;
static_assert(THREADS == paged_mqa_schedule::THREADS);

// Lengths in a pass, further tokens ahead of the last kept one; 0 for padding.
struct InPass {
    const int* seq_lens;
    const int* num_rejected;
    int real, most, further;

    __device__ __forceinline__ int operator[](int b) const {
        return b < real ? min(seq_lens[b] - num_rejected[b], most - further) + further : 0;
    }
};

#define PARAMETERS                                                                                                        \
    const long long *__restrict__ idx, const int *__restrict__ seq_lens, const int *__restrict__ num_rejected,            \
        const int *__restrict__ tables, const long long *__restrict__ table_starts, const long long *__restrict__ widths, \
        const int *__restrict__ block_sizes, const bool *__restrict__ enabled, long long *__restrict__ pos,               \
        int *__restrict__ lens, long long *__restrict__ src, long long *__restrict__ slots, int *__restrict__ starts,     \
        int real, int capacity, int most, int advance

__device__ __forceinline__ void rows_of_pass(int block, PARAMETERS) {
    const int i = blockIdx.y, g = blockIdx.z, b = block * THREADS + threadIdx.x;
    if (i == 0 && g == 0 && b <= capacity) starts[b] = min(b, real);
    if (b >= capacity) return;
    const long long at = (long long)i * capacity + b;
    const bool live = b < real;
    const int further = advance ? i + 1 : 0, size = load_in_order(block_sizes + g);
    const long long table_start = load_in_order(table_starts + g), width = load_in_order(widths + g);
    const bool on = load_in_order(enabled + g);
    int kept = 0, length = 0;
    long long slot = -1;
    if (live) {
        const long long s = load_in_order(idx + b);
        kept = load_in_order(seq_lens + b) - load_in_order(num_rejected + b);
        length = min(kept, most - further) + further;
        const int position = length - 1;
        if (on) slot = tables[table_start + s * width + position / size] * size + position % size;
    }
    slots[((long long)i * gridDim.z + g) * capacity + b] = slot;
    if (g > 0) return;
    lens[at] = length;
    if (live) {
        src[at] = (long long)kept + i + 1;
        pos[at] = length - 1;
    }
}

#define ARGUMENTS                                                                                                         \
    idx, seq_lens, num_rejected, tables, table_starts, widths, block_sizes, enabled, pos, lens, src, slots, starts, real, \
        capacity, most, advance

extern "C" __global__ void __launch_bounds__(THREADS) passes(PARAMETERS) { rows_of_pass(blockIdx.x, ARGUMENTS); }

extern "C" __global__ void __launch_bounds__(THREADS) schedules(
    PARAMETERS, int* __restrict__ schedule, int rows, int schedulers, int num_sms, int multiplier, int shift, int back) {
    const int block = (int)blockIdx.x - schedulers;
    if (block >= 0) {
        rows_of_pass(block, ARGUMENTS);
        return;
    }
    if (blockIdx.z > 0) return;
    const InPass lengths{seq_lens, num_rejected, real, most, advance ? (int)blockIdx.y + 1 : 0};
    const paged_mqa_schedule::Requests<InPass> work{lengths, 1, 1};
    int* table = schedule + (long long)blockIdx.y * (num_sms + 1) * 2;
    if (rows <= THREADS) {
        paged_mqa_schedule::schedule<false>(work, table, blockIdx.x, rows, 1, num_sms, multiplier, shift, back);
    } else {
        paged_mqa_schedule::schedule<true>(
            work, table, blockIdx.x, rows, (rows + THREADS - 1) / THREADS, num_sms, multiplier, shift, back);
    }
}
