// decode_flatten in one launch: the kernels. decode_flatten.cuh explains them.

#include "decode_flatten.cuh"

using namespace decode_flatten;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)
#define FROM blockIdx.x, blockIdx.y, gridDim.y, x.seq_lens, x.query_start_loc, x.block_table
#define ARGUMENTS const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, Outputs out

// Where no request of a token is wanted: known to be null when it is compiled.
__device__ __forceinline__ Outputs without_indices(Outputs out) {
    out.indices = out.request_lens = nullptr;
    return out;
}

KERNEL decode_flatten_kernel_vec4(ARGUMENTS) { flatten<4>(FROM, without_indices(out), n); }
KERNEL decode_flatten_kernel_vec1(ARGUMENTS) { flatten<1>(FROM, without_indices(out), n); }

// The same with the request of every token, and a length per request.
KERNEL decode_flatten_index_kernel_vec4(ARGUMENTS) { flatten<4>(FROM, out, n); }
KERNEL decode_flatten_index_kernel_vec1(ARGUMENTS) { flatten<1>(FROM, out, n); }

// The same with lengths before the step and tables by slot, as a step that has not gathered them yet.
KERNEL decode_flatten_slots_kernel_vec4(ARGUMENTS, const long long* idx_mapping) {
    flatten<4, true>(FROM, without_indices(out), n, idx_mapping);
}
KERNEL decode_flatten_slots_kernel_vec1(ARGUMENTS, const long long* idx_mapping) {
    flatten<1, true>(FROM, without_indices(out), n, idx_mapping);
}

// On one of several context-parallel ranks.
#define RANKS ARGUMENTS, const __grid_constant__ dcp_lengths::Local local
KERNEL decode_flatten_ranks_kernel_vec4(RANKS) { flatten<4, false>(FROM, without_indices(out), n, nullptr, local); }
KERNEL decode_flatten_ranks_kernel_vec1(RANKS) { flatten<1, false>(FROM, without_indices(out), n, nullptr, local); }
KERNEL decode_flatten_index_ranks_kernel_vec4(RANKS) { flatten<4, false>(FROM, out, n, nullptr, local); }
KERNEL decode_flatten_index_ranks_kernel_vec1(RANKS) { flatten<1, false>(FROM, out, n, nullptr, local); }
