#pragma once

namespace dcp_lengths {

// Tokens of a context on one rank. round: those that all ranks take in turn; first: of them, those of the ranks before.
// Lengths are never negative: unsigned division is shorter.
struct Local {
    int round, first, interleave;

    __device__ __forceinline__ int operator()(unsigned length) const {
        const unsigned rounds = length / round;
        const int left = (int)(length - rounds * round) - first;
        return (int)(rounds * interleave) + min(max(left, 0), interleave);
    }
};
// On a single rank.
struct Whole {
    __device__ __forceinline__ int operator()(int length) const { return length; }
};

}  // namespace dcp_lengths
