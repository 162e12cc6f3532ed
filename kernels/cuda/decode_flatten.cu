// decode_flatten in one launch, for uniform, ragged, request-padded and token-padded batches.
//
// Request-major: a block belongs to one request and a strip of table columns. It reads query_start_loc[b], [b + 1] and
// seq_lens[b] directly, so no token searches for its request, and it reads a strip of the source row once for all of
// the request's decode_len destination rows. The first strip is loaded before the lengths have arrived: one memory
// latency instead of two. Strips past the used blocks end at once.
// The remaining blocks clear [A, capacity): token padding and the stale tail of a larger step before.
//
// Grid: batch_size * strips blocks, then ceil(capacity / TAIL_PER_BLOCK) blocks. Block: THREADS.

constexpr int THREADS = 128;
constexpr int TAIL_PER_BLOCK = THREADS * 4;

template <int VECTOR>
struct Columns;

template <>
struct Columns<4> {
    int4 value;
    __device__ void load(const int* row, int column) { value = *reinterpret_cast<const int4*>(row + column); }
    __device__ void store(int* row, int column) const { *reinterpret_cast<int4*>(row + column) = value; }
};

template <>
struct Columns<1> {
    int value;
    __device__ void load(const int* row, int column) { value = row[column]; }
    __device__ void store(int* row, int column) const { row[column] = value; }
};

template <int VECTOR>
__device__ void flatten(
    const int* __restrict__ seq_lens, const int* __restrict__ query_start_loc, const int* __restrict__ source,
    int* __restrict__ lens, int* __restrict__ decode_lens, int* __restrict__ table,
    int batch_size, int strips, int num_tokens, int capacity, int block_size,
    int columns, int source_stride, int table_stride) {
    const int request_blocks = batch_size * strips;
    if (blockIdx.x >= request_blocks) {
        const int actual = query_start_loc[batch_size];
        const int first = (blockIdx.x - request_blocks) * TAIL_PER_BLOCK + threadIdx.x;
        for (int t = first; t < min(first + TAIL_PER_BLOCK, capacity); t += THREADS) {
            if (t >= actual) {
                lens[t] = 0;
                if (t < num_tokens) {
                    decode_lens[t] = 1;
                    table[(long long)t * table_stride] = 0;
                }
            }
        }
        return;
    }

    const int b = blockIdx.x / strips, strip = blockIdx.x % strips;
    const int* row = source + (long long)b * source_stride;
    int column = (strip * THREADS + threadIdx.x) * VECTOR;
    Columns<VECTOR> entry;
    const bool early = strip == 0 && column + VECTOR <= columns;
    if (early) entry.load(row, column);

    const int start = query_start_loc[b];
    const int decode_len = query_start_loc[b + 1] - start;
    const int seq_len = seq_lens[b];
    // Rows past T would be out of bounds; a legal batch has none.
    const int rows = min(decode_len, num_tokens - start);
    if (rows <= 0) return;
    if (strip == 0) {
        for (int j = threadIdx.x; j < rows; j += THREADS) {
            lens[start + j] = max(seq_len - decode_len + j + 1, 0);
            decode_lens[start + j] = 1;
        }
    }

    const int used = min((max(seq_len, 0) + block_size - 1) / block_size, columns);
    int* first_row = table + (long long)start * table_stride;
    for (bool loaded = early; column < used; column += strips * THREADS * VECTOR, loaded = false) {
        if (column + VECTOR <= columns) {
            if (!loaded) entry.load(row, column);
            for (int j = 0; j < rows; ++j) entry.store(first_row + (long long)j * table_stride, column);
        } else {
            for (int c = column; c < columns; ++c)
                for (int j = 0; j < rows; ++j) first_row[(long long)j * table_stride + c] = row[c];
        }
    }
}

#define PARAMETERS                                                                                                    \
    const int *seq_lens, const int *query_start_loc, const int *source, int *lens, int *decode_lens, int *table,       \
        int batch_size, int strips, int num_tokens, int capacity, int block_size, int columns, int source_stride,      \
        int table_stride
#define ARGUMENTS                                                                                                     \
    seq_lens, query_start_loc, source, lens, decode_lens, table, batch_size, strips, num_tokens, capacity, block_size, \
        columns, source_stride, table_stride

// Rows and row strides 16-byte aligned.
extern "C" __global__ void __launch_bounds__(THREADS) flatten_vec4(PARAMETERS) { flatten<4>(ARGUMENTS); }
// Any alignment.
extern "C" __global__ void __launch_bounds__(THREADS) flatten_vec1(PARAMETERS) { flatten<1>(ARGUMENTS); }
