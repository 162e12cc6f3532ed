// paged_mqa_schedule by one block per 256 rows of the table, straight into the persistent one; any batch in 4 KB of
// shared memory.
//
//   1. A warp scans the units of 32 or 128 consecutive requests, a thread holds those of one or four, 32 apart, so that
//      neighbours load neighbours. Beyond a batch of 1024 a thread adds up rows_per_thread consecutive requests first.
//      The prefixes and the warp's total go to shared memory. Then the only barrier.
//   2. Every thread adds up the warp totals in registers. It owns a row of the table: it finds the warp in registers,
//      the prefix by a binary search in shared memory, and beyond a batch of 1024 the request and atom from the lengths
//      of that thread, read again (they are in L1).
//
// A search looks for the last prefix that is not beyond the row's first unit. Prefixes exclude their own entry. So the
// entry found holds the unit, a request without units is never found, and the prefix found is what to subtract.
//
// (1024 is this operator's own launch; kernels that contain the schedule have one request per thread up to 256.)
//
// Instruction fetches show in launches this short. Up to 1024 requests have kernels without loops over the requests of
// a thread, and the grid has a block per 256 rows of the table (one on any current GPU) instead of a loop over rows,
// which the compiler writes out twice. There are fewer than 2^30 units; multiplier and shift replace a division by
// num_sms.
//
// Versions on an H200 at B = 1024, slowest first:
//
//   a thread adds up four consecutive requests, and searches their lengths again
//   1,024 threads with a request each: faster where rows differ in length
//   a thread holds four requests, 32 apart
//
// Totals of warps by shuffles instead of in registers: slower.
#pragma once

namespace paged_mqa_schedule {  // Sizes, THREADS: declared by cuda.py

constexpr int WARPS = THREADS / 32;
constexpr int LOADS = 4;  // in flight per thread where it has many requests

// Segments of 2^log2 tokens. Negative lengths have none. The sum is unsigned: a length may be 2^31 - 1.
__device__ __forceinline__ int segments(int length, int log2 = 8) {
    return (max(length, 0) + ((1u << log2) - 1)) >> log2;
}

// The weight of a request: its segments, once for each of `atoms` query atoms. lens: the last column of the lengths,
// rows row_stride apart. Lens: const int*, or what has its operator[].
template <class Lens>
struct Requests {
    Lens lens;
    int row_stride, atoms;

    __device__ __forceinline__ int factor() const { return atoms; }
    __device__ __forceinline__ int end(int batch_size) const { return batch_size * atoms; }
    __device__ __forceinline__ int weight(int row) const { return segments(lens[row * row_stride]); }

    // Weights of row .. row + LOADS - 1, 0 from `end` on; all loads before the first use.
    __device__ __forceinline__ void weights(int (&weight)[LOADS], int row, int end) const {
        int length[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; ++k) length[k] = row + k < end ? lens[(row + k) * row_stride] : 0;
#pragma unroll
        for (int k = 0; k < LOADS; ++k) weight[k] = segments(length[k]);
    }

    // The query that holds a unit of a request, and the unit's segment in it.
    __device__ __forceinline__ int query(int request, int weight, int& segment) const {
        int query = request * atoms;
#pragma unroll 1
        for (int atom = 1; atom < atoms && segment >= weight; ++atom) {
            segment -= weight;
            ++query;
        }
        return query;
    }
};

// The weight of a request of a flattened batch: the segments of its tokens, each a query with its own length.
// It has a closed form, so no token is visited and no flattened length is read. Token padding has no segments.
//
// On one of CP context-parallel ranks, whose interleave divides 256, the first token lies behind `first` others, and
// the k-th segment begins k * 256 CP tokens later. So a local length has as many segments of 256 tokens as the whole
// length less `first` has of 2^log2 = 256 CP.
template <class Lens>
struct Tokens {
    Lens seq_lens;
    const int* query_start_loc;
    int num_tokens;
    int first = 0, log2 = 8;

    __device__ __forceinline__ int factor() const { return 1; }
    __device__ __forceinline__ int end(int) const { return num_tokens; }

    // Segments of the lengths 1 .. length together, modulo 2^32: S = 2^log2 lengths have k segments, for each k up to
    // length / S; the rest have one more.
    __device__ __forceinline__ unsigned up_to(int length) const {
        const unsigned whole = length >> log2, rest = length & ((1 << log2) - 1);
        return (whole + 1) * ((1 << (log2 - 1)) * whole + rest);
    }
    __device__ __forceinline__ int of(int seq_len, int rows) const {
        const int last = max(seq_len - first, 0);
        return up_to(last) - up_to(max(last - rows, 0));
    }
    __device__ __forceinline__ int weight(int row) const {
        return of(seq_lens[row], query_start_loc[row + 1] - query_start_loc[row]);
    }

    __device__ __forceinline__ void weights(int (&weight)[LOADS], int row, int end) const {
        int seq_len[LOADS], start[LOADS + 1];
#pragma unroll
        for (int k = 0; k < LOADS; ++k) seq_len[k] = row + k < end ? seq_lens[row + k] : 0;
#pragma unroll
        for (int k = 0; k <= LOADS; ++k) start[k] = query_start_loc[min(row + k, end)];
#pragma unroll
        for (int k = 0; k < LOADS; ++k) weight[k] = of(seq_len[k], start[k + 1] - start[k]);
    }

    // Ends at the request's last token at the latest, because the unit is one of the request's.
    __device__ __forceinline__ int query(int request, int, int& segment) const {
        int query = query_start_loc[request];
        int length = seq_lens[request] - first - (query_start_loc[request + 1] - query) + 1;
#pragma unroll 1
        for (int width = segments(length, log2); segment >= width; width = segments(++length, log2)) {
            segment -= width;
            ++query;
        }
        return query;
    }
};

// The weight of a token whose request is a run of at most `longest` equal ids: the segments of the run's last token, so
// that a run counts once per token. Equal ids are side by side, so the run's ends are a token's equal neighbours.
struct Runs {
    const int* lens;
    const int* ids;
    int tokens, longest;

    __device__ __forceinline__ int factor() const { return 1; }
    __device__ __forceinline__ int end(int) const { return tokens; }
    __device__ __forceinline__ int last(int token) const {
        const int id = ids[token];
        int last = token;
        for (int next = token + 1; next < min(token + longest, tokens); ++next) last += ids[next] == id;
        return last;
    }
    __device__ __forceinline__ int weight(int token) const { return segments(lens[last(token)]); }

    __device__ __forceinline__ void weights(int (&weight)[LOADS], int token, int end) const {
#pragma unroll
        for (int k = 0; k < LOADS; ++k) weight[k] = token + k < end ? this->weight(token + k) : 0;
    }

    // All tokens of the run take a segment together.
    __device__ __forceinline__ int query(int token, int, int& segment) const {
        const int id = ids[token], end = last(token);
        int first = token;
        for (int previous = max(token - longest + 1, 0); previous < token; ++previous) first -= ids[previous] == id;
        segment = (segment + (token - first) * segments(lens[end])) / (end + 1 - first);
        return first;
    }
};

// ITEMS: requests of a thread; with MANY, which has one item per thread, an item is rows_per_thread requests.
// table: int32 (num_sms + 1, 2). block: which THREADS rows of it.
template <bool MANY, int ITEMS = 1, class Work>
__device__ __forceinline__ void schedule(const Work work, int* table, int block, const Sizes& n) {
    const int batch_size = n.batch_size, num_sms = n.num_sms, rows_per_thread = (batch_size + THREADS - 1) / THREADS;
    __shared__ int item_start[THREADS * ITEMS];  // units before an item, counted from the first of its warp
    __shared__ __align__(16) int warp_total[WARPS];
    const int thread = threadIdx.x, lane = thread & 31, first = (thread >> 5) * 32 * ITEMS + lane;

    int units[ITEMS] = {};
    if (MANY) {
        const int end = min((thread + 1) * rows_per_thread, batch_size);
#pragma unroll 1
        for (int row = thread * rows_per_thread; row < end; row += LOADS) {
            int count[LOADS];
            work.weights(count, row, end);
#pragma unroll
            for (int k = 0; k < LOADS; ++k) units[0] += count[k];
        }
    } else {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) units[i] = first + 32 * i < batch_size ? work.weight(first + 32 * i) : 0;
    }
    int inclusive[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) inclusive[i] = units[i] *= work.factor();
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int below = __shfl_up_sync(~0u, inclusive[i], distance);
            if (lane >= distance) inclusive[i] += below;
        }
    }
    int before_items = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        item_start[first + 32 * i] = before_items + inclusive[i] - units[i];
        before_items += i < ITEMS - 1 ? __shfl_sync(~0u, inclusive[i], 31) : inclusive[i];
    }
    if (lane == 31) warp_total[thread >> 5] = before_items;
    __syncthreads();

    int warp_start[WARPS], total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        warp_start[w] = total;
        total += warp_total[w];
    }
    const int share = (int)((unsigned long long)total * n.multiplier >> n.shift);
    const int rest = total - share * num_sms;
    const int shorter = n.is_back ? num_sms - rest : 0;  // SMs before the first that gets a unit more
    const int sm = block * THREADS + thread;
    if (sm > num_sms) return;
    const int start = sm * share + min(max(sm - shorter, 0), rest);
    int query = work.end(batch_size), segment = 0;
    if (start < total) {
        int owner = 0, before = 0;
#pragma unroll
        for (int w = 1; w < WARPS; ++w) {
            if (warp_start[w] <= start) {
                owner = w * 32 * ITEMS;
                before = warp_start[w];
            }
        }
        segment = start - before;
        before = 0;
#pragma unroll
        for (int step = 16 * ITEMS; step > 0; step /= 2) {
            const int candidate = item_start[owner + step];
            if (candidate <= segment) {
                owner += step;
                before = candidate;
            }
        }
        segment -= before;

        int request = owner, width = 0;
        if (MANY) {
            request = owner * rows_per_thread;
            const int end = min(request + rows_per_thread, batch_size);
            bool here = false;
#pragma unroll 1
            for (int row = request; row < end && !here; row += LOADS) {
                int count[LOADS];
                work.weights(count, row, end);
#pragma unroll
                for (int k = 0; k < LOADS; ++k) {
                    if (here) continue;
                    width = count[k];
                    here = segment < width * work.factor();
                    if (!here) {
                        segment -= width * work.factor();
                        ++request;
                    }
                }
            }
        } else if (work.factor() > 1) {
            width = work.weight(request);
        }
        query = work.query(request, width, segment);
    }
    table[2 * sm] = query;
    table[2 * sm + 1] = segment;
}

}  // namespace paged_mqa_schedule
