// mamba_state_gather in one launch for all layers. A request has 2^log_lanes >= slots lanes of one warp; lane j handles its
// slot j of both outputs.
//
// Versions, us on an H200 at B = 128, lengths 4096 to 8192, 40 layers (record full). Predicted: 1.07, the floor:
//
//   as vLLM 0.22: four operators in every layer              160 launches       471
//   the same once per step                                   4 launches         11.7
//   a lane per slot, both outputs                            1 launch           1.33, Triton 1.29
//
// Two loads in sequence, the column of a request and its table entry, where the floor has one. triton.py says what did
// not help.

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS) gather(
    const int* __restrict__ state_indices, const int* __restrict__ scheduled, const int* __restrict__ previous,
    int* __restrict__ input_slots, int* __restrict__ output_slots, int num_reqs, int table_stride, int slots, int log_lanes) {
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    const int b = thread >> log_lanes, j = thread & ((1 << log_lanes) - 1);
    if (b >= num_reqs || j >= slots) return;
    const int* states = state_indices + (long long)b * table_stride + j;
    const int from = previous[b], to = scheduled[b];
    const int read = states[from], written = states[to];
    input_slots[b * slots + j] = read;
    output_slots[b * slots + j] = written;
}
