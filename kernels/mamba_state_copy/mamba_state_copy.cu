// mamba_state_copy in one launch: decides on the device which requests cross a block boundary, and copies.
//
// Every block goes through the batch, THREADS requests at a time. A thread per request decides; a ballot and the counts of the
// warps before it give each crossing request its place in the list, so the list is the same in all blocks. Then block i takes
// the pieces i, i + gridDim.x, ... of list x layers x (pieces of an SSM state and of a convolution).
//
// Input and output pools may be the same, so no pool is __restrict__. Distinct slots never overlap. A convolution shifted inside
// its slot is moved by threads that own channels, from the first column to the last: a thread reads before it overwrites.
// All blocks read accepted and state_columns, the first one writes accepted_out and columns_out, and no barrier orders the two:
// each must be a separate array.
//
// BY_SLOT: counts, columns and tables are by request slot, idx[b] (-1: none), and the layers share num_layers / layers_per_group
// tables. The list then holds columns, and a piece looks up the slots of its group.
//
// n / block_size is (n * multiplier) >> shift, exact for 0 <= n < 2^30. Strides are in accesses of the type.
//
// Versions, us on an H200 at B = 128, four layers, one request in ten crosses (record mamba_copy). Predicted: 1.55, the
// floor:
//
//   decided on the device, operators over whole batches      44 launches        136?
//   the same, compiled by Inductor                           6 launches         63.9
//   every block builds the list, pieces in turn              1 launch           3.02, Triton 3.19
//
// Nsight Compute: the L2 moves 1.00 to 1.02 times the least bytes (layout DS: 1.14), so no byte is to be saved. Three loads
// in sequence, lengths, table entries, states, where the floor has one; where all requests cross it is at the floor. The
// first version has not changed its time since; no other was measured.

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int ACCESSES = 4;

struct Move {
    int conv_from, ssm_from, to, shift;
};

__device__ __forceinline__ int divide(int n, int multiplier, int shift) { return (int)(((long long)n * multiplier) >> shift); }

#define PARAMETERS(Ssm, Conv)                                                                                         \
    const int *__restrict__ seq_lens, const int *__restrict__ query_start_loc, const int *__restrict__ accepted,      \
        const int *__restrict__ state_columns, const int *__restrict__ drafts, const int *__restrict__ table,         \
        const Conv *conv_in, const Ssm *ssm_in, Conv *conv_out, Ssm *ssm_out, int *__restrict__ accepted_out,         \
        int *__restrict__ columns_out, int num_reqs, int table_stride, int after, int block_size, int multiplier,     \
        int division_shift, int num_layers, int slots_in, int slots_out, int words, int ssm_pieces, int pieces,       \
        int columns, int channels, int time_stride, int channel_stride
#define ARGUMENTS                                                                                                     \
    seq_lens, query_start_loc, accepted, state_columns, drafts, table, conv_in, ssm_in, conv_out, ssm_out,            \
        accepted_out, columns_out, num_reqs, table_stride, after, block_size, multiplier, division_shift, num_layers, \
        slots_in, slots_out, words, ssm_pieces, pieces, columns, channels, time_stride, channel_stride

#define BY_SLOT_PARAMETERS                                                                                            \
    const long long *__restrict__ idx, const int *__restrict__ num_computed, long long group_stride, int layers_per_group

template <typename Ssm, typename Conv, bool BY_SLOT = false>
__device__ __forceinline__ void copy(PARAMETERS(Ssm, Conv), const long long* idx = nullptr, const int* num_computed = nullptr,
                                     long long group_stride = 0, int layers_per_group = 1) {
    __shared__ Move moves[THREADS];
    __shared__ int owners[BY_SLOT ? THREADS : 1];
    __shared__ int crossing_in_warp[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

#pragma unroll 1
    for (int tile = 0; tile < num_reqs; tile += THREADS) {
        const int b = tile + threadIdx.x;
        const int row = min(b, num_reqs - 1);
        const int start = query_start_loc[row], end = query_start_loc[row + 1];
        const int slot = BY_SLOT ? (int)idx[row] : row, owner = max(slot, 0);
        const int seq_len = BY_SLOT ? num_computed[owner] + (after ? 0 : end - start) : seq_lens[row];
        const int count = accepted[owner], known = state_columns[owner], num_drafts = BY_SLOT ? 0 : drafts[row];
        const bool request = b < num_reqs && slot >= 0;

        const int last = seq_len > 0 && request ? divide(seq_len - 1, multiplier, division_shift) : -1;
        Move move;
        int source, target;
        bool crosses;
        if (after) {
            const int running = BY_SLOT ? seq_len - count + 1 : seq_len - num_drafts;
            const int blocks = request ? divide(running + count - 1, multiplier, division_shift) : 0;
            source = known;
            target = blocks - 1;
            move.shift = blocks * block_size - running;
            crosses = move.shift >= 0;
        } else {
            const int computed = seq_len - (end - start);
            source = known >= 0 || BY_SLOT ? known : computed > 0 ? divide(computed - 1, multiplier, division_shift) : -1;
            target = last;
            move.shift = count - 1;
            crosses = source >= 0 && source != target;
        }
        crosses = crosses && seq_len > 0 && request;
        if (crosses) {
            const int* slots = table + (long long)row * table_stride;
            move.conv_from = BY_SLOT ? source : slots[source];
            move.ssm_from = BY_SLOT ? source + move.shift : slots[source + move.shift];
            move.to = BY_SLOT ? target : slots[target];
        }
        if (blockIdx.x == 0 && request) {
            accepted_out[owner] = crosses && (!after || move.conv_from == move.to) ? 1 : count;
            if (!after) columns_out[owner] = last;
        }

        const unsigned crossing = __ballot_sync(0xffffffffu, crosses);
        if (lane == 0) crossing_in_warp[warp] = __popc(crossing);
        __syncthreads();
        int place = __popc(crossing & ((1u << lane) - 1)), total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            if (w < warp) place += crossing_in_warp[w];
            total += crossing_in_warp[w];
        }
        if (crosses) moves[place] = move;
        if (BY_SLOT && crosses) owners[place] = owner;
        // The next tile writes the counts after this barrier, and the moves after its own first one, which no thread passes
        // before all of them have left the loop below.
        __syncthreads();

#pragma unroll 1
        for (int piece = blockIdx.x; piece < total * num_layers * pieces; piece += gridDim.x) {
            const int item = piece / pieces, part = piece - item * pieces;
            const int place_of_item = item / num_layers, layer = item - place_of_item * num_layers;
            Move moved = moves[place_of_item];
            if (BY_SLOT) {
                const int* slots = table + layer / layers_per_group * group_stride + (long long)owners[place_of_item] * table_stride;
                moved.conv_from = slots[moved.conv_from];
                moved.ssm_from = slots[moved.ssm_from];
                moved.to = slots[moved.to];
            }
            if (part < ssm_pieces) {
                if (moved.ssm_from == moved.to) continue;
                const Ssm* read = ssm_in + ((long long)layer * slots_in + moved.ssm_from) * words;
                Ssm* written = ssm_out + ((long long)layer * slots_out + moved.to) * words;
                const int begin = part * THREADS * ACCESSES + threadIdx.x;
                Ssm values[ACCESSES];
#pragma unroll
                for (int i = 0; i < ACCESSES; ++i)
                    if (begin + i * THREADS < words) values[i] = read[begin + i * THREADS];
#pragma unroll
                for (int i = 0; i < ACCESSES; ++i)
                    if (begin + i * THREADS < words) written[begin + i * THREADS] = values[i];
            } else {
                const int channel = (part - ssm_pieces) * THREADS + threadIdx.x;
                if (channel >= channels || (moved.conv_from == moved.to && moved.shift == 0)) continue;
                const long long state = (long long)columns * channels;
                const Conv* read = conv_in + ((long long)layer * slots_in + moved.conv_from) * state + (long long)channel * channel_stride +
                                   moved.shift * time_stride;
                Conv* written = conv_out + ((long long)layer * slots_out + moved.to) * state + (long long)channel * channel_stride;
                const int kept = columns - moved.shift;
#pragma unroll 1
                for (int time = 0; time < kept; time += ACCESSES) {
                    Conv values[ACCESSES];
#pragma unroll
                    for (int i = 0; i < ACCESSES; ++i)
                        if (time + i < kept) values[i] = read[(time + i) * time_stride];
#pragma unroll
                    for (int i = 0; i < ACCESSES; ++i)
                        if (time + i < kept) written[(time + i) * time_stride] = values[i];
                }
            }
        }
    }
}

// ssm4: 16 bytes of an SSM state per access. conv8: 16 bytes of a column per access, layout SD only.
extern "C" __global__ void __launch_bounds__(THREADS) copy_ssm4_conv8(PARAMETERS(int4, int4)) { copy<int4, int4>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) copy_ssm4_conv1(PARAMETERS(int4, short)) { copy<int4, short>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) copy_ssm1_conv8(PARAMETERS(int, int4)) { copy<int, int4>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) copy_ssm1_conv1(PARAMETERS(int, short)) { copy<int, short>(ARGUMENTS); }

#define SLOTS_ARGUMENTS ARGUMENTS, idx, num_computed, group_stride, layers_per_group
extern "C" __global__ void __launch_bounds__(THREADS) slots_ssm4_conv8(PARAMETERS(int4, int4), BY_SLOT_PARAMETERS) { copy<int4, int4, true>(SLOTS_ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) slots_ssm4_conv1(PARAMETERS(int4, short), BY_SLOT_PARAMETERS) { copy<int4, short, true>(SLOTS_ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) slots_ssm1_conv8(PARAMETERS(int, int4), BY_SLOT_PARAMETERS) { copy<int, int4, true>(SLOTS_ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) slots_ssm1_conv1(PARAMETERS(int, short), BY_SLOT_PARAMETERS) { copy<int, short, true>(SLOTS_ARGUMENTS); }
