// paged_mqa_schedule in one launch: the kernels. paged_mqa_schedule.cuh explains them.

#include "paged_mqa_schedule.cuh"

using paged_mqa_schedule::Requests, paged_mqa_schedule::schedule, paged_mqa_schedule::THREADS;

#define PARAMETERS                                                                                                   \
    const int *__restrict__ lens, int *__restrict__ table, int batch_size, int row_stride, int rows_per_thread,      \
        int num_sms, int multiplier, int shift, int atoms, int back
#define ARGUMENTS \
    Requests<const int*>{lens, row_stride, atoms}, table, blockIdx.x, batch_size, rows_per_thread, num_sms, multiplier, shift, back

extern "C" __global__ void __launch_bounds__(THREADS) schedule_one(PARAMETERS) { schedule<false>(ARGUMENTS); }
extern "C" __global__ void __launch_bounds__(THREADS) schedule_many(PARAMETERS) { schedule<true>(ARGUMENTS); }
