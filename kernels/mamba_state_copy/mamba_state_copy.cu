// mamba_state_copy in one launch: decides on the device which requests cross a block boundary, and copies.
//
// Every block goes through the batch, THREADS requests at a time. A thread per request decides; a ballot gives each crossing
// request its place in the list of its warp, so the lists are the same in all blocks. Then block i takes the pieces
// i, i + gridDim.x, ... of requests x layers x (pieces of an SSM state and of a convolution), and finds its request by the
// lengths of the eight lists. That takes one barrier; places in a common list would take two.
//
// Input and output pools may be the same, so no pool is __restrict__. Distinct slots never overlap. A convolution shifted inside
// its slot is moved by threads that own channels, from the first column to the last: a thread reads before it overwrites.
// All blocks read accepted and state_columns, the last one, which rarely has a piece, writes accepted_out and columns_out, and no
// barrier orders the two: each must be a separate array.
//
// BY_SLOT: counts, columns and tables are by request slot, idx[b] (-1: none), and the layers share num_layers / layers_per_group
// tables. The list then holds columns, and a piece looks up the slots of its group.
//
// Divisions by block_size, pieces and num_layers are (n * multiplier) >> shift, exact for 0 <= n < 2^30. Strides are in accesses
// of the type, and so is span, the size of a piece of an SSM state: at most THREADS * ACCESSES.
//
// Versions, us on an H200 at B = 128, four layers, one request in ten crosses (record mamba_copy). Predicted: 1.55, the
// floor (?: the estimators disagree):
//
//   decided on the device, operators over whole batches      44 launches        136?
//   the same, compiled by Inductor                           6 launches         63.9
//   every block builds the list, pieces in turn              1 launch           3.02, Triton 3.19
//   loads of counts together, all columns in flight          1 launch           2.83 (predicted 2.5)
//   one barrier, no division behind it                       1 launch           2.74 (predicted 2.4)
//   a state of one piece cut into two                        1 launch           2.64 (predicted 2.35)
//
// At B = 32: 2.56 in the first version of one launch, then 2.48, 2.39 and 2.21. States of 64 KB, all requests cross at B = 32:
// 4.97, 4.74 and 4.55, but 5.10 with pieces of 8 KB, so larger states keep pieces of 16 KB. In these measurements the size of a
// piece was a constant of the source; now the launch sets it.
//
// The first version of one launch made five trips to memory in sequence, as its SASS shows: starts after lengths, table entries,
// a state, and the columns of a convolution beyond the fourth. Three are left, where the floor has one.
// Nsight Compute, first version: the L2 moves 1.00 to 1.02 times the least bytes (layout DS: 1.14), so no bytes can be saved.

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int ACCESSES = 4;
// Columns of a convolution that a thread has in flight: all of them for up to five speculative blocks.
constexpr int COLUMNS_IN_FLIGHT = 8;

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
        int columns, int channels, int time_stride, int channel_stride, int span, int pieces_multiplier,          \
        int pieces_shift, int layers_multiplier, int layers_shift
#define ARGUMENTS                                                                                                     \
    seq_lens, query_start_loc, accepted, state_columns, drafts, table, conv_in, ssm_in, conv_out, ssm_out,            \
        accepted_out, columns_out, num_reqs, table_stride, after, block_size, multiplier, division_shift, num_layers, \
        slots_in, slots_out, words, ssm_pieces, pieces, columns, channels, time_stride, channel_stride, span,            \
        pieces_multiplier, pieces_shift, layers_multiplier, layers_shift

#define BY_SLOT_PARAMETERS                                                                                            \
    const long long *__restrict__ idx, const int *__restrict__ num_computed, long long group_stride, int layers_per_group

template <typename Ssm, typename Conv, bool BY_SLOT = false>
__device__ __forceinline__ void copy(PARAMETERS(Ssm, Conv), const long long* idx = nullptr, const int* num_computed = nullptr,
                                     long long group_stride = 0, int layers_per_group = 1) {
    __shared__ Move moves[THREADS];
    __shared__ int owners[BY_SLOT ? THREADS : 1];
    __shared__ __align__(16) int crossing_in_warp[WARPS];
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
        // Both phases without a branch: the compiler would load start and end behind it, and it waits for the lengths.
        const int running = BY_SLOT ? seq_len - count + 1 : seq_len - num_drafts, computed = seq_len - (end - start);
        const int blocks = divide(running + count - 1, multiplier, division_shift), block_before = divide(computed - 1, multiplier, division_shift);
        const int source = after || BY_SLOT || known >= 0 ? known : computed > 0 ? block_before : -1, target = after ? blocks - 1 : last;
        Move move;
        move.shift = after ? blocks * block_size - running : count - 1;
        const bool crosses = (after ? move.shift >= 0 : source >= 0 && source != target) && seq_len > 0 && request;
        if (crosses) {
            const int* slots = table + (long long)row * table_stride;
            move.conv_from = BY_SLOT ? source : slots[source];
            move.ssm_from = BY_SLOT ? source + move.shift : slots[source + move.shift];
            move.to = BY_SLOT ? target : slots[target];
        }
        if (blockIdx.x == gridDim.x - 1 && request) {
            accepted_out[owner] = crosses && (!after || move.conv_from == move.to) ? 1 : count;
            if (!after) columns_out[owner] = last;
        }

        const unsigned crossing = __ballot_sync(0xffffffffu, crosses);
        if (lane == 0) crossing_in_warp[warp] = __popc(crossing);
        const int own = warp * 32 + __popc(crossing & ((1u << lane) - 1));
        if (crosses) moves[own] = move;
        if (BY_SLOT && crosses) owners[own] = owner;
        __syncthreads();
        const int4 few = reinterpret_cast<const int4*>(crossing_in_warp)[0], more = reinterpret_cast<const int4*>(crossing_in_warp)[1];
        const int lengths[WARPS] = {few.x, few.y, few.z, few.w, more.x, more.y, more.z, more.w};

#pragma unroll 1
        for (int piece = blockIdx.x;; piece += gridDim.x) {
            const int item = divide(piece, pieces_multiplier, pieces_shift), part = piece - item * pieces;
            const int place = divide(item, layers_multiplier, layers_shift), layer = item - place * num_layers;
            int place_of_item = place, total = 0;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                total += lengths[w];
                if (place >= total) place_of_item += 32 - lengths[w];
            }
            if (place >= total) break;
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
                const int begin = part * span + threadIdx.x, end = min(part * span + span, words);
                Ssm values[ACCESSES];
#pragma unroll
                for (int i = 0; i < ACCESSES; ++i)
                    if (begin + i * THREADS < end) values[i] = read[begin + i * THREADS];
#pragma unroll
                for (int i = 0; i < ACCESSES; ++i)
                    if (begin + i * THREADS < end) written[begin + i * THREADS] = values[i];
            } else {
                const int channel = (part - ssm_pieces) * THREADS + threadIdx.x;
                if (channel >= channels || (moved.conv_from == moved.to && moved.shift == 0)) continue;
                const long long state = (long long)columns * channels, place_in_state = (long long)channel * channel_stride, step = time_stride;
                const Conv* read = conv_in + ((long long)layer * slots_in + moved.conv_from) * state + place_in_state + moved.shift * step;
                Conv* written = conv_out + ((long long)layer * slots_out + moved.to) * state + place_in_state;
#pragma unroll 1
                for (int kept = columns - moved.shift; kept > 0; kept -= COLUMNS_IN_FLIGHT) {
                    Conv values[COLUMNS_IN_FLIGHT];
#pragma unroll
                    for (int i = 0; i < COLUMNS_IN_FLIGHT; ++i, read += step)
                        if (i < kept) values[i] = *read;
#pragma unroll
                    for (int i = 0; i < COLUMNS_IN_FLIGHT; ++i, written += step)
                        if (i < kept) *written = values[i];
                }
            }
        }
        if (tile + THREADS < num_reqs) __syncthreads();  // the next tile overwrites the lists
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
