// Bodies of draft_inputs; draft_inputs.cu has the launches, step_epilogue and draft_passes others.

#pragma once

#include "load.cuh"

namespace draft_inputs {

// Behind the last row, which ends with token `end`. thread: index in all threads of the launch.
__device__ __forceinline__ void clear_tails(
    int thread, int rows, int capacity, int end, int* __restrict__ lens, int* __restrict__ starts,
    long long* __restrict__ last_index, long long* __restrict__ step) {
    const int past = rows + thread;
    if (past < capacity) lens[past] = 0, last_index[past] = 0;
    if (past <= capacity) starts[past] = end;
    if (thread == 0) *step = 0;
}

// What the first pass stores for token j of a row: its position, and the id of the token behind it.
struct Shifted {
    long long position;
    int id;
};

__device__ __forceinline__ Shifted load_shifted(
    int start, int j, int tokens, const int* __restrict__ target_ids, const long long* __restrict__ target_pos) {
    Shifted shifted{};
    if (j < tokens) shifted.position = load(target_pos + start + j);
    if (j < tokens - 1) shifted.id = load(target_ids + start + j + 1);
    return shifted;
}

// A row of the first pass: its kept tokens shifted by one, `token` behind them. strip, strips: long rows are shared by as
// many warps, 32 tokens in turn; lane 0 of the first strip has the token. first: the lane's first token, loaded by the
// caller, perhaps before it knows how many are kept.
__device__ __forceinline__ void shift_row(
    int b, int lane, int strip, int strips, int start, int kept, int token, int length, Shifted first,
    const int* __restrict__ target_ids, const long long* __restrict__ target_pos, int* __restrict__ ids,
    long long* __restrict__ pos, int* __restrict__ lens, int* __restrict__ starts, long long* __restrict__ last_index) {
    Shifted now = first;
#pragma unroll 1
    for (int j = strip * 32 + lane; j < kept; j += strips * 32) {
        if (j >= (strip + 1) * 32) now = load_shifted(start, j, kept, target_ids, target_pos);
        if (j < kept - 1) ids[start + j] = now.id;
        pos[start + j] = now.position;
    }
    if (strip == 0 && lane == 0) {
        ids[start + kept - 1] = token;
        last_index[b] = start + kept - 1;
        lens[b] = length;
        starts[b] = start;
    }
}

}  // namespace draft_inputs
