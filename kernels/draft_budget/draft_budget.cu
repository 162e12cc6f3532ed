// draft_budget in one launch of one block, which sorts nothing.
//
//   1. A thread multiplies the confidences of a row. The bits of p, as p >= 0, are integers in the same order; they go to
//      shared memory, or are made anew whenever they are needed where the batch has more than KEPT drafts.
//   2. The least admitted p is found two bits at a time: each of up to 15 turns counts the drafts at or above three
//      candidates, with one barrier. It ends early where as many as the budget are at or above one of them.
//   3. By SGLang's rule, ties are admitted draft by draft: another search finds how many of the first drafts have room.
//   4. One prefix sum over the rows, of what is surely admitted, of ties and of other tokens. Ties fill up in the order
//      of the rows, so the prefix sum of those admitted is the smaller of that of all of them and the room.
//
// Any batch is legal; the block makes it slow for those of many thousands of drafts.

using namespace draft_budget;  // Sizes, Inputs, Outputs, MOST_WARPS, KEPT: declared by cuda.py

#include "load.cuh"

namespace {

constexpr unsigned ALL = 0xffffffffu;
constexpr float LEAST_SURVIVAL = 1e-6f;  // SGLang's survival_eps
constexpr int AT_ONCE = 8;               // confidences of a row in flight

struct Sums {
    int a, b, c;

    __device__ __forceinline__ Sums operator+(const Sums& other) const { return {a + other.a, b + other.b, c + other.c}; }
};

__device__ __forceinline__ Sums of_warp(const Sums& mine) {
    return {__reduce_add_sync(ALL, mine.a), __reduce_add_sync(ALL, mine.b), __reduce_add_sync(ALL, mine.c)};
}

// Sums of the threads of a block, for all of them. Every call has one barrier and the other half of the memory.
struct Block {
    Sums (&warps)[2][MOST_WARPS];
    int half = 0;

    __device__ __forceinline__ Sums exchanged(const Sums& mine, bool writes) {
        if (writes) warps[half][threadIdx.x >> 5] = mine;
        __syncthreads();
        const int lane = threadIdx.x & 31;
        const Sums of_lane = lane < blockDim.x >> 5 ? warps[half][lane] : Sums{};
        half ^= 1;
        return of_lane;
    }
    __device__ __forceinline__ Sums total(const Sums& mine) {
        return of_warp(exchanged(of_warp(mine), (threadIdx.x & 31) == 0));
    }
    // Sums up to the thread's own; all: of the block.
    __device__ __forceinline__ Sums through(Sums mine, Sums& all) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const Sums other = {__shfl_up_sync(ALL, mine.a, distance), __shfl_up_sync(ALL, mine.b, distance),
                                __shfl_up_sync(ALL, mine.c, distance)};
            if (lane >= distance) mine = mine + other;
        }
        const Sums of_lane = exchanged(mine, lane == 31);
        all = of_warp(of_lane);
        return mine + of_warp(lane < warp ? of_lane : Sums{});
    }
};

// visit(i, bits) of the first `drafts` drafts of a row; bits: of p, -1 where there is no draft that may be admitted.
template <bool SCHEDULED, class Visit>
__device__ __forceinline__ void multiplied(int b, int drafts, const Inputs& x, const Sizes& n, Visit visit) {
    long long row = b;
    int scheduled = n.k;
    if constexpr (SCHEDULED) row = load(x.idx_mapping + b), scheduled = load(x.num_drafts + b);
    const float* confidence = x.confidence + row * n.k;
    float survival = 1;
#pragma unroll 1
    for (int first = 0; first < drafts; first += AT_ONCE) {
        float next[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) next[j] = first + j < drafts ? __ldg(confidence + first + j) : 1.0f;
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            survival *= next[j];
            const bool there = first + j < scheduled && (SCHEDULED || survival >= LEAST_SURVIVAL);
            if (first + j < drafts) visit(first + j, there ? __float_as_int(survival) : -1);
        }
    }
}

template <bool SCHEDULED>
struct Drafts {
    const Inputs& x;
    const Sizes& n;
    const int* kept;  // of draft i of row b at i * num_rows + b; null where they are not kept

    // visit(i, bits) of a row.
    template <class Visit>
    __device__ __forceinline__ void of_row(int b, Visit visit) const {
        if (kept) {
            for (int i = 0; i < n.k; ++i) visit(i, kept[i * n.num_rows + b]);
        } else {
            multiplied<SCHEDULED>(b, n.k, x, n, visit);
        }
    }
    // visit(bits) of the first `drafts` drafts of all rows, each by one thread.
    template <class Visit>
    __device__ __forceinline__ void all(int drafts, Visit visit) const {
        if (kept) {
            for (int j = threadIdx.x; j < drafts * n.num_rows; j += blockDim.x) visit(kept[j]);
        } else {
            for (int b = threadIdx.x; b < n.num_rows; b += blockDim.x)
                multiplied<SCHEDULED>(b, drafts, x, n, [&](int, int bits) { visit(bits); });
        }
    }
};

// The bits of the least admitted p, or fewer where as many as the budget are at or above them.
template <class All>
__device__ __forceinline__ int least_admitted(const All& drafts, Block& block, int budget, const Sizes& n) {
    int least = n.least;
#pragma unroll 1
    for (int turn = 0; turn < n.turns; ++turn) {
        const int step = 1 << (28 - 2 * turn);
        Sums at_least = {};
        drafts.all(n.k, [&](int bits) {
            at_least.a += bits >= least + step;
            at_least.b += bits >= least + 2 * step;
            at_least.c += bits >= least + 3 * step;
        });
        at_least = block.total(at_least);
        const int enough = (at_least.a >= budget) + (at_least.b >= budget) + (at_least.c >= budget);
        least += enough * step;
        if (enough && (enough == 1 ? at_least.a : enough == 2 ? at_least.b : at_least.c) == budget) return least;
    }
    return least;
}

// SGLang's padding rows share the rest of the tokens.
__device__ __forceinline__ void pad(int used, const Inputs& x, const Outputs& out, const Sizes& n) {
    const int count = n.batch_size - n.num_rows, rest = x.num_tokens - used;
    const int longer = rest % count, brief = min(rest / count, n.longest), extended = min(rest / count + 1, n.longest);
    for (int j = threadIdx.x; j < count; j += blockDim.x) {
        out.verify_lens[n.num_rows + j] = j < longer ? extended : brief;
        out.query_start_loc[n.num_rows + j + 1] = used + (j + 1) * brief + min(j + 1, longer) * (extended - brief);
    }
}

template <bool SCHEDULED>
__device__ __forceinline__ void allot(const Sizes& n, const Inputs& x, const Outputs& out) {
    __shared__ int kept[KEPT];
    __shared__ Sums of_warps[2][MOST_WARPS];
    Block block = {of_warps};
    const int rows = n.num_rows, own = threadIdx.x, budget = x.draft_budget;
    const bool keeps = rows * n.k <= KEPT;
    int early = 1;  // other tokens of the thread's first row, which may come over the bus
    if constexpr (SCHEDULED) {
        if (own < rows) early = load(x.non_draft_tokens + own);
    }
    if (keeps) {
        for (int b = own; b < rows; b += blockDim.x)
            multiplied<SCHEDULED>(b, n.k, x, n, [&](int i, int bits) { kept[i * rows + b] = bits; });
        __syncthreads();
    }
    if constexpr (SCHEDULED) {
        for (int b = rows + own; b < n.max_num_seqs; b += blockDim.x) out.query_start_loc[b + 1] = x.num_tokens;
        if (own == 0) out.cu_num_logits[0] = 0;
    }
    if (own == 0) out.query_start_loc[0] = 0;

    const Drafts<SCHEDULED> drafts = {x, n, keeps ? kept : nullptr};
    const int least = least_admitted(drafts, block, budget, n);
    Sums found = {};
    drafts.all(n.k, [&](int bits) {
        found.a += bits > least;
        found.b += bits == least;
    });
    found = block.total(found);
    int room = budget - found.a, last = 0;
    if constexpr (!SCHEDULED) {
        int held = 0, high = n.k;
        if (found.b <= room) last = high, held = found.b;
        while (last < high) {
            const int middle = (last + high + 1) / 2;
            Sums ties = {};
            drafts.all(middle, [&](int bits) { ties.a += bits == least; });
            ties = block.total(ties);
            if (ties.a <= room) last = middle, held = ties.a;
            else high = middle - 1;
        }
        room -= held;
    }

    Sums before = {};  // a: surely admitted, b: ties, c: other tokens
    for (int first = 0; first < rows; first += blockDim.x) {
        const int b = first + own;
        const bool inside = b < rows;
        Sums mine = {};
        if (inside) {
            drafts.of_row(b, [&](int i, int bits) {
                mine.a += bits > least || (!SCHEDULED && bits == least && i < last);
                mine.b += bits == least && (SCHEDULED || i == last);
            });
            mine.c = early;
            if constexpr (SCHEDULED) {
                if (first > 0) mine.c = load(x.non_draft_tokens + b);
            }
        }
        Sums all;
        const Sums through = before + block.through(mine, all);
        before = before + all;
        if (!inside) continue;
        const int admitted = mine.a + min(max(room - through.b + mine.b, 0), mine.b);
        const int all_drafts = through.a + min(through.b, room);
        int end = all_drafts + through.c;
        if constexpr (SCHEDULED) {
            out.num_drafts[b] = admitted;
            out.cu_num_logits[b + 1] = all_drafts + b + 1;
        } else {
            int length = 1 + admitted;
            if (b == n.batch_size - 1) {  // the last row, without padding rows
                const int start = end - length;
                length = min(x.num_tokens - start, n.longest);
                end = start + length;
            }
            out.verify_lens[b] = length;
        }
        out.query_start_loc[b + 1] = end;
    }
    if constexpr (!SCHEDULED) {
        if (rows < n.batch_size) pad(before.a + min(before.b, room) + before.c, x, out, n);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS) draft_budget_vllm_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    allot<true>(n, x, out);
}

extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS) draft_budget_sglang_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    allot<false>(n, x, out);
}
