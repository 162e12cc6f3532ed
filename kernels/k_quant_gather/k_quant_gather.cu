// k_quant_gather in one launch: values and scales of a prefill chunk, from cache blocks into contiguous workspaces.
//
// Units. The work is cut along requests, not along the workspace: a unit is 2^unit_shift consecutive tokens of one
// request, aligned to the request's start. It never leaves its cache block, so it is two contiguous copies with one
// table entry. Request b owns the units from first_unit(b) = (cu_seq_lens[b] >> unit_shift) + b up to first_unit(b +
// 1): at least ceil(length / 2^unit_shift) of them, at most one more. first_unit grows strictly, so one search among B
// + 1 numbers finds the owner of a unit without a prefix sum over the requests' units. Empty requests and slack need no
// special case.
//
// A warp takes a unit. It searches 32 candidates per step with one load and one ballot: one memory latency for B <= 31,
// two for B <= 1023. Then it loads the table entry, then the values, eight 16-byte loads per thread in flight before
// the first store. The loads take the whole unit and only the stores stop at the request's last token: the rest of the
// unit lies in the same block, and eight loads under eight predicates would not be issued together, because a thread
// has seven predicate registers. No shared memory, no barrier.
//
// Grid: ceil(((num_tokens >> unit_shift) + num_reqs) / warps). Block: a multiple of 32 threads, at most THREADS.
// Vector, Word: the types that values and scales are copied in. uint4 needs cache, block stride and values 16-byte
// aligned.

constexpr int THREADS = 128;
constexpr unsigned ALL_LANES = 0xffffffffu;
// Loads of a thread in flight.
constexpr int IN_FLIGHT = 8;

using namespace k_quant_gather;  // Sizes, Inputs, Outputs, WARP: declared by cuda.py

// The cache and the workspaces are not __restrict__: with it the compiler moves loads down to their stores to save
// registers, and only three of the eight stay in flight.
template <typename Vector, typename Word>
__device__ __forceinline__ void gather(const Inputs& x, const Outputs& out, const Sizes& n) {
    const int block_shift = n.block_shift, unit_shift = n.unit_shift;
    const int head_dim = n.head_dim, scale_bytes = n.scale_bytes;
    const int lane = threadIdx.x % WARP;
    const int unit = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;

    // The last b with first_unit(b) <= unit; it lies in [first, first + span).
    int first = 0, span = n.num_reqs + 1;
#pragma unroll 1
    do {
        span = (span + WARP - 1) >> 5;
        const int b = first + lane * span;
        const int tokens_before = __ldg(x.cu_seq_lens + min(b, n.num_reqs));
        const bool reached = (b <= n.num_reqs) & ((tokens_before >> unit_shift) + b <= unit);
        first += (__popc(__ballot_sync(ALL_LANES, reached)) - 1) * span;
    } while (span > 1);
    const int request = first;
    const int start = __ldg(x.cu_seq_lens + request), next = __ldg(x.cu_seq_lens + min(request + 1, n.num_reqs));

    // A legal batch has no token past num_tokens; an illegal one must not write past the workspace.
    const int position = (unit - request - (start >> unit_shift)) << unit_shift;
    const int tokens = min(min(next, n.num_tokens) - start - position, 1 << unit_shift);
    // Idle unit: the request ended before it, or there is none (request = B, next = start). Its table entry may hold
    // anything.
    if (tokens <= 0) return;

    const int block = __ldg(x.block_table + (long long)request * n.table_stride + (position >> block_shift));
    const unsigned char* page = x.kv_cache + (long long)block * n.block_stride;
    const int offset = position & ((1 << block_shift) - 1);
    const Vector* from = reinterpret_cast<const Vector*>(page + offset * head_dim) + lane;
    const Word* scales_from = reinterpret_cast<const Word*>(page + (head_dim << block_shift) + offset * scale_bytes);
    Vector* to = reinterpret_cast<Vector*>(out.k + (long long)(start + position) * head_dim) + lane;
    Word* scales_to = reinterpret_cast<Word*>(out.scale + (long long)(start + position) * scale_bytes);
    // Unsigned, so that the division is a shift. Counted from this thread's first vector.
    const int vectors = (int)((unsigned)(tokens * head_dim) / sizeof(Vector)) - lane;
    const int whole_unit = (int)(((unsigned)head_dim << unit_shift) / sizeof(Vector));
    const int words = (int)((unsigned)(tokens * scale_bytes) / sizeof(Word));

    // Usually the thread's only scale: 32 tokens have 32.
    Word word{};
    if (lane < words) word = scales_from[lane];
    int v = 0;
#pragma unroll 1
    for (; v + WARP * IN_FLIGHT <= whole_unit; v += WARP * IN_FLIGHT) {
        Vector values[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i) values[i] = from[v + i * WARP];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i) {
            if (v + i * WARP < vectors) to[v + i * WARP] = values[i];
        }
    }
    // The rest of a unit that is smaller than WARP_BYTES because its block is.
#pragma unroll 1
    for (; v < vectors; v += WARP) to[v] = from[v];
    if (lane < words) scales_to[lane] = word;
#pragma unroll 1
    for (int w = lane + WARP; w < words; w += WARP) scales_to[w] = scales_from[w];
}

// Without __grid_constant__, with which NVRTC takes more registers and the kernel is slower.
extern "C" __global__ void __launch_bounds__(THREADS) k_quant_gather_kernel_vec16(
    const Sizes n, const Inputs x, const Outputs out) {
    gather<uint4, unsigned>(x, out, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) k_quant_gather_kernel_vec1(
    const Sizes n, const Inputs x, const Outputs out) {
    gather<unsigned char, unsigned char>(x, out, n);
}
