// compute_slot_mappings in one launch. A warp per row of the batch: its lanes map 32 tokens at a time. Every thread of the
// grid also clears entries of the tail, from the real number of tokens on, one per pass over the grid.
//
// Grid: x = max(ceil(rows / 4), ceil(capacity / (4 * THREADS))) blocks, y = groups. Block: THREADS.

constexpr int THREADS = 128;

#define PARAMETERS                                                                                                        \
    const long long *__restrict__ idx, const int *__restrict__ query_start_loc, const long long *__restrict__ positions,  \
        const int *__restrict__ tables, const long long *__restrict__ starts, const long long *__restrict__ widths,       \
        const int *__restrict__ block_sizes, const bool *__restrict__ enabled, const bool *__restrict__ sharded,          \
        long long *__restrict__ slots, int rows, int capacity, int ranks, int rank, int interleave
#define ARGUMENTS                                                                                                         \
    idx, query_start_loc, positions, tables, starts, widths, block_sizes, enabled, sharded, slots, rows, capacity, ranks, \
        rank, interleave

template <bool RANKS>
__device__ __forceinline__ void map_rows(PARAMETERS) {
    const int g = blockIdx.y, thread = blockIdx.x * THREADS + threadIdx.x;
    long long* target = slots + (long long)g * capacity;
    for (int t = query_start_loc[rows] + thread; t < capacity; t += gridDim.x * THREADS) target[t] = -1;

    const int b = thread >> 5, lane = thread & 31;
    if (b >= rows) return;
    const int start = query_start_loc[b], end = query_start_loc[b + 1], block_size = block_sizes[g];
    const long long s = idx[b];
    const bool known = s >= 0 && enabled[g], split = RANKS && sharded[g];
    const int* table = tables + starts[g] + s * widths[g];
    for (int t = start + lane; t < end; t += 32) {
        long long slot = -1;
        if (known) {
            int position = (int)positions[t];
            bool mine = true;
            if (split) {
                const int own = position % (block_size * ranks);
                mine = own / interleave % ranks == rank;
                position = position / (block_size * ranks) * block_size + own / (interleave * ranks) * interleave + own % interleave;
            }
            if (mine) slot = table[position / block_size] * block_size + position % block_size;
        }
        target[t] = slot;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) map_one_rank(PARAMETERS) { map_rows<false>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) map_ranks(PARAMETERS) { map_rows<true>(ARGUMENTS); }
