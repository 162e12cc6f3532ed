// Bodies of draft_inputs; draft_inputs.cu has the launches, step_epilogue and draft_passes others.

#pragma once

#include "load.cuh"

namespace draft_inputs {

// Behind the last row, which ends with token `end`. thread: index in all threads of the launch.
template <class Out, class N>
__device__ __forceinline__ void clear_tails(int thread, int end, const Out& out, const N& n) {
    const int past = n.num_reqs + thread;
    if (past < n.max_num_seqs) out.seq_lens[past] = 0, out.last_token_indices[past] = 0;
    if (past <= n.max_num_seqs) out.query_start_loc[past] = end;
    if (thread == 0) *out.current_draft_step = 0;
}

// What the first pass stores for token j of a row: its position, and the id of the token behind it.
struct Shifted {
    long long position;
    int id;
};

template <class In>
__device__ __forceinline__ Shifted load_shifted(int start, int j, int tokens, const In& x) {
    Shifted shifted{};
    if (j < tokens) shifted.position = load(x.target_positions + start + j);
    if (j < tokens - 1) shifted.id = load(x.target_input_ids + start + j + 1);
    return shifted;
}

// A row of the first pass: its kept tokens shifted by one, `token` behind them. strip, strips: long rows are shared by
// as many warps, 32 tokens in turn; lane 0 of the first strip has the token. first: the lane's first token, loaded by
// the caller, perhaps before it knows how many are kept.
template <class In, class Out>
__device__ __forceinline__ void shift_row(
    int b, int lane, int strip, int strips, int start, int kept, int token, int length, Shifted first, const In& x,
    const Out& out) {
    Shifted now = first;
#pragma unroll 1
    for (int j = strip * 32 + lane; j < kept; j += strips * 32) {
        if (j >= (strip + 1) * 32) now = load_shifted(start, j, kept, x);
        if (j < kept - 1) out.input_ids[start + j] = now.id;
        out.positions[start + j] = now.position;
    }
    if (strip == 0 && lane == 0) {
        out.input_ids[start + kept - 1] = token;
        out.last_token_indices[b] = start + kept - 1;
        out.seq_lens[b] = length;
        out.query_start_loc[b] = start;
    }
}

}  // namespace draft_inputs
