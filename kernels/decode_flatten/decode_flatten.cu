// decode_flatten in one launch: the kernels. decode_flatten.cuh explains them.

#include "decode_flatten.cuh"

// __restrict__ is needed on the kernel's own parameters: without it the compiler sinks the early load below the exit.
#define PARAMETERS                                                                                                    \
    const int *__restrict__ seq_lens, const int *__restrict__ query_start_loc, const int *__restrict__ source,        \
        int *__restrict__ lens, int *__restrict__ decode_lens, int *__restrict__ table, int batch_size,               \
        int num_tokens, int capacity, int block_size, int columns, int source_stride, int table_stride
#define ARGUMENTS                                                                                                     \
    seq_lens, query_start_loc, source, lens, decode_lens, table, blockIdx.x, blockIdx.y, gridDim.y, batch_size,       \
        num_tokens, capacity, block_size, columns, source_stride, table_stride

extern "C" __global__ void __launch_bounds__(decode_flatten::THREADS) flatten_vec4(PARAMETERS) { decode_flatten::flatten<4>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(decode_flatten::THREADS) flatten_vec1(PARAMETERS) { decode_flatten::flatten<1>(ARGUMENTS); }

// The same with the request of every token, and a length per request.
extern "C" __global__ void __launch_bounds__(decode_flatten::THREADS)
    index_vec4(PARAMETERS, int* __restrict__ indices, int* __restrict__ request_lens) {
    decode_flatten::flatten<4>(ARGUMENTS, nullptr, indices, request_lens);
}
extern "C" __global__ void __launch_bounds__(decode_flatten::THREADS)
    index_vec1(PARAMETERS, int* __restrict__ indices, int* __restrict__ request_lens) {
    decode_flatten::flatten<1>(ARGUMENTS, nullptr, indices, request_lens);
}

// The same with lengths before the step and tables by slot, as a step that has not gathered them yet.
extern "C" __global__ void __launch_bounds__(decode_flatten::THREADS)
    slots_vec4(PARAMETERS, const long long* __restrict__ idx) {
    decode_flatten::flatten<4, true>(ARGUMENTS, idx);
}
extern "C" __global__ void __launch_bounds__(decode_flatten::THREADS)
    slots_vec1(PARAMETERS, const long long* __restrict__ idx) {
    decode_flatten::flatten<1, true>(ARGUMENTS, idx);
}
