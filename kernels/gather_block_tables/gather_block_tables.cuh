// The body of gather_block_tables; gather_block_tables.cu has the launch, step_prologue another one.
//
// column: thread of the row, which has VECTOR columns in each turn; threads: of a turn.
// VECTOR = 4 needs rows that start and end at multiples of 16 bytes. The first EARLY threads of a row load their columns
// before they know how many are owned: one memory latency less.

#pragma once

#include "load.cuh"

namespace gather_block_tables {

constexpr int EARLY = 128;

template <int VECTOR>
__device__ __forceinline__ void gather(
    int b, int column, int threads, int g, const long long* __restrict__ idx, const int* __restrict__ source,
    const int* __restrict__ num_computed, const long long* __restrict__ starts, const long long* __restrict__ widths,
    const int* __restrict__ block_sizes, const int* __restrict__ reach, const int* __restrict__ num_blocks,
    int* __restrict__ target, int real, int max_num_seqs) {
    int first = column * VECTOR;
    const long long start = load(starts + g), width = load(widths + g);
    int* row = target + start + b * width;
    int end = (int)width, null = 0;
    const int* from = row;
    bool early = false;
    int4 loaded = make_int4(0, 0, 0, 0);
    if (b < real) {
        const long long s = load(idx + b);
        const int window = load(reach + g), block_size = load(block_sizes + g);
        from = source + start + s * width;
        early = VECTOR == 4 && column < EARLY && first < (int)width;
        if (early) loaded = load(reinterpret_cast<const int4*>(from + first));
        const int computed = load(num_computed + s);
        end = load(num_blocks + (long long)g * max_num_seqs + s);
        if (window > 0) null = max(computed - window, 0) / block_size;
    } else {
        null = end;
    }
#pragma unroll 1
    for (; first < end; first += threads * VECTOR, early = false) {
        if (VECTOR == 1) {
            row[first] = first < null ? 0 : from[first];
            continue;
        }
        int4 ids = loaded;
        if (!early) ids = first + 3 >= null ? *reinterpret_cast<const int4*>(from + first) : make_int4(0, 0, 0, 0);
        if (first < null) ids.x = 0;
        if (first + 1 < null) ids.y = 0;
        if (first + 2 < null) ids.z = 0;
        if (first + 3 < null) ids.w = 0;
        if (first + 4 <= end) {
            *reinterpret_cast<int4*>(row + first) = ids;
        } else {
            row[first] = ids.x;
            if (first + 1 < end) row[first + 1] = ids.y;
            if (first + 2 < end) row[first + 2] = ids.z;
        }
    }
}

}  // namespace gather_block_tables
