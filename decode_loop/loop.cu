// Kernels of the decode loop itself: entries from the host, the stand-in for the model, acceptance. They are the same
// in every stack.

typedef unsigned long long u64;

__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// The finaliser of SplitMix64, as in hashing.py.
__device__ __forceinline__ u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ u64 draw(u64 seed, u64 request, u64 position) {
    return mix(mix(seed + request * 0x9E3779B97F4A7C15ull) + position * 0xD1B54A32D192ED03ull) >> 32;
}

// staged: the number of entries, then a place and a value each. Places from `words` on are bytes of flags behind them.
extern "C" __global__ void write_entries(const int* __restrict__ staged, int* __restrict__ arena, int words) {
    const int entries = staged[0];
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < entries; i += gridDim.x * blockDim.x) {
        const int place = staged[1 + 2 * i], value = staged[2 + 2 * i];
        if (place < words)
            arena[place] = value;
        else
            ((unsigned char*)(arena + words))[place - words] = (unsigned char)value;
    }
}

// --- the stand-in for the model: begins, reads the tables, streams bytes, takes a given time -----------------------------

// clock[0]: when the step began, nanoseconds of the global timer; clock[1]: number of the step in its block.
extern "C" __global__ void begin_model(u64* __restrict__ clock, u64* __restrict__ begins) {
    clock[0] = now();
    begins[clock[1]] = clock[0];
}

template <typename T>
__device__ void consume(const T* values, int rows, int columns, long long stride, const int* row_lengths, int unit,
                        int has_idle, int idle, const u64* clock, u64* checksums, int tables, int table, int behind) {
    u64 sum = 0;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* of_row = values + row * stride;
        int used = columns;
        if (row_lengths) used = max(0, min(columns, (int)(((long long)row_lengths[row] + unit - 1) / unit)));
        if (has_idle && (long long)of_row[0] == idle) used = min(used, 1);
        for (int column = threadIdx.x; column < used; column += blockDim.x)
            sum += (u64)(long long)of_row[column] * (mix((u64)row << 32 | (u64)column) | 1);
    }
    for (int lane = 16; lane; lane /= 2) sum += __shfl_down_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0 && sum) atomicAdd(checksums + (clock[1] - behind) * tables + table, sum);
}

// Adds the checksum of one table of this step, or of the one whose model step has ended (behind = 1); values are int32 or
// int64.
extern "C" __global__ void consume_int32(const int* values, int rows, int columns, long long stride,
                                         const int* row_lengths, int unit, int has_idle, int idle, const u64* clock,
                                         u64* checksums, int tables, int table, int behind) {
    consume(values, rows, columns, stride, row_lengths, unit, has_idle, idle, clock, checksums, tables, table, behind);
}

extern "C" __global__ void consume_int64(const long long* values, int rows, int columns, long long stride,
                                         const int* row_lengths, int unit, int has_idle, int idle, const u64* clock,
                                         u64* checksums, int tables, int table, int behind) {
    consume(values, rows, columns, stride, row_lengths, unit, has_idle, idle, clock, checksums, tables, table, behind);
}

// Reads 16-byte words [from, to) through the L2, then waits until `nanoseconds` after the step began.
extern "C" __global__ void stream_until(const uint4* __restrict__ words, long long from, long long to,
                                        const u64* __restrict__ clock, long long nanoseconds, unsigned int* sink) {
    unsigned int seen = 0;
    for (long long i = from + blockIdx.x * (long long)blockDim.x + threadIdx.x; i < to;
         i += (long long)gridDim.x * blockDim.x) {
        const uint4 word = __ldcg(words + i);
        seen |= word.x ^ word.y ^ word.z ^ word.w;
    }
    if (seen == 0x5EEDF00Du) *sink = seen;  // never: the buffer is zero. It keeps the loads.
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        const u64 end = clock[0] + nanoseconds;
        while (now() < end) {
        }
    }
}

extern "C" __global__ void end_model(u64* __restrict__ clock, u64* __restrict__ ends) {
    ends[clock[1]] = now();
    clock[1] += 1;
}

// --- acceptance ----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ u64 token(u64 seed, u64 request, u64 position) {
    return draw(seed + 1, request, position) % 129280;
}

// valid[r]: tokens that row r gets: 1 + its leading accepted drafts, or one of the measured accept lengths. With slots
// (idx_mapping), their ids go to tokens [rows, drafts + 1], and the next drafts to draft [slots, drafts].
extern "C" __global__ void accept(const int* __restrict__ requests, const int* __restrict__ computed,
                                  int* __restrict__ valid, int rows, int drafts, const u64* __restrict__ thresholds,
                                  const int* __restrict__ lengths, int num_lengths, u64 seed,
                                  const long long* __restrict__ idx_mapping, u64* __restrict__ tokens,
                                  u64* __restrict__ draft) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const long long slot = idx_mapping ? idx_mapping[row] : row;
    const u64 request = (u64)requests[row], position = (u64)computed[slot];
    int count = 1;
    if (num_lengths)
        count = lengths[draw(seed, request, position) % num_lengths];
    else
        while (count <= drafts && draw(seed, request, position + count - 1) < thresholds[count - 1]) ++count;
    valid[row] = count;
    if (!idx_mapping) return;
    for (int i = 0; i < count; ++i) tokens[row * (drafts + 1) + i] = token(seed, request, position + 1 + i);
    for (int i = 0; i < drafts; ++i) draft[slot * drafts + i] = token(seed, request, position + count + 1 + i);
}

// What the prefill of a new request left in its slot: the newest token, and drafts.
extern "C" __global__ void start_requests(const unsigned char* __restrict__ fresh, const int* __restrict__ requests,
                                          const long long* __restrict__ idx_mapping, const int* __restrict__ computed,
                                          u64* __restrict__ last, u64* __restrict__ draft, int rows, int drafts,
                                          u64 seed) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows || !fresh[row]) return;
    const long long slot = idx_mapping[row];
    const u64 request = (u64)requests[row], position = (u64)computed[slot];
    last[slot] = token(seed, request, position);
    for (int i = 0; i < drafts; ++i) draft[slot * drafts + i] = token(seed, request, position + 1 + i);
}

// The global timer, to relate it to the clock of the host.
extern "C" __global__ void stamp(u64* __restrict__ time) { *time = now(); }
