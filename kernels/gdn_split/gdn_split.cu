// gdn_split in one launch, without a sort. A block counts the speculative requests before its own, and their tokens, from
// the inputs again; a prefix sum over its threads does the rest. A request writes one row of both kinds: its own, and one
// of those behind the last request of the other kind, of which there are just as many. Grid: x = blocks of requests, y =
// strips that share long rows.
#include "load.cuh"

using namespace gdn_split;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

namespace {

constexpr unsigned ALL = 0xffffffffu;
constexpr int WARPS = THREADS / 32;

// Speculative requests in the upper half, their tokens in the lower one.
__device__ __forceinline__ long long counted(int drafts, int tokens) { return drafts < 0 ? 0 : (1ll << 32) + tokens; }

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) gdn_split_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    __shared__ long long of_warps[WARPS], of_earlier[WARPS];
    const int lanes = 1 << n.log2_lanes, lane = threadIdx.x & (lanes - 1), first = blockIdx.x * (THREADS >> n.log2_lanes);
    const int b = first + (threadIdx.x >> n.log2_lanes);
    const bool inside = b < n.batch_size, writes = inside && blockIdx.y == 0;
    int drafts = -1, start = 0, tokens = 0, accepted = 1, length = 0;
    if (inside) {
        drafts = load(x.num_draft_tokens + b), start = load(x.query_start_loc + b);
        tokens = load(x.query_start_loc + b + 1) - start;
    }
    if (writes && lane == 0) accepted = load(x.num_accepted_tokens + b), length = load(x.seq_lens + b);

    long long earlier = 0;
    for (int i = threadIdx.x; i < first; i += THREADS)
        earlier += counted(load(x.num_draft_tokens + i), load(x.query_start_loc + i + 1) - load(x.query_start_loc + i));
    const long long own = counted(drafts, tokens);
    long long through = lane == 0 ? own : 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        earlier += __shfl_xor_sync(ALL, earlier, distance);
        const long long before = __shfl_up_sync(ALL, through, distance);
        if ((threadIdx.x & 31) >= distance) through += before;
    }
    const int warp = threadIdx.x >> 5;
    if ((threadIdx.x & 31) == 31) of_warps[warp] = through, of_earlier[warp] = earlier;
    __syncthreads();
    through -= own;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) through += of_earlier[i] + (i < warp ? of_warps[i] : 0);
    if (!inside) return;

    const bool spec = drafts >= 0;
    const int before = (int)(through >> 32), tokens_before = (int)through;
    if (writes) {
        const int of_spec = spec ? before : x.num_spec_requests + b - before;
        const int of_plain = spec ? n.batch_size - x.num_spec_requests + before : b - before;
        const int* slots = x.block_table + (long long)b * n.stride;
        for (int j = lane; j < n.next_n; j += lanes)
            out.spec_state_slots[of_spec * n.next_n + j] = spec ? load(slots + j) : 0;
        if (lane == 0) {
            out.spec_mask[b] = spec;
            out.spec_accepted[of_spec] = spec ? accepted : 1;
            out.spec_query_start_loc[of_spec + 1] = spec ? tokens_before + tokens : x.num_spec_tokens;
            out.plain_state_slots[of_plain] = spec ? 0 : load(slots);
            out.has_initial_state[of_plain] = !spec && length > tokens;
            out.plain_query_start_loc[of_plain + 1] =
                spec ? x.num_tokens - x.num_spec_tokens : start - tokens_before + tokens;
            if (b == 0) out.spec_query_start_loc[0] = out.plain_query_start_loc[0] = 0;
        }
    }
    int* const list = spec ? out.spec_tokens + tokens_before : out.plain_tokens + start - tokens_before;
#pragma unroll 1
    for (int j = blockIdx.y * lanes + lane; j < tokens; j += gridDim.y * lanes) list[j] = start + j;
}
