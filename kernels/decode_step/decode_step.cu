// All tables of a decode step in one launch, in which no block waits for another.
//
// The schedules seem to depend on the lengths, but all they need of a request is its weight, which follows from
// seq_lens and query_start_loc. So every block works from the step's inputs, and blocks differ only in what they build.
// The schedules come first in the grid, because they are the longest chains of dependent instructions:
//
//   blockIdx.x = 0                          tile schedule, one block for any batch
//   blockIdx.x = 1 .. num_schedulers - 1    paged-MQA schedule, one block per 256 rows of its table
//   from num_schedulers on                  flatten: a request and a strip of its table row, or a part of the tail
//                                           native: THREADS entries of the (B, L) lengths
//
// The bodies are those of the operators' own kernels. Over flat tokens the paged-MQA schedule uses the weight of a
// whole request (Tokens in paged_mqa_schedule.cuh): a scan over B requests instead of one over T lengths.
//
// Grid: x as above; y = strips for flatten, where the schedulers with y > 0 end at once, else 1. Block: THREADS.

#include "decode_step.cuh"

using namespace decode_step;  // Sizes, Inputs, Outputs, Tables, THREADS: declared by cuda.py

using Tokens = paged_mqa_schedule::Tokens<const int*>;

// A single rank, and one of several that share the contexts. lengths: of requests on this rank. work: the weights of
// requests over flat tokens.
struct Single {
    using Lengths = const int*;
    dcp_lengths::Whole local;

    __device__ __forceinline__ Lengths lengths(const int* seq_lens) const { return seq_lens; }
    __device__ __forceinline__ Tokens work(const Inputs& x, int num_tokens) const {
        return {x.seq_lens, x.query_start_loc, num_tokens};
    }
};
struct OneOfSeveral {
    struct Lengths {
        const int* seq_lens;
        dcp_lengths::Local local;

        __device__ __forceinline__ int operator[](int b) const { return local(seq_lens[b]); }
    };
    dcp_lengths::Local local;
    int segment_log2;

    __device__ __forceinline__ Lengths lengths(const int* seq_lens) const { return {seq_lens, local}; }
    __device__ __forceinline__ Tokens work(const Inputs& x, int num_tokens) const {
        return {x.seq_lens, x.query_start_loc, num_tokens, local.first, segment_log2};
    }
};

template <int VECTOR, bool MANY, class Rank = Single>
__device__ __forceinline__ void
flatten_step(const Inputs& x, const Outputs& out, const Sizes& n, const Tables& tables, const Rank& rank = {}) {
    const int b = (int)blockIdx.x - n.num_schedulers;
    if (b >= 0) {
        flatten<VECTOR>(
            b, blockIdx.y, gridDim.y, x.seq_lens, x.query_start_loc, out, tables, nullptr, rank.local);
    } else if (blockIdx.y == 0) {
        schedule<MANY>(rank.lengths(x.seq_lens), rank.work(x, n.schedule.num_queries), out, n);
    }
}

template <bool MANY, class Rank = Single>
__device__ __forceinline__ void native_step(
    const Inputs& x, const Outputs& out, const Sizes& n, const Rank& rank = {}) {
    const int block = (int)blockIdx.x - n.num_schedulers;
    if (block >= 0) {
        native_entry(block * THREADS + threadIdx.x, x.seq_lens, x.query_start_loc, out, n, rank.local);
    } else {
        using Requests = paged_mqa_schedule::Requests<typename Rank::Lengths>;
        const auto lengths = rank.lengths(x.seq_lens);
        schedule<MANY>(lengths, Requests{lengths, 1, n.schedule.factor}, out, n);
    }
}

// one, many: whether a thread of the paged-MQA schedule has one request or several; more than THREADS requests are also
// too many for the short paths of the tile schedule.
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)
// Inputs and tables before outputs, so that loads wait for two cache lines of parameters.
#define READ const __grid_constant__ Sizes n, const __grid_constant__ Inputs x
#define TABLES const __grid_constant__ Tables tables
#define WRITTEN const __grid_constant__ Outputs out

KERNEL decode_step_flatten_one_kernel_vec4(READ, TABLES, WRITTEN) { flatten_step<4, false>(x, out, n, tables); }
KERNEL decode_step_flatten_many_kernel_vec4(READ, TABLES, WRITTEN) { flatten_step<4, true>(x, out, n, tables); }
KERNEL decode_step_flatten_one_kernel_vec1(READ, TABLES, WRITTEN) { flatten_step<1, false>(x, out, n, tables); }
KERNEL decode_step_flatten_many_kernel_vec1(READ, TABLES, WRITTEN) { flatten_step<1, true>(x, out, n, tables); }
KERNEL decode_step_native_one_kernel(READ, WRITTEN) { native_step<false>(x, out, n); }
KERNEL decode_step_native_many_kernel(READ, WRITTEN) { native_step<true>(x, out, n); }

// On one of several context-parallel ranks.
#define RANK const __grid_constant__ OneOfSeveral rank
KERNEL decode_step_flatten_ranks_one_kernel_vec4(READ, TABLES, WRITTEN, RANK) {
    flatten_step<4, false>(x, out, n, tables, rank);
}
KERNEL decode_step_flatten_ranks_many_kernel_vec4(READ, TABLES, WRITTEN, RANK) {
    flatten_step<4, true>(x, out, n, tables, rank);
}
KERNEL decode_step_flatten_ranks_one_kernel_vec1(READ, TABLES, WRITTEN, RANK) {
    flatten_step<1, false>(x, out, n, tables, rank);
}
KERNEL decode_step_flatten_ranks_many_kernel_vec1(READ, TABLES, WRITTEN, RANK) {
    flatten_step<1, true>(x, out, n, tables, rank);
}
KERNEL decode_step_native_ranks_one_kernel(READ, WRITTEN, RANK) { native_step<false>(x, out, n, rank); }
KERNEL decode_step_native_ranks_many_kernel(READ, WRITTEN, RANK) { native_step<true>(x, out, n, rank); }
