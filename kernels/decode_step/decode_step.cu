// All tables of a decode step in one launch, in which no block waits for another.
//
// The schedules seem to depend on the lengths, but all they need of a request is its weight, which follows from seq_lens
// and query_start_loc. So every block works from the step's inputs, and blocks differ only in what they build. The
// schedules come first in the grid, because they are the longest chains of dependent instructions:
//
//   blockIdx.x = 0                      tile schedule, one block for any batch
//   blockIdx.x = 1 .. schedulers - 1    paged-MQA schedule, one block per 256 rows of its table (one on any current GPU)
//   from schedulers on                  flatten: a request and a strip of its table row, or a stretch of the tail to clear
//                                       native: THREADS entries of the (B, L) lengths
//
// The bodies are those of the operators' own kernels. Over flat tokens the paged-MQA schedule uses the weight of a whole
// request (Tokens in paged_mqa_schedule.cuh): a scan over B requests instead of one over T lengths.
//
// Grid: x as above; y = strips for flatten, where the schedulers with y > 0 end at once, else 1. Block: THREADS.

#include "decode_flatten/decode_flatten.cuh"
#include "decode_native/decode_native.cuh"
#include "mla_tile_schedule/mla_tile_schedule.cuh"
#include "paged_mqa_schedule/paged_mqa_schedule.cuh"

constexpr int THREADS = 256;
static_assert(THREADS == decode_flatten::THREADS && THREADS == mla_tile_schedule::THREADS && THREADS == paged_mqa_schedule::THREADS);

#define SCHEDULERS_PARAMETERS                                                                                             \
    const int *__restrict__ seq_lens, const int *__restrict__ query_start_loc, int *__restrict__ table_of_sms,            \
        int *__restrict__ metadata, int *__restrict__ num_splits, int schedulers, int batch_size, int rows_per_thread,    \
        int num_sms, int sms_multiplier, int sms_shift, int back, int num_parts, int overhead, int parts_multiplier,      \
        int parts_shift, int old
#define SCHEDULERS_ARGUMENTS                                                                                              \
    seq_lens, query_start_loc, table_of_sms, metadata, num_splits, schedulers, batch_size, rows_per_thread, num_sms,      \
        sms_multiplier, sms_shift, back, num_parts, overhead, parts_multiplier, parts_shift, old

// The schedulers. work: the weight of a request for the paged-MQA kernel.
template <bool MANY, class Work>
__device__ __forceinline__ void schedule(const Work work, SCHEDULERS_PARAMETERS) {
    if (blockIdx.x == 0) {
        mla_tile_schedule::tile_schedule<MANY>(
            seq_lens, metadata, num_splits, batch_size, num_parts, overhead, parts_multiplier, parts_shift, old);
    } else {
        paged_mqa_schedule::schedule<MANY>(
            work, table_of_sms, blockIdx.x - 1, batch_size, rows_per_thread, num_sms, sms_multiplier, sms_shift, back);
    }
}

#define FLATTEN_PARAMETERS                                                                                                \
    const int *__restrict__ source, int *__restrict__ lens, int *__restrict__ decode_lens, int *__restrict__ table,       \
        int num_tokens, int capacity, int block_size, int columns, int source_stride, int table_stride
#define FLATTEN_ARGUMENTS                                                                                                 \
    source, lens, decode_lens, table, num_tokens, capacity, block_size, columns, source_stride, table_stride

template <int VECTOR, bool MANY>
__device__ __forceinline__ void flatten_step(SCHEDULERS_PARAMETERS, FLATTEN_PARAMETERS) {
    const int b = (int)blockIdx.x - schedulers;
    if (b >= 0) {
        decode_flatten::flatten<VECTOR>(
            seq_lens, query_start_loc, source, lens, decode_lens, table, b, blockIdx.y, gridDim.y, batch_size, num_tokens, capacity,
            block_size, columns, source_stride, table_stride);
    } else if (blockIdx.y == 0) {
        schedule<MANY>(paged_mqa_schedule::Tokens<const int*>{seq_lens, query_start_loc, num_tokens}, SCHEDULERS_ARGUMENTS);
    }
}

// lens: (B, width). decode_lens: rows per request, [B]. atoms: per request.
#define NATIVE_PARAMETERS int *__restrict__ lens, int *__restrict__ decode_lens, int width, int atoms
#define NATIVE_ARGUMENTS lens, decode_lens, width, atoms

template <bool MANY>
__device__ __forceinline__ void native_step(SCHEDULERS_PARAMETERS, NATIVE_PARAMETERS) {
    const int block = (int)blockIdx.x - schedulers;
    if (block < 0) {
        schedule<MANY>(paged_mqa_schedule::Requests<const int*>{seq_lens, 1, atoms}, SCHEDULERS_ARGUMENTS);
        return;
    }
    const int i = block * THREADS + threadIdx.x;
    if (i >= batch_size * width) return;
    const int b = i / width, j = i % width;
    lens[i] = decode_native::context_len(seq_lens[b], width, j, 1);
    if (j == 0) decode_lens[b] = query_start_loc[b + 1] - query_start_loc[b];
}

// one, many: whether a thread of the paged-MQA schedule has one request or several; more than THREADS requests are also
// too many for the short paths of the tile schedule.
#define FLATTEN_KERNEL(NAME, VECTOR, MANY)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(SCHEDULERS_PARAMETERS, FLATTEN_PARAMETERS) {               \
        flatten_step<VECTOR, MANY>(SCHEDULERS_ARGUMENTS, FLATTEN_ARGUMENTS);                                              \
    }
FLATTEN_KERNEL(flatten_vec4_one, 4, false)
FLATTEN_KERNEL(flatten_vec4_many, 4, true)
FLATTEN_KERNEL(flatten_vec1_one, 1, false)
FLATTEN_KERNEL(flatten_vec1_many, 1, true)

#define NATIVE_KERNEL(NAME, MANY)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(SCHEDULERS_PARAMETERS, NATIVE_PARAMETERS) {                \
        native_step<MANY>(SCHEDULERS_ARGUMENTS, NATIVE_ARGUMENTS);                                                        \
    }
NATIVE_KERNEL(native_one, false)
NATIVE_KERNEL(native_many, true)
