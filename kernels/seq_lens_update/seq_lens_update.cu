// seq_lens_update in one launch: counts corrected by what the previous step accepted, lengths, their tail, positions.
//
// A warp per request: its lanes read the same words and write one position each. host is [2 * rows + previous rows]: prev_pos,
// num_computed_cpu, prev_drafts, in device memory or in mapped pinned memory. Requests change rows between steps; before (the
// previous step's counts) and num_computed are two buffers, so blocks need no order.
// Rows [rows, capacity) of seq_lens are zeroed by the first capacity - rows threads of the grid before they load anything.
//
// Grid: max(ceil(rows / 8), ceil((capacity - rows) / THREADS)) blocks of THREADS.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192 (record full). Predicted: 1.19, the floor, without the bus:
//
//   as vLLM 0.22: three small copies and a chain             26 launches        38.8?
//   one packed copy, then this kernel                        copy and launch    14.3?
//   this kernel over mapped memory                           1 launch           4.02?, Triton 3.85?
//   row b loaded with the former row of b, rows kept         1 launch           Triton 2.74? (predicted 2.9)
// The last one is younger than the record. With a copy before it, the Triton kernel took 12. What is left is a read over the bus,
// which no floor of the suite has: all these times are marked (?: the estimators disagree).
// The last version is in triton.py alone. In CUDA C++ it took 50.9?, with volatile loads that kept the compiler from waiting for
// one before it issued the next. Probably lanes then read the bus each for itself; that was not checked.

constexpr int THREADS = 256;

// By slot, before and num_computed may be one array: OLD_AND_NEW is __restrict__ by row alone.
#define PARAMETERS(OLD_AND_NEW)                                                                                       \
    const int *__restrict__ host, const int *OLD_AND_NEW before, const int *__restrict__ valid,                       \
        const int *__restrict__ query_start_loc, int *OLD_AND_NEW num_computed, int *__restrict__ num_accepted,       \
        int *__restrict__ seq_lens, long long *__restrict__ positions, int rows, int capacity
#define ARGUMENTS host, before, valid, query_start_loc, num_computed, num_accepted, seq_lens, positions, rows, capacity

// BY_SLOT: the first rows of host are slots, by which counts are, and drafts are by row.
template <bool BY_SLOT>
__device__ __forceinline__ void update_rows(PARAMETERS()) {
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    const int b = thread >> 5, lane = thread & 31;
    if (thread < capacity - rows) seq_lens[rows + thread] = 0;
    if (b >= rows) return;

    const int p = host[b], believed = host[rows + b];
    const int start = query_start_loc[b], scheduled = query_start_loc[b + 1] - start;
    const int own = BY_SLOT ? p : b;
    int computed = believed;
    if (p >= 0) {
        const int drafts = host[2 * rows + (BY_SLOT ? b : p)], old = before[p], produced = valid[p];
        if (drafts > 0) {
            computed = old + produced;
            if (lane == 0) num_accepted[own] = produced;
        }
    }
    if (BY_SLOT) __syncwarp();  // all lanes have read before[own]
    if (lane == 0) {
        num_computed[own] = computed;
        seq_lens[b] = computed + scheduled;
    }
#pragma unroll 1
    for (int j = lane; j < scheduled; j += 32) positions[start + j] = computed + j;
}

extern "C" __global__ void __launch_bounds__(THREADS) update(PARAMETERS(__restrict__)) { update_rows<false>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) update_slots(PARAMETERS()) { update_rows<true>(ARGUMENTS); }
