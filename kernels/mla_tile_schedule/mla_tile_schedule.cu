// mla_tile_schedule in one launch of one block: the kernels. mla_tile_schedule.cuh explains them. Grid: 1.
//
// few: for at most THREADS requests; many: for more.

#include "mla_tile_schedule.cuh"

using namespace mla_tile_schedule;  // Sizes, Inputs, Outputs, THREADS: declared by cuda.py

extern "C" __global__ void __launch_bounds__(THREADS) mla_tile_schedule_few_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    tile_schedule<false>(x.seq_lens, out.tile_scheduler_metadata, out.num_splits, n);
}
extern "C" __global__ void __launch_bounds__(THREADS) mla_tile_schedule_many_kernel(
    const __grid_constant__ Sizes n, const __grid_constant__ Inputs x, const __grid_constant__ Outputs out) {
    tile_schedule<true>(x.seq_lens, out.tile_scheduler_metadata, out.num_splits, n);
}
