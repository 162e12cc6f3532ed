// mamba_state_copy in one launch: decides on the device which requests cross a block boundary, and copies.
//
// Every block goes through the batch, THREADS requests at a time. A thread per request decides; a ballot gives each
// crossing request its place in the list of its warp, so the lists are the same in all blocks. Then block i takes the
// pieces i, i + gridDim.x, ... of requests x layers x (pieces of an SSM state and of a convolution), and finds its
// request by the lengths of the eight lists. That takes one barrier; places in a common list would take two.
//
// Input and output pools may be the same, so no pool is __restrict__. Distinct slots never overlap. A convolution
// shifted inside its slot is moved by threads that own channels, from the first column to the last: a thread reads
// before it overwrites. All blocks read num_accepted_tokens and state_columns, the last one, which rarely has a piece,
// writes those of the next step, and no barrier orders the two: each must be a separate array.
//
// BY_SLOT: counts, columns and tables are by request slot, idx_mapping[b] (-1: none), and the layers share num_layers /
// layers_per_group tables. The list then holds columns, and a piece looks up the slots of its group.
//
// Divisions by block_size, pieces and num_layers are (n * multiplier) >> shift, exact for 0 <= n < 2^30. Strides are in
// accesses of the type, and so is span, the size of a piece of an SSM state: at most THREADS * ACCESSES.
//
// Versions on an H200, slowest first; each of the last three gained a few percent:
//
//   decided on the device, operators over whole batches: 44 launches, or 6 compiled by Inductor
//   every block builds the list, pieces in turn
//   loads of counts together, all columns in flight
//   one barrier, no division behind it
//   a state of one piece cut into two
//
// Larger states keep pieces of 16 KB: with 8 KB they were slower.
//
// The first version of one launch made five trips to memory in sequence, as its SASS shows: starts after lengths, table
// entries, a state, and the columns of a convolution beyond the fourth. Three are left, where the copy bound has one.
// Nsight Compute, first version: the L2 moves little more than the least bytes, so no bytes can be saved.
using namespace mamba_state_copy;  // Sizes, Inputs, Outputs, THREADS, ACCESSES: declared by cuda.py

constexpr int WARPS = THREADS / 32;
// Columns of a convolution that a thread has in flight: all of them for up to five speculative blocks.
constexpr int COLUMNS_IN_FLIGHT = 8;

struct Move {
    int conv_from, ssm_from, to, shift;
};

__device__ __forceinline__ int divide(int value, int multiplier, int shift) {
    return (int)(((long long)value * multiplier) >> shift);
}

// group_stride: elements between the tables of two groups, by slot.
// The bundles are by value: by reference, slots_kernel_ssm1_conv8 takes 74 registers on sm_90 in place of 64, and an SM
// holds a block less.
template <typename Ssm, typename Conv, bool BY_SLOT>
__device__ __forceinline__ void copy(const Inputs x, const Outputs out, const Sizes n, long long group_stride) {
    __shared__ Move moves[THREADS];
    __shared__ int owners[BY_SLOT ? THREADS : 1];
    __shared__ __align__(16) int crossing_in_warp[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

#pragma unroll 1
    for (int tile = 0; tile < n.num_reqs; tile += THREADS) {
        const int b = tile + threadIdx.x;
        const int row = min(b, n.num_reqs - 1);
        const int start = __ldg(x.query_start_loc + row), end = __ldg(x.query_start_loc + row + 1);
        const int slot = BY_SLOT ? (int)__ldg(x.idx_mapping + row) : row, owner = max(slot, 0);
        const int seq_len =
            BY_SLOT ? __ldg(x.num_computed_tokens + owner) + (n.after ? 0 : end - start) : __ldg(x.seq_lens + row);
        const int count = __ldg(x.num_accepted_tokens + owner), known = __ldg(x.state_columns + owner);
        const int num_drafts = BY_SLOT ? 0 : __ldg(x.num_draft_tokens + row);
        const bool request = b < n.num_reqs && slot >= 0;

        const int last = seq_len > 0 && request ? divide(seq_len - 1, n.multiplier, n.division_shift) : -1;
        // Both phases without a branch: the compiler would load start and end behind it, and it waits for the lengths.
        const int running = BY_SLOT ? seq_len - count + 1 : seq_len - num_drafts, computed = seq_len - (end - start);
        const int blocks = divide(running + count - 1, n.multiplier, n.division_shift);
        const int block_before = divide(computed - 1, n.multiplier, n.division_shift);
        const int source = n.after || BY_SLOT || known >= 0 ? known : computed > 0 ? block_before : -1;
        const int target = n.after ? blocks - 1 : last;
        Move move;
        move.shift = n.after ? blocks * n.block_size - running : count - 1;
        const bool crosses = (n.after ? move.shift >= 0 : source >= 0 && source != target) && seq_len > 0 && request;
        if (crosses) {
            const int* slots = x.block_table + (long long)row * n.table_stride;
            move.conv_from = BY_SLOT ? source : __ldg(slots + source);
            move.ssm_from = BY_SLOT ? source + move.shift : __ldg(slots + source + move.shift);
            move.to = BY_SLOT ? target : __ldg(slots + target);
        }
        if (blockIdx.x == gridDim.x - 1 && request) {
            out.num_accepted_tokens[owner] = crosses && (!n.after || move.conv_from == move.to) ? 1 : count;
            if (!n.after) out.state_columns[owner] = last;
        }

        const unsigned crossing = __ballot_sync(0xffffffffu, crosses);
        if (lane == 0) crossing_in_warp[warp] = __popc(crossing);
        const int own = warp * 32 + __popc(crossing & ((1u << lane) - 1));
        if (crosses) moves[own] = move;
        if (BY_SLOT && crosses) owners[own] = owner;
        __syncthreads();
        const int4 few = reinterpret_cast<const int4*>(crossing_in_warp)[0];
        const int4 more = reinterpret_cast<const int4*>(crossing_in_warp)[1];
        const int lengths[WARPS] = {few.x, few.y, few.z, few.w, more.x, more.y, more.z, more.w};

#pragma unroll 1
        for (int piece = blockIdx.x;; piece += gridDim.x) {
            const int item = divide(piece, n.pieces_multiplier, n.pieces_shift), part = piece - item * n.pieces;
            const int place = divide(item, n.layers_multiplier, n.layers_shift), layer = item - place * n.num_layers;
            int place_of_item = place, total = 0;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                total += lengths[w];
                if (place >= total) place_of_item += 32 - lengths[w];
            }
            if (place >= total) break;
            Move moved = moves[place_of_item];
            if (BY_SLOT) {
                const int* of_group = x.block_table + layer / n.layers_per_group * group_stride;
                const int* slots = of_group + (long long)owners[place_of_item] * n.table_stride;
                moved.conv_from = __ldg(slots + moved.conv_from);
                moved.ssm_from = __ldg(slots + moved.ssm_from);
                moved.to = __ldg(slots + moved.to);
            }
            if (part < n.ssm_pieces) {
                if (moved.ssm_from == moved.to) continue;
                const Ssm* read = reinterpret_cast<const Ssm*>(x.ssm_states);
                Ssm* written = reinterpret_cast<Ssm*>(out.ssm_states);
                read += ((long long)layer * n.slots_in + moved.ssm_from) * n.words;
                written += ((long long)layer * n.slots_out + moved.to) * n.words;
                const int begin = part * n.span + threadIdx.x, end = min(part * n.span + n.span, n.words);
                Ssm values[ACCESSES];
#pragma unroll
                for (int i = 0; i < ACCESSES; ++i)
                    if (begin + i * THREADS < end) values[i] = read[begin + i * THREADS];
#pragma unroll
                for (int i = 0; i < ACCESSES; ++i)
                    if (begin + i * THREADS < end) written[begin + i * THREADS] = values[i];
            } else {
                const int channel = (part - n.ssm_pieces) * THREADS + threadIdx.x;
                if (channel >= n.channels || (moved.conv_from == moved.to && moved.shift == 0)) continue;
                const long long state = (long long)n.columns * n.channels, step = n.time_stride;
                const long long place_in_state = (long long)channel * n.channel_stride;
                const Conv* read = reinterpret_cast<const Conv*>(x.conv_states) + place_in_state + moved.shift * step;
                Conv* written = reinterpret_cast<Conv*>(out.conv_states) + place_in_state;
                read += ((long long)layer * n.slots_in + moved.conv_from) * state;
                written += ((long long)layer * n.slots_out + moved.to) * state;
#pragma unroll 1
                for (int kept = n.columns - moved.shift; kept > 0; kept -= COLUMNS_IN_FLIGHT) {
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
        if (tile + THREADS < n.num_reqs) __syncthreads();  // the next tile overwrites the lists
    }
}

// ssm4: 16 bytes of an SSM state per access. conv8: 16 bytes of a column per access, layout SD only.
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)
#define ARGUMENTS                                                                                           \
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out, \
        long long group_stride

KERNEL mamba_state_copy_kernel_ssm4_conv8(ARGUMENTS) { copy<int4, int4, false>(x, out, n, group_stride); }
KERNEL mamba_state_copy_kernel_ssm4_conv1(ARGUMENTS) { copy<int4, short, false>(x, out, n, group_stride); }
KERNEL mamba_state_copy_kernel_ssm1_conv8(ARGUMENTS) { copy<int, int4, false>(x, out, n, group_stride); }
KERNEL mamba_state_copy_kernel_ssm1_conv1(ARGUMENTS) { copy<int, short, false>(x, out, n, group_stride); }
KERNEL mamba_state_copy_slots_kernel_ssm4_conv8(ARGUMENTS) { copy<int4, int4, true>(x, out, n, group_stride); }
KERNEL mamba_state_copy_slots_kernel_ssm4_conv1(ARGUMENTS) { copy<int4, short, true>(x, out, n, group_stride); }
KERNEL mamba_state_copy_slots_kernel_ssm1_conv8(ARGUMENTS) { copy<int, int4, true>(x, out, n, group_stride); }
KERNEL mamba_state_copy_slots_kernel_ssm1_conv1(ARGUMENTS) { copy<int, short, true>(x, out, n, group_stride); }
