// mla_tile_schedule in one launch of one block: the kernel. tile.cuh explains it. Grid: 1.

#include "tile.cuh"

extern "C" __global__ void __launch_bounds__(mla_tile_schedule::THREADS) tile_schedule(
    const int* __restrict__ seq_lens, int* __restrict__ metadata, int* __restrict__ num_splits,
    int batch_size, int num_parts, int overhead, int multiplier, int shift, int old) {
    mla_tile_schedule::tile_schedule(seq_lens, metadata, num_splits, batch_size, num_parts, overhead, multiplier, shift, old);
}
