#pragma once

#include "dcp_lengths/dcp_lengths.cuh"

namespace decode_native {

// Context length at column j of a row of `row` tokens, 0 past the row. local: what of it lies on this rank.
template <class Local = dcp_lengths::Whole>
__device__ __forceinline__ int context_len(int seq_len, int row, int j, int compress_ratio, const Local& local = {}) {
    const int length = local(j < row ? max(seq_len - row + 1 + j, 0) : 0);
    return compress_ratio == 1 ? length : length / compress_ratio;
}

}  // namespace decode_native
