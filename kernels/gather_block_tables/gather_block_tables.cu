// gather_block_tables in one launch for all groups. A block per row and strip of THREADS * VECTOR columns; strips behind
// the owned blocks end at once. VECTOR = 4 needs rows that start at multiples of 16 bytes.
//
// num_blocks is in device memory or in mapped pinned memory.
// Grid: rows to write, strips, groups. Block: THREADS.

constexpr int THREADS = 128;

#define PARAMETERS                                                                                                        \
    const long long *__restrict__ idx, const int *__restrict__ source, const int *__restrict__ num_computed,              \
        const long long *__restrict__ starts, const long long *__restrict__ widths, const int *__restrict__ block_sizes,  \
        const int *__restrict__ reach, const int *__restrict__ num_blocks, int *__restrict__ target, int real,            \
        int max_num_seqs
#define ARGUMENTS                                                                                                         \
    idx, source, num_computed, starts, widths, block_sizes, reach, num_blocks, target, real, max_num_seqs

template <int VECTOR>
__device__ __forceinline__ void gather(PARAMETERS) {
    const int b = blockIdx.x, g = blockIdx.z, first = (blockIdx.y * THREADS + threadIdx.x) * VECTOR;
    const long long start = starts[g], width = widths[g];
    int* row = target + start + b * width;
    int end = (int)width, null = 0;
    const int* from = row;
    if (b < real) {
        const long long s = idx[b];
        end = num_blocks[(long long)g * max_num_seqs + s];
        const int window = reach[g];
        if (window > 0) null = max(num_computed[s] - window, 0) / block_sizes[g];
        from = source + start + s * width;
    } else {
        null = end;
    }
    if (first >= end) return;
    if (VECTOR == 4 && first + 4 <= end) {
        int4 ids = make_int4(0, 0, 0, 0);
        if (first + 3 >= null) ids = *reinterpret_cast<const int4*>(from + first);
        if (first < null) ids.x = 0;
        if (first + 1 < null) ids.y = 0;
        if (first + 2 < null) ids.z = 0;
        *reinterpret_cast<int4*>(row + first) = ids;
        return;
    }
    for (int c = first; c < min(first + VECTOR, end); ++c) row[c] = c < null ? 0 : from[c];
}

extern "C" __global__ void __launch_bounds__(THREADS) gather_vec4(PARAMETERS) { gather<4>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) gather_vec1(PARAMETERS) { gather<1>(ARGUMENTS); }
