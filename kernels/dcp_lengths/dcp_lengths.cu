// dcp_lengths in one launch, a thread per row of the buffer.
#include "dcp_lengths.cuh"
#include "load.cuh"

using namespace dcp_lengths;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) dcp_lengths_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    const int b = blockIdx.x * THREADS + threadIdx.x;
    if (b >= n.max_num_seqs) return;
    const Local local{n.round, n.first, n.interleave};
    out.local_seq_lens[b] = b < n.num_reqs ? local(load(x.seq_lens + b)) : 0;
}
