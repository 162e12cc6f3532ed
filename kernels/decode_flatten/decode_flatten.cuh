// decode_flatten in one launch, for uniform, ragged, request-padded and token-padded batches.
//
// Request-major: a block belongs to one request and one strip of table columns. It reads query_start_loc[b], [b + 1]
// and seq_lens[b] directly, so no token searches for its request, and it reads a strip of the source row once for all
// decode_len destination rows of the request. The first strip is loaded before the lengths have arrived: one memory
// latency instead of two. Strips past the used blocks end at once. The blocks with b >= batch_size clear [A, capacity):
// token padding and the stale tail of a larger step.
//
// Versions on an H200 at B = 128, slowest first:
//
//   unrolled loops                                            the first version: 640 instructions
//   compact loops                                             180 instructions. At launches this short, instruction
//                                                             fetches and integer divisions show
//   all loads of a block in flight, requests on the x axis    the two-dimensional grid saves a division
//
// Tried, all slower: blocks of 64 or 32 threads; 16 tail entries per thread; no early load of the table.
// Nsight Compute: stalls for loads from global memory come first, half as many for instruction fetches, then constants.
// What is left above the copy bound (one block that loads and stores): the destination address waits for
// query_start_loc, and blocks, tail and rows grow with B.
//
// Grid: x = batch_size + columns of tail blocks, y = strips (x has room for 2^31 requests, y for 65,535). Block:
// THREADS. b: blockIdx.x minus the blocks of the caller that come before. VECTOR: ints per access; with 4, columns,
// capacity and both row strides are multiples of 4 and source, table and lens are 16-byte aligned.

#pragma once

#include "dcp_lengths/dcp_lengths.cuh"

namespace decode_flatten {  // Sizes, Outputs, THREADS: declared by cuda.py

template <int VECTOR>
struct Access;
template <>
struct Access<4> {
    using Type = int4;
    static __device__ int4 zero() { return make_int4(0, 0, 0, 0); }
};
template <>
struct Access<1> {
    using Type = int;
    static __device__ int zero() { return 0; }
};

// BY_SLOT: idx_mapping holds the slot of each request (-1: none), block_table is by slot, and seq_lens are the lengths
// before the step, by slot. strip, strips: blockIdx.y and gridDim.y of the grid above.
// local: what of a length lies on this rank.
template <int VECTOR, bool BY_SLOT = false, class Local = dcp_lengths::Whole>
__device__ __forceinline__ void flatten(
    int b, int strip, int strips, const int* seq_lens, const int* query_start_loc, const int* block_table,
    const Outputs& out, const Sizes& n, const long long* idx_mapping = nullptr, const Local& local = {}) {
    using Entries = typename Access<VECTOR>::Type;
    if (b < n.num_reqs) {
        const long long owner = BY_SLOT ? max(__ldg(idx_mapping + b), 0ll) : b;
        const int* row = block_table + owner * n.source_stride;
        int column = (strip * THREADS + threadIdx.x) * VECTOR;
        Entries entries;
        const bool early = strip == 0 && column < n.columns;
        if (early) entries = __ldg(reinterpret_cast<const Entries*>(row + column));

        const int start = __ldg(query_start_loc + b), end = __ldg(query_start_loc + b + 1);
        const int seq_len = __ldg(seq_lens + owner) + (BY_SLOT ? end - start : 0);
        // Rows past T would be out of bounds; a legal batch has none. No early exit for padding requests: the compiler
        // would wait for these two loads before it issues the load of seq_len. Without rows the loops below end at
        // once.
        const int rows = min(end, n.num_tokens) - start;
        if (strip == 0) {
#pragma unroll 1
            for (int j = threadIdx.x; j < rows; j += THREADS) {
                out.lens[start + j] = local(max(seq_len - (end - start) + j + 1, 0));
                out.decode_lens[start + j] = 1;
                if (out.indices) out.indices[start + j] = b;
            }
            if (out.request_lens && threadIdx.x == 0) out.request_lens[b] = seq_len;
        }
        const int held = local(seq_len);  // by the last token, and so by all of a request
        int* first_row = out.block_table + (long long)start * n.table_stride;
        // column * block_size < seq_len is column < ceil(seq_len / block_size) without a division.
        bool loaded = early;
#pragma unroll 1
        for (; column < n.columns && column * n.block_size < held;
             column += strips * THREADS * VECTOR, loaded = false) {
            if (!loaded) entries = __ldg(reinterpret_cast<const Entries*>(row + column));
            int* target = first_row + column;
#pragma unroll 1
            for (int j = 0; j < rows; ++j, target += n.table_stride) *reinterpret_cast<Entries*>(target) = entries;
        }
        return;
    }

    const int actual = __ldg(query_start_loc + n.num_reqs);
    const int begin = (((b - n.num_reqs) * strips + strip) * THREADS + threadIdx.x) * VECTOR;
    if (begin >= actual && begin >= n.num_tokens && begin + VECTOR <= n.max_num_batched_tokens) {
        *reinterpret_cast<Entries*>(out.lens + begin) = Access<VECTOR>::zero();
        return;
    }
#pragma unroll 1
    for (int t = max(begin, actual); t < min(begin + VECTOR, n.max_num_batched_tokens); ++t) {
        out.lens[t] = 0;
        if (t < n.num_tokens) {
            out.decode_lens[t] = 1;
            out.block_table[(long long)t * n.table_stride] = 0;
            if (out.indices) out.indices[t] = n.num_reqs + t - actual;
        }
    }
}

}  // namespace decode_flatten
