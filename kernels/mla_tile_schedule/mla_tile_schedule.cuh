// mla_tile_schedule by one block, straight into the persistent buffers.
//
// Let ends[i] be the cost of requests 0 .. i, one block per 64 tokens and `overhead` each, and stride = ceil(total /
// P). After a part that starts at cost y the next one starts at y + stride, or at the last end in [y + stride, y +
// stride + overhead] if there is one. So the starts are an arithmetic progression that sometimes snaps forward, not a
// chain of P dependent searches:
//
//   1. all threads: costs and their prefix sum
//   2. a thread per part: the last end that its start would reach if nothing snapped (binary search)
//   3. one warp, 32 parts at a time: all lanes look for a snap at once; the first lane that snaps is right, because
//      nothing before it did, and moves itself and all later lanes. As many rounds as stretched parts, plus one
//   4. a thread per part: its row. A team of threads per part: num_splits of the requests it finishes
//
// For few requests and parts a single warp does 1 to 3 in registers (small_schedule): one barrier instead of three or
// more. Where many of more than 32 parts are stretched, a round for each takes too long: they are found by doubling
// (jump_schedule). On an H200 with 132 parts that takes 3.8 to 5.6 us where rounds take 3.2 (128 and 256 requests of 60
// tokens, few stretched) to 12.8 (64 of them, nearly all). Kernels for more than THREADS requests are compiled without
// both, which makes them smaller.
//
// Versions on an H200 at B = 128, slowest first: eight warps, rounds; one warp for few parts, doubling for many; the
// same with ends by pairs.
//
// Nsight Compute, one warp: the seven that only write wait at the barrier, and behind it instruction fetches come
// first; no stall on memory is near. Before, with eight warps: barriers.
//
// Block: THREADS. batch_size < MAX_BATCH, num_parts <= MAX_PARTS, overhead <= MAX_OVERHEAD, all costs together below
// 2^30, where multiplier and shift divide by num_parts exactly. Pointers need only the alignment of an int.

#pragma once

namespace mla_tile_schedule {  // Sizes, THREADS: declared by cuda.py

constexpr int WARPS = THREADS / 32, ITEMS = 4, TILE = THREADS * ITEMS;
constexpr int MAX_BATCH = 4096, MAX_PARTS = 512;
constexpr int BLOCK_N = 64, BLOCK_N_LOG2 = 6;
constexpr int MAX_OVERHEAD = 64;
constexpr unsigned ALL = 0xffffffffu;  // lanes
constexpr int NO_END = 0x7fffffff;     // behind the last request
// Batches and parts that one warp schedules, and those whose stretched parts are found by doubling.
constexpr int SMALL_BATCH = 128, SMALL_PARTS = 32, JUMP_BATCH = THREADS, JUMP_PARTS = THREADS;

// A part that snaps, and how far its start moves: the lower bits. Of several the least is that of the first lane.
struct Snap {
    static constexpr int DISTANCE_BITS = 7;
    static constexpr unsigned NONE = 0xffffffffu;
    unsigned packed;

    static __device__ Snap of(int lane, int distance) { return {(unsigned)(lane << DISTANCE_BITS | distance)}; }
    __device__ bool exists() const { return packed != NONE; }
    __device__ int lane() const { return packed >> DISTANCE_BITS; }
    __device__ int distance() const { return packed & ((1 << DISTANCE_BITS) - 1); }
};
static_assert(MAX_OVERHEAD < 1 << Snap::DISTANCE_BITS, "a part snaps by at most the overhead");

// From the end before a request, where a stretched part starts, to the next such place: how many parts later (upper
// bits), and the request that follows it (lower bits).
struct Jump {
    static constexpr int REQUEST_BITS = 16;
    static constexpr unsigned REQUESTS = (1u << REQUEST_BITS) - 1;
    static constexpr unsigned FAR = 0x3fff;  // parts; more than there are
    unsigned packed;

    static __device__ Jump of(unsigned parts, int request) { return {parts << REQUEST_BITS | request}; }
    static __device__ Jump to_end(int batch_size) { return of(FAR, batch_size); }  // no later part is stretched
    static __device__ Jump unpack(int packed) { return {(unsigned)packed}; }
    __device__ unsigned parts() const { return packed >> REQUEST_BITS; }
    __device__ int request() const { return packed & REQUESTS; }
    __device__ Jump then(Jump next) const { return of(min(parts() + next.parts(), FAR), next.request()); }
};
static_assert(JUMP_BATCH <= Jump::REQUESTS, "a request or the end of the batch fits the lower bits");
static_assert(JUMP_PARTS <= 1 << 8 && TILE + ITEMS + 8 * (JUMP_BATCH + 1) <= MAX_BATCH + 4, "8 levels behind ends");
static_assert(JUMP_PARTS <= Jump::FAR && 2 * Jump::FAR < 1u << (32 - Jump::REQUEST_BITS), "two jumps fit");

// A jump that is looked for, with the complement of the request: of several the least has the fewest parts, and among
// these it leads furthest.
struct Candidate {
    static constexpr unsigned NONE = 0xffffffffu;
    unsigned packed;

    static __device__ Candidate of(unsigned parts, int request) {
        return {parts << Jump::REQUEST_BITS | (Jump::REQUESTS - request)};
    }
    __device__ bool exists() const { return packed != NONE; }
    __device__ int request() const { return ~packed & Jump::REQUESTS; }
    __device__ Jump jump() const { return {packed ^ Jump::REQUESTS}; }
};

template <class Packed>
__device__ __forceinline__ Packed least_of_warp(Packed mine) {
    return {__reduce_min_sync(ALL, mine.packed)};
}

// Costs of four requests, summed up one after another.
struct PrefixOf4 {
    int4 ends;
    int count, sum;
};

// The sum is unsigned: a length may be 2^31 - 1.
__device__ __forceinline__ int blocks_of(int length, bool old) {
    return (max(length, old ? 0 : 1) + (BLOCK_N - 1u)) >> BLOCK_N_LOG2;
}

// Four lengths from `first` on, 0 from the batch on. count: requests from `first` on. Lens: const int*, or what
// has its operator[].
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
__device__ __forceinline__ int4 four_lens(const Lens seq_lens, int first, int count) {
    return one_by_one(seq_lens, first, count);
}
template <>
__device__ __forceinline__ int4 four_lens(const int* seq_lens, int first, int count) {
    const bool aligned = (reinterpret_cast<unsigned long long>(seq_lens) & 15) == 0;
    if (aligned && count >= ITEMS) return *reinterpret_cast<const int4*>(seq_lens + first);
    return one_by_one(seq_lens, first, count);
}

// Of the requests from `first` on; a length past the batch counts as 0.
template <class Lens>
__device__ __forceinline__ PrefixOf4 four_costs(
    const Lens seq_lens, int first, int batch_size, int overhead, bool old) {
    const int count = batch_size - first;
    const int4 s = four_lens(seq_lens, first, count);
    // Costs past the batch are never read: their ends are NO_END, and no later thread of the block has a request.
    PrefixOf4 four;
    four.count = count;
    four.ends.x = blocks_of(s.x, old) + overhead;
    four.ends.y = four.ends.x + blocks_of(s.y, old) + overhead;
    four.ends.z = four.ends.y + blocks_of(s.z, old) + overhead;
    four.ends.w = four.ends.z + blocks_of(s.w, old) + overhead;
    four.sum = count >= ITEMS ? four.ends.w
               : count == 3 ? four.ends.z
               : count == 2 ? four.ends.y
               : count == 1 ? four.ends.x
                            : 0;
    return four;
}

// The ends of four requests; NO_END past the batch.
__device__ __forceinline__ int4 absolute(const PrefixOf4& four, int before) {
    return make_int4(
        four.count > 0 ? before + four.ends.x : NO_END, four.count > 1 ? before + four.ends.y : NO_END,
        four.count > 2 ? before + four.ends.z : NO_END, four.count > 3 ? before + four.ends.w : NO_END);
}

__device__ __forceinline__ int inclusive_scan(int value, int lane) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(ALL, value, distance);
        if (lane >= distance) value += other;
    }
    return value;
}

// Parts look for a snap at once; the first lane that snaps is right, and moves itself and all later lanes.
__device__ __forceinline__ void resolve(
    const int* ends, int lane, int slack, int& start, int& reached, int& end, int next) {
#pragma unroll 1
    while (true) {
#pragma unroll 1
        while (next <= start + slack) {
            end = next;
            next = ends[++reached];
        }
        const Snap snap = end > start ? Snap::of(lane, end - start) : Snap{Snap::NONE};
        const Snap first = least_of_warp(snap);
        if (!first.exists()) break;
        const int snapping = first.lane();
        if (lane >= snapping) start += first.distance();
        // Resolved: with requests without blocks the next end may be within reach again.
        if (lane <= snapping) slack = 0;
    }
}

// A row. begin: request, block and split index at which the part starts; after: request and block at which the next
// does.
template <class Lens>
__device__ __forceinline__ void write_row(
    const Lens seq_lens, int* __restrict__ metadata, int p, int request, int block, int split, int after_request,
    int after_block, bool old) {
    const bool finished = after_block == 0;
    const int last = after_request - (int)finished;
    const int length = seq_lens[last];
    int4 low, high;
    if (old) {
        low = make_int4(request, block * BLOCK_N, last, finished ? length : after_block * BLOCK_N);
        high = make_int4(split, 0, 0, 0);
    } else {
        const int either = request == last && (block > 0 || !finished);
        const int whole = length > 0 ? blocks_of(length, false) : 0;
        low = make_int4(request, last, block, finished ? whole : after_block);
        high = make_int4(split, either | (block > 0), either | !finished, 0);
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

// Up to 128 requests and 32 parts: four requests and one part per lane of the first warp, everything in registers but
// the ends. The other warps wait for the only barrier, then write num_splits while the first writes the rows.
template <class Lens>
__device__ __forceinline__ void small_schedule(
    const Lens seq_lens, int* __restrict__ metadata, int* __restrict__ num_splits,
    int batch_size, int num_parts, int overhead, int multiplier, int shift, bool old, int* ends, int4* parts) {
    const int lane = threadIdx.x & 31;
    int reached = 0, block = 0, split = 0;
    if (threadIdx.x < 32) {
        const PrefixOf4 four = four_costs(seq_lens, lane * ITEMS, batch_size, overhead, old);
        const int inclusive = inclusive_scan(four.sum, lane);
        const int total = __shfl_sync(ALL, inclusive, 31);
        const int4 mine = absolute(four, inclusive - four.sum);
        *reinterpret_cast<int4*>(ends + lane * ITEMS) = mine;
        if (lane == 0)
            *reinterpret_cast<int4*>(ends + SMALL_BATCH) = make_int4(NO_END, NO_END, NO_END, NO_END);
        __syncwarp();
        const int stride =
            (int)(((unsigned long long)(unsigned)(total + num_parts - 1) * (unsigned)multiplier) >> shift);
        const int slack = lane ? overhead : 0;
        int start = min(lane, num_parts) * stride;

        // The lane that holds the first end beyond reach, by shuffles; then the place among its four.
        int row = 0;
#pragma unroll
        for (int step = 16; step; step >>= 1) {
            if (__shfl_sync(ALL, mine.w, row + step - 1) <= start + slack) row += step;
        }
        if (__shfl_sync(ALL, mine.w, row) <= start + slack) ++row;
        const int4 here = *reinterpret_cast<const int4*>(ends + row * ITEMS);
        const int reach = start + slack, earlier = row ? ends[row * ITEMS - 1] : 0;
        const bool x = here.x <= reach, y = here.y <= reach, z = here.z <= reach;
        int end = z ? here.z : y ? here.y : x ? here.x : earlier;
        const int next = z ? here.w : y ? here.z : x ? here.y : here.x;
        reached = row * ITEMS + x + y + z;
        resolve(ends, lane, slack, start, reached, end, next);

        block = reached < batch_size ? start - end : 0;
        const int before = __shfl_up_sync(ALL, reached, 1);
        const unsigned inside = __ballot_sync(ALL, block > 0);
        const unsigned heads = __ballot_sync(ALL, lane == 0 || reached != before);
        const unsigned up_to_here = ALL >> (31 - lane);
        const int head = 31 - __clz(heads & up_to_here);
        split = block > 0 ? lane - head + (int)(inside >> head & 1) : 0;
        parts[lane] = make_int4(reached, __popc(inside & up_to_here), 0, 0);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const int later_request = __shfl_down_sync(ALL, reached, 1), later_block = __shfl_down_sync(ALL, block, 1);
        const bool last = lane == num_parts - 1;
        if (lane < num_parts) {
            write_row(
                seq_lens, metadata, lane, reached, block, split,
                last ? batch_size : later_request, last ? 0 : later_block, old);
        }
        if (lane == 0) num_splits[0] = 0;
        return;
    }
    // 128 threads: a power of two of them shares the requests of a part.
    const int thread = threadIdx.x - 32, team_log2 = __clz(num_parts * 2 - 1) - __clz(128);
    const int p = thread >> team_log2;
    if (p >= num_parts) return;
    const int starts = parts[p].y, until = p == num_parts - 1 ? batch_size : parts[p + 1].x;
#pragma unroll 1
    for (int i = parts[p].x + (thread & ((1 << team_log2) - 1)) + 1; i <= until; i += 1 << team_log2)
        num_splits[i] = i + starts;
}

// How many ends are at or below `reach`. capacity: power of two; ends holds NO_END from the batch up to there.
__device__ __forceinline__ int ends_within(const int* ends, int capacity, int reach) {
    int found = 0;
    // Every probe is inside ends: the compiler would compute the address of a guarded load again in each turn.
#pragma unroll 1
    for (int step = capacity >> 1; step; step >>= 1) {
        if (ends[found + step - 1] <= reach) found += step;
    }
    return ends[found] <= reach ? found + 1 : found;
}

// A part that starts at the end before request `from` is followed by the first part that reaches ends[to]: the k-th,
// which would start at most `overhead` before it. It is stretched to it unless it would start behind it. The least
// candidate is the next stretched part and the last end that it reaches: k grows with `to`. parts_per_cost: 2^32 /
// stride or little less, so that the quotient is at most one too small.
__device__ __forceinline__ Candidate stretched_by(
    const int* ends, int from, int to, int batch_size, int num_parts, int overhead, int stride,
    unsigned parts_per_cost) {
    const unsigned distance = ends[to] - (from ? ends[from - 1] : 0);
    const unsigned n = max((int)distance - overhead, 1) + stride - 1u;
    unsigned k = __umulhi(n, parts_per_cost), place = k * stride;
    if (n - place >= (unsigned)stride) {
        ++k;
        place += stride;
    }
    const bool is_stretched = to < batch_size && place <= distance && k < (unsigned)num_parts;
    return is_stretched ? Candidate::of(k, to + 1) : Candidate{Candidate::NONE};
}

// Where so many parts are stretched that rounds take too long. A stretched part starts exactly at an end, and what
// follows depends on that end alone: `jumps` leads from each end to that of the next stretched part, and doubled, to
// the 2nd, 4th, 8th ... next. A thread per part descends from the first request. jumps: 8 levels of batch_size + 1
// entries.
__device__ __forceinline__ void jump_schedule(
    const int* ends, int* jumps, int4* parts, int2* carries, int batch_size, int num_parts, int overhead, int stride,
    int capacity) {
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, levels = 32 - __clz(num_parts - 1);
    const int width = batch_size + 1;
    // A warp per end: each lane looks at one of the ends that follow, and at the first part that reaches it.
    const unsigned parts_per_cost = (unsigned)__fdividef(4294965248.0f, (float)stride);
    const auto stretch = [&](int from, int to) {
        return stretched_by(ends, from, to, batch_size, num_parts, overhead, stride, parts_per_cost);
    };
#pragma unroll 1
    for (int first = warp * ITEMS; first < batch_size; first += WARPS * ITEMS) {
        Candidate best[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) best[i] = stretch(first + i, first + i + lane);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) best[i] = least_of_warp(best[i]);
        Candidate mine{Candidate::NONE};
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) mine = lane == i ? best[i] : mine;
        // Rare: none of 32 ends is reached, or the last of them is.
        const int further = first + lane + 32;
        const bool reaches = !mine.exists() || mine.request() == further;
        unsigned open = __ballot_sync(ALL, lane < ITEMS && further < batch_size && reaches);
#pragma unroll 1
        for (; open; open &= open - 1) {
            const int i = __ffs(open) - 1;
            // Unpacked by hand: with Candidate::request() here NVRTC makes other code of all that follows, for sm_90.
            unsigned least = Candidate::NONE;
#pragma unroll 1
            for (int next = first + i;
                 next < batch_size && (least == Candidate::NONE || (int)(~least & Jump::REQUESTS) == next); next += 32)
                least = min(least, least_of_warp(stretch(first + i, next + lane)).packed);
            if (lane == i) mine = {least};
        }
        if (lane < ITEMS && first + lane < batch_size)
            jumps[first + lane] = (mine.exists() ? mine.jump() : Jump::to_end(batch_size)).packed;
    }
    if (thread < levels) jumps[thread * width + batch_size] = Jump::to_end(batch_size).packed;
    __syncthreads();
    Jump jump = thread < batch_size ? Jump::unpack(jumps[thread]) : Jump::to_end(batch_size);
#pragma unroll 1
    for (int level = 1; level < levels; ++level) {
        if (thread < batch_size) {
            jump = jump.then(Jump::unpack(jumps[(level - 1) * width + jump.request()]));
            jumps[level * width + thread] = jump.packed;
        }
        __syncthreads();
    }

    int reached = batch_size, block = 0;
    if (thread < num_parts) {
        int from = 0, at = 0;
#pragma unroll 1
        for (int level = levels - 1; level >= 0; --level) {
            const Jump next = Jump::unpack(jumps[level * width + from]);
            if (at + (int)next.parts() <= thread) {
                at += next.parts();
                from = next.request();
            }
        }
        const int start = (from ? ends[from - 1] : 0) + (thread - at) * stride;
        reached = ends_within(ends, capacity, start);
        block = reached < batch_size ? start - (reached ? ends[reached - 1] : 0) : 0;
        parts[thread].x = reached;
    }
    __syncthreads();
    const int before = thread && thread < num_parts ? parts[thread - 1].x : -1;
    const unsigned inside = __ballot_sync(ALL, block > 0);
    const unsigned heads = __ballot_sync(ALL, reached != before);
    const unsigned up_to_here = ALL >> (31 - lane);
    const int head = 31 - __clz(heads & up_to_here);
    int origin = head < 0 ? -1 : warp * 32 + head - (int)(inside >> head & 1);
    if (lane == 31) carries[warp] = make_int2(__popc(inside), origin);
    __syncthreads();
    int starts = __popc(inside & up_to_here), carried = -1;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        if (w < warp) {
            starts += carries[w].x;
            carried = max(carried, carries[w].y);
        }
    }
    if (origin < 0) origin = carried;
    if (thread < num_parts) parts[thread] = make_int4(reached, block, block > 0 ? thread - origin : 0, starts);
    if (thread == 0) parts[num_parts] = make_int4(batch_size, 0, 0, 0);
    __syncthreads();
}

// MANY: compiled for more than THREADS requests only.
template <bool MANY, class Lens>
__device__ __forceinline__ void tile_schedule(const Lens seq_lens, int* metadata, int* num_splits, const Sizes& n) {
    const int batch_size = n.batch_size, num_parts = n.num_parts, overhead = n.overhead, multiplier = n.multiplier;
    const int shift = n.shift, old = n.is_old;
    __shared__ __align__(16) int ends[MAX_BATCH + 4];
    __shared__ int warp_sums[WARPS];
    // begin request, begin block, begin split, parts up to this one that start inside a request
    __shared__ int4 parts[MAX_PARTS + 1];
    __shared__ int2 carries[WARPS];
    if (!MANY && batch_size <= SMALL_BATCH && num_parts <= SMALL_PARTS) {
        small_schedule(
            seq_lens, metadata, num_splits, batch_size, num_parts, overhead, multiplier, shift, old, ends, parts);
        return;
    }

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    // A power of two; ends holds NO_END from the batch up to here.
    const int capacity = 1 << (32 - __clz(batch_size - 1));

    int total = 0;
#pragma unroll 1
    for (int tile = 0; tile < capacity; tile += TILE) {
        const int first = tile + threadIdx.x * ITEMS;
        const PrefixOf4 four = four_costs(seq_lens, first, batch_size, overhead, old);
        int before = inclusive_scan(four.sum, lane);
        if (lane == 31) warp_sums[warp] = before;
        before += total - four.sum;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const int other = warp_sums[w];
            if (w < warp) before += other;
            total += other;
        }
        *reinterpret_cast<int4*>(ends + first) = absolute(four, before);
        if (threadIdx.x == 0) ends[tile + TILE] = NO_END;
        __syncthreads();
    }

    const int stride =
        (int)(((unsigned long long)(unsigned)(total + num_parts - 1) * (unsigned)multiplier) >> shift);

    // A part is stretched where an end lies in the overhead + 1 places behind its start.
    const bool stretched = !MANY && batch_size <= JUMP_BATCH && num_parts > 32 && num_parts <= JUMP_PARTS &&
                           num_parts * batch_size * (overhead + 1) >> 4 >= total;
    if (stretched) {
        jump_schedule(ends, ends + TILE + ITEMS, parts, carries, batch_size, num_parts, overhead, stride, capacity);
    } else {
        // How many ends are at or below the reach of part p if nothing snaps. Part 0 starts at cost 0 and never snaps.
        int reached = batch_size;
#pragma unroll 1
        for (int p = threadIdx.x; p < num_parts; p += THREADS) {
            const int reach = p * stride + (p ? overhead : 0);
            const int found = ends_within(ends, capacity, reach);
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
                const int slack = p ? overhead : 0;
                int start = base + min(lane, num_parts - chunk) * stride;
                int end = reached ? ends[reached - 1] : 0;
                resolve(ends, lane, slack, start, reached, end, ends[reached]);

                const int block = reached < batch_size ? start - end : 0;
                int before = __shfl_up_sync(ALL, reached, 1);
                if (lane == 0) before = previous_request;
                const unsigned inside = __ballot_sync(ALL, block > 0);
                const unsigned heads = __ballot_sync(ALL, reached != before);
                const unsigned up_to_here = ALL >> (31 - lane);
                // The split index counts from the first part that starts in the request; it is 0 for a part at the
                // request's begin.
                const int head = 31 - __clz(heads & up_to_here);
                const int origin = head < 0 ? previous_origin : chunk + head - (int)(inside >> head & 1);
                if (p < num_parts) {
                    const int starts = starts_inside + __popc(inside & up_to_here);
                    parts[p] = make_int4(reached, block, block > 0 ? p - origin : 0, starts);
                }
                base = __shfl_sync(ALL, start, 31) + stride;
                previous_request = __shfl_sync(ALL, reached, 31);
                previous_origin = __shfl_sync(ALL, origin, 31);
                starts_inside += __popc(inside);
            }
            if (lane == 0) parts[num_parts] = make_int4(batch_size, 0, 0, 0);
        }
        __syncthreads();
    }

#pragma unroll 1
    for (int p = threadIdx.x; p < num_parts; p += THREADS) {
        const int4 begin = parts[p], after = parts[p + 1];
        write_row(seq_lens, metadata, p, begin.x, begin.y, begin.z, after.x, after.y, old);
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
