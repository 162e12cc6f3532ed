// paged_mqa_schedule in one launch, straight into the persistent table; any batch in 1 KB of shared memory.
//
// A thread adds up the units of rows_per_thread consecutive requests (one up to a batch of 256), a warp scans its 32 sums
// and leaves the 32 prefixes and its total in shared memory. After the only barrier every thread adds up the warp totals in
// registers, and owns a row of the table: it finds the warp in registers, the thread by five steps of a binary search in
// shared memory, and the request and atom from the lengths of that thread, read again (they lie in L1).
//
// Searches go for the last prefix that is not beyond the row's first unit. Prefixes exclude their own entry, so that entry
// holds the unit, a request without units is never found, and the prefix found is what has to be subtracted.
//
// Instruction fetches show at this size: up to 256 requests have a kernel without loops over a thread's requests, and the
// grid has a block per 256 rows of the table (one on any GPU of today) instead of a loop over rows, which the compiler
// writes out twice. There are fewer than 2^30 units; multiplier and shift replace a division by num_sms.

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int LOADS = 4;  // in flight per thread where it has many requests

// Negative lengths have no segments. The sum is unsigned: a length may be 2^31 - 1.
__device__ __forceinline__ int segments(int length) { return (max(length, 0) + 255u) >> 8; }

// Segments of the requests row .. row + LOADS - 1, 0 from `end` on; all loads before the first use.
__device__ __forceinline__ void load_segments(int (&count)[LOADS], const int* lens, int row, int end, int row_stride) {
    int length[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) length[k] = row + k < end ? lens[(row + k) * row_stride] : 0;
#pragma unroll
    for (int k = 0; k < LOADS; ++k) count[k] = segments(length[k]);
}

// MANY: a thread has rows_per_thread requests instead of one.
template <bool MANY>
__device__ __forceinline__ void schedule(
    const int* __restrict__ lens, int* __restrict__ table, int batch_size, int row_stride, int rows_per_thread,
    int num_sms, int multiplier, int shift, int atoms, int back) {
    __shared__ int thread_start[THREADS];  // units before a thread's requests, counted from the first of its warp
    __shared__ __align__(16) int warp_total[WARPS];
    const int thread = threadIdx.x, lane = thread & 31;

    int units = 0;
    if (MANY) {
        const int end = min((thread + 1) * rows_per_thread, batch_size);
#pragma unroll 1
        for (int row = thread * rows_per_thread; row < end; row += LOADS) {
            int count[LOADS];
            load_segments(count, lens, row, end, row_stride);
#pragma unroll
            for (int k = 0; k < LOADS; ++k) units += count[k];
        }
    } else if (thread < batch_size) {
        units = segments(lens[thread * row_stride]);
    }
    units *= atoms;
    int inclusive = units;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int below = __shfl_up_sync(~0u, inclusive, distance);
        if (lane >= distance) inclusive += below;
    }
    thread_start[thread] = inclusive - units;
    if (lane == 31) warp_total[thread >> 5] = inclusive;
    __syncthreads();

    int warp_start[WARPS], total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        warp_start[w] = total;
        total += warp_total[w];
    }
    const int share = (int)((unsigned long long)total * multiplier >> shift);
    const int rest = total - share * num_sms;
    const int shorter = back ? num_sms - rest : 0;  // SMs before the first that gets a unit more
    const int sm = blockIdx.x * THREADS + thread;
    if (sm > num_sms) return;
    const int start = sm * share + min(max(sm - shorter, 0), rest);
    int query = batch_size * atoms, segment = 0;
    if (start < total) {
        int owner = 0, before = 0;
#pragma unroll
        for (int w = 1; w < WARPS; ++w) {
            if (warp_start[w] <= start) {
                owner = w * 32;
                before = warp_start[w];
            }
        }
        segment = start - before;
        before = 0;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const int candidate = thread_start[owner + step];
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
                load_segments(count, lens, row, end, row_stride);
#pragma unroll
                for (int k = 0; k < LOADS; ++k) {
                    if (here) continue;
                    width = count[k];
                    here = segment < width * atoms;
                    if (!here) {
                        segment -= width * atoms;
                        ++request;
                    }
                }
            }
        } else if (atoms > 1) {
            width = segments(lens[request * row_stride]);
        }
        query = request * atoms;
#pragma unroll 1
        for (int atom = 1; atom < atoms && segment >= width; ++atom) {
            segment -= width;
            ++query;
        }
    }
    table[2 * sm] = query;
    table[2 * sm + 1] = segment;
}

// lens: the last column of the lengths, rows row_stride apart. table: int32 (num_sms + 1, 2).
// back != 0: the last SMs instead of the first get the units that num_sms does not divide.
#define PARAMETERS                                                                                                   \
    const int *__restrict__ lens, int *__restrict__ table, int batch_size, int row_stride, int rows_per_thread,      \
        int num_sms, int multiplier, int shift, int atoms, int back
#define ARGUMENTS lens, table, batch_size, row_stride, rows_per_thread, num_sms, multiplier, shift, atoms, back

extern "C" __global__ void __launch_bounds__(THREADS) schedule_one(PARAMETERS) { schedule<false>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) schedule_many(PARAMETERS) { schedule<true>(ARGUMENTS); }
