// mamba_state_gather in one launch for all layers. A request has 2^log_lanes >= slots lanes of one warp; lane j handles
// its slot j of both outputs.
//
// Versions on an H200, slowest first: four operators in every layer, as vLLM 0.22; the same once per step; a lane per
// slot, both outputs. Two loads in sequence, the column of a request and its table entry, where the copy bound has one.
// triton.py says what did not help.

using namespace mamba_state_gather;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) mamba_state_gather_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out,
    int table_stride) {
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    const int b = thread >> n.log_lanes, j = thread & ((1 << n.log_lanes) - 1);
    if (b >= n.num_reqs_padded || j >= n.slots) return;
    const int* states = x.state_indices + (long long)b * table_stride + j;
    const int from = __ldg(x.block_idx_last_scheduled_token_prev_step + b);
    const int to = __ldg(x.block_idx_last_scheduled_token + b);
    const int read = __ldg(states + from), written = __ldg(states + to);
    out.input_slots[b * n.slots + j] = read;
    out.output_slots[b * n.slots + j] = written;
}
