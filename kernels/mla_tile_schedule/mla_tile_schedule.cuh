// mla_tile_schedule by one block, straight into the persistent buffers.
//
// Let ends[i] be the cost of requests 0 .. i, one block per 64 tokens and `overhead` each, and stride = ceil(total / P).
// After a part that starts at cost y the next one starts at y + stride, or at the last end in
// [y + stride, y + stride + overhead] if there is one. So the starts are an arithmetic progression that sometimes snaps
// forward, not a chain of P dependent searches:
//
//   1. all threads: costs and their prefix sum
//   2. a thread per part: the last end that its start would reach if nothing snapped (binary search)
//   3. one warp, 32 parts at a time: all lanes look for a snap at once; the first lane that snaps is right, because
//      nothing before it did, and moves itself and all later lanes. As many rounds as stretched parts, plus one
//   4. a thread per part: its row. A team of threads per part: num_splits of the requests it finishes
//
// Block: THREADS. batch_size < MAX_BATCH, num_parts <= MAX_PARTS, overhead <= 64, all costs together below 2^30, where
// multiplier and shift divide by num_parts exactly. Pointers need only the alignment of an int.

#pragma once

namespace mla_tile_schedule {

constexpr int THREADS = 256, WARPS = THREADS / 32, ITEMS = 4, TILE = THREADS * ITEMS;
constexpr int MAX_BATCH = 4096, MAX_PARTS = 512;
constexpr int BLOCK_N = 64, BLOCK_N_LOG2 = 6;
constexpr unsigned ALL = 0xffffffffu, NO_SNAP = 0xffffffffu;
constexpr int SNAP_BITS = 7;  // overhead <= 64
constexpr int NEVER = 0x7fffffff;

// The sum is unsigned: a length may be 2^31 - 1.
__device__ __forceinline__ int blocks_of(int length, bool old) {
    return (max(length, old ? 0 : 1) + (BLOCK_N - 1u)) >> BLOCK_N_LOG2;
}

// Four lengths from `first` on, 0 from the batch on. count: requests from `first` on.
template <class Lens>
__device__ __forceinline__ int4 one_by_one(const Lens seq_lens, int first, int count) {
    int4 s = make_int4(0, 0, 0, 0);
    if (count > 0) s.x = seq_lens[first];
    if (count > 1) s.y = seq_lens[first + 1];
    if (count > 2) s.z = seq_lens[first + 2];
    if (count > 3) s.w = seq_lens[first + 3];
    return s;
}
template <class Lens>
__device__ __forceinline__ int4 four(const Lens seq_lens, int first, int count) {
    return one_by_one(seq_lens, first, count);
}
template <>
__device__ __forceinline__ int4 four(const int* seq_lens, int first, int count) {
    const bool aligned = (reinterpret_cast<unsigned long long>(seq_lens) & 15) == 0;
    return aligned && count >= ITEMS ? *reinterpret_cast<const int4*>(seq_lens + first) : one_by_one(seq_lens, first, count);
}

// Lens: const int*, or what has its operator[].
template <class Lens>
__device__ __forceinline__ void tile_schedule(
    const Lens seq_lens, int* __restrict__ metadata, int* __restrict__ num_splits,
    int batch_size, int num_parts, int overhead, int multiplier, int shift, int old) {
    __shared__ __align__(16) int ends[MAX_BATCH + 4];
    __shared__ int warp_sums[WARPS];
    // begin request, begin block, begin split, parts up to this one that start inside a request
    __shared__ int4 parts[MAX_PARTS + 1];

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int capacity = 1 << (32 - __clz(batch_size - 1));  // power of two; ends holds NEVER from the batch up to here

    int total = 0;
#pragma unroll 1
    for (int tile = 0; tile < capacity; tile += TILE) {
        const int first = tile + threadIdx.x * ITEMS, count = batch_size - first;
        const int4 s = four(seq_lens, first, count);
        // Costs past the batch are never read: their ends are NEVER, and no later thread of the block has a request.
        const int to_x = blocks_of(s.x, old) + overhead;
        const int to_y = to_x + blocks_of(s.y, old) + overhead;
        const int to_z = to_y + blocks_of(s.z, old) + overhead;
        const int to_w = to_z + blocks_of(s.w, old) + overhead;
        const int sum = count >= ITEMS ? to_w : count == 3 ? to_z : count == 2 ? to_y : count == 1 ? to_x : 0;
        int before = sum;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int other = __shfl_up_sync(ALL, before, distance);
            if (lane >= distance) before += other;
        }
        if (lane == 31) warp_sums[warp] = before;
        before += total - sum;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const int other = warp_sums[w];
            if (w < warp) before += other;
            total += other;
        }
        *reinterpret_cast<int4*>(ends + first) = make_int4(
            count > 0 ? before + to_x : NEVER, count > 1 ? before + to_y : NEVER,
            count > 2 ? before + to_z : NEVER, count > 3 ? before + to_w : NEVER);
        if (threadIdx.x == 0) ends[tile + TILE] = NEVER;
        __syncthreads();
    }

    const int stride =
        (int)(((unsigned long long)(unsigned)(total + num_parts - 1) * (unsigned)multiplier) >> shift);

    // How many ends are at or below the reach of part p if nothing snaps. Part 0 starts at cost 0 and never snaps.
    int reached = batch_size;
#pragma unroll 1
    for (int p = threadIdx.x; p < num_parts; p += THREADS) {
        const int reach = p * stride + (p ? overhead : 0);
        int found = 0;
        // Every probe is inside ends: the compiler would compute the address of a guarded load again in each turn.
#pragma unroll 1
        for (int step = capacity >> 1; step; step >>= 1) {
            if (ends[found + step - 1] <= reach) found += step;
        }
        if (ends[found] <= reach) ++found;
        if (p < 32) reached = found;
        parts[p].x = found;
    }
    if (num_parts > 32) __syncthreads();

    if (warp == 0) {
        int base = 0, previous_request = -1, previous_origin = 0, starts_inside = 0;
#pragma unroll 1
        for (int chunk = 0; chunk < num_parts; chunk += 32) {
            const int p = chunk + lane;
            if (chunk) reached = p < num_parts ? parts[p].x : batch_size;
            int slack = p ? overhead : 0;
            int start = base + min(lane, num_parts - chunk) * stride;
            int end = reached ? ends[reached - 1] : 0, next = ends[reached];
#pragma unroll 1
            while (true) {
#pragma unroll 1
                while (next <= start + slack) {
                    end = next;
                    next = ends[++reached];
                }
                const unsigned snap = end > start ? (unsigned)(lane << SNAP_BITS | (end - start)) : NO_SNAP;
                const unsigned first = __reduce_min_sync(ALL, snap);
                if (first == NO_SNAP) break;
                const int snapping = first >> SNAP_BITS;
                if (lane >= snapping) start += first & ((1 << SNAP_BITS) - 1);
                if (lane <= snapping) slack = 0;  // settled: with requests without blocks the next end may be within reach again
            }

            const int block = reached < batch_size ? start - end : 0;
            int before = __shfl_up_sync(ALL, reached, 1);
            if (lane == 0) before = previous_request;
            const unsigned inside = __ballot_sync(ALL, block > 0);
            const unsigned heads = __ballot_sync(ALL, reached != before);
            const unsigned up_to_here = ALL >> (31 - lane);
            // The split index counts from the first part that starts in the request; it is 0 for a part at the request's begin.
            const int head = 31 - __clz(heads & up_to_here);
            const int origin = head < 0 ? previous_origin : chunk + head - (int)(inside >> head & 1);
            if (p < num_parts) {
                parts[p] = make_int4(reached, block, block > 0 ? p - origin : 0, starts_inside + __popc(inside & up_to_here));
            }
            base = __shfl_sync(ALL, start, 31) + stride;
            previous_request = __shfl_sync(ALL, reached, 31);
            previous_origin = __shfl_sync(ALL, origin, 31);
            starts_inside += __popc(inside);
        }
        if (lane == 0) parts[num_parts] = make_int4(batch_size, 0, 0, 0);
    }
    __syncthreads();

#pragma unroll 1
    for (int p = threadIdx.x; p < num_parts; p += THREADS) {
        const int4 begin = parts[p], after = parts[p + 1];
        const bool finished = after.y == 0;
        const int last = after.x - (int)finished;
        const int length = seq_lens[last];
        int4 low, high;
        if (old) {
            low = make_int4(begin.x, begin.y * BLOCK_N, last, finished ? length : after.y * BLOCK_N);
            high = make_int4(begin.z, 0, 0, 0);
        } else {
            const int either = begin.x == last && (begin.y > 0 || !finished);
            const int whole = length > 0 ? blocks_of(length, false) : 0;
            low = make_int4(begin.x, last, begin.y, finished ? whole : after.y);
            high = make_int4(begin.z, either | (begin.y > 0), either | !finished, 0);
        }
        int* row = metadata + p * 8;
        if ((reinterpret_cast<unsigned long long>(metadata) & 15) == 0) {
            reinterpret_cast<int4*>(row)[0] = low;
            reinterpret_cast<int4*>(row)[1] = high;
        } else {
            row[0] = low.x, row[1] = low.y, row[2] = low.z, row[3] = low.w;
            row[4] = high.x, row[5] = high.y, row[6] = high.z;
        }
    }

    // Power of two of at least 8: threads that share the requests of one part.
    const int team_log2 = max(3, __clz(num_parts * 2 - 1) - __clz(THREADS));
    const int member = threadIdx.x & ((1 << team_log2) - 1);
#pragma unroll 1
    for (int p = threadIdx.x >> team_log2; p < num_parts; p += THREADS >> team_log2) {
        const int starts = parts[p].w, until = parts[p + 1].x;
#pragma unroll 1
        for (int i = parts[p].x + member + 1; i <= until; i += 1 << team_log2) num_splits[i] = i + starts;
    }
    if (threadIdx.x == 0) num_splits[0] = 0;
}

}  // namespace mla_tile_schedule
