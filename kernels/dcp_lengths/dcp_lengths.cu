// dcp_lengths in one launch, a thread per row of the buffer. Lengths are never negative: unsigned division is shorter.
#include "load.cuh"

using namespace dcp_lengths;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) dcp_lengths_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    const int b = blockIdx.x * THREADS + threadIdx.x;
    if (b >= n.max_num_seqs) return;
    int local = 0;
    if (b < n.num_reqs) {
        const unsigned length = load(x.seq_lens + b), rounds = length / n.round;
        const int left = (int)(length - rounds * n.round) - n.first;
        local = (int)(rounds * n.interleave) + min(max(left, 0), n.interleave);
    }
    out.local_seq_lens[b] = local;
}
