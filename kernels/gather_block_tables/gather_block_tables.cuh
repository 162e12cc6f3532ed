// The body of gather_block_tables; gather_block_tables.cu has the launch, step_prologue another one.
//
// column: thread of the row, which has VECTOR columns in each turn; threads: of a turn.
// VECTOR = 4 needs rows that start and end at multiples of 16 bytes. The first EARLY threads of a row load their
// columns before they know how many are owned: one memory latency less.
// BY_TOKEN: rows by slot have an entry per token, 2^shift of them in a block; the first one names it.

#pragma once

#include "load.cuh"

namespace gather_block_tables {

constexpr int EARLY = 128;

// The entries that name four blocks, those from column first on.
__device__ __forceinline__ int4 spread(const int* from, int first, int shift) {
    const int* entry = from + ((long long)first << shift);
    const long long step = 1ll << shift;
    return make_int4(load(entry), load(entry + step), load(entry + 2 * step), load(entry + 3 * step));
}

template <int VECTOR, bool BY_TOKEN = false, class In, class Out, class N>
__device__ __forceinline__ void gather(
    int b, int column, int threads, int g, const In& x, const Out& out, const N& n) {
    int first = column * VECTOR;
    const long long start = load(x.starts + g), width = load(x.widths + g);
    int* row = out.block_tables + start + b * width;
    int end = (int)width, null = 0, shift = 0;
    const int* from = row;
    bool early = false;
    int4 loaded = make_int4(0, 0, 0, 0);
    if (b < n.num_reqs) {
        const long long s = load(x.idx_mapping + b);
        const int window = load(x.reach + g), block_size = load(x.block_sizes + g);
        if (BY_TOKEN) shift = __ffs(block_size) - 1;
        from = x.tables + start + (s * width << shift);
        early = VECTOR == 4 && column < EARLY && first < (int)width;
        if (early) loaded = BY_TOKEN ? spread(from, first, shift) : load(reinterpret_cast<const int4*>(from + first));
        const int computed = load(x.num_computed_tokens + s);
        end = load(x.num_blocks + (long long)g * n.max_num_seqs + s);
        if (window > 0) null = max(computed - window, 0) / block_size;
    } else {
        null = end;
    }
#pragma unroll 1
    for (; first < end; first += threads * VECTOR, early = false) {
        if (VECTOR == 1) {
            row[first] = first < null ? 0 : __ldg(from + ((long long)first << shift)) >> shift;
            continue;
        }
        int4 ids = loaded;
        if (!early)
            ids = first + 3 >= null ? BY_TOKEN ? spread(from, first, shift)
                                               : __ldg(reinterpret_cast<const int4*>(from + first))
                                    : make_int4(0, 0, 0, 0);
        if (BY_TOKEN) ids = make_int4(ids.x >> shift, ids.y >> shift, ids.z >> shift, ids.w >> shift);
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
