// mla_tile_schedule in one launch of one block: the kernels. mla_tile_schedule.cuh explains them. Grid: 1.
//
// few: for at most THREADS requests; many: for more.

#include "mla_tile_schedule.cuh"

#define PARAMETERS                                                                                            \
    const int *__restrict__ seq_lens, int *__restrict__ metadata, int *__restrict__ num_splits, int batch_size, \
        int num_parts, int overhead, int multiplier, int shift, int old
#define ARGUMENTS seq_lens, metadata, num_splits, batch_size, num_parts, overhead, multiplier, shift, old

using mla_tile_schedule::THREADS, mla_tile_schedule::tile_schedule;

extern "C" __global__ void __launch_bounds__(THREADS) schedule_few(PARAMETERS) { tile_schedule<false>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) schedule_many(PARAMETERS) { tile_schedule<true>(ARGUMENTS); }
