// The body of gather_block_tables; gather_block_tables.cu has the launch, step_prologue another one.
//
// column: thread of the row, which has VECTOR columns in each turn; threads: of a turn.
// VECTOR = 4 needs rows that start at multiples of 16 bytes. The first
// EARLY threads of a row load their columns before they know how many are owned: one memory latency less.

#pragma once

namespace gather_block_tables {

constexpr int EARLY = 128;

template <int VECTOR>
__device__ __forceinline__ void gather(
    int b, int column, int threads, int g, const long long* __restrict__ idx, const int* __restrict__ source,
    const int* __restrict__ num_computed, const long long* __restrict__ starts, const long long* __restrict__ widths,
    const int* __restrict__ block_sizes, const int* __restrict__ reach, const int* __restrict__ num_blocks,
    int* __restrict__ target, int real, int max_num_seqs) {
    int first = column * VECTOR;
    const long long start = starts[g], width = widths[g];
    int* row = target + start + b * width;
    int end = (int)width, null = 0;
    const int* from = row;
    bool early = false;
    int4 loaded = make_int4(0, 0, 0, 0);
    if (b < real) {
        const long long s = idx[b];
        from = source + start + s * width;
        early = VECTOR == 4 && column < EARLY && first + 4 <= (int)width;
        if (early) loaded = *reinterpret_cast<const int4*>(from + first);
        end = num_blocks[(long long)g * max_num_seqs + s];
        const int window = reach[g];
        if (window > 0) null = max(num_computed[s] - window, 0) / block_sizes[g];
    } else {
        null = end;
    }
#pragma unroll 1
    for (; first < end; first += threads * VECTOR, early = false) {
        if (VECTOR == 4 && first + 4 <= end) {
            int4 ids = make_int4(0, 0, 0, 0);
            if (early) {
                ids = loaded;
                if (first + 3 < null) ids.w = 0;
            } else if (first + 3 >= null) {
                ids = *reinterpret_cast<const int4*>(from + first);
            }
            if (first < null) ids.x = 0;
            if (first + 1 < null) ids.y = 0;
            if (first + 2 < null) ids.z = 0;
            *reinterpret_cast<int4*>(row + first) = ids;
        } else {
            for (int c = first; c < min(first + VECTOR, end); ++c) row[c] = c < null ? 0 : from[c];
        }
    }
}

}  // namespace gather_block_tables
