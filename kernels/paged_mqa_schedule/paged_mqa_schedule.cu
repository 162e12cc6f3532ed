// paged_mqa_schedule in one launch: the kernels. paged_mqa_schedule.cuh explains them.
//
// one, four: for batches of up to that many requests per thread; many: for larger ones.

#include "paged_mqa_schedule.cuh"

using namespace paged_mqa_schedule;  // Sizes, THREADS: declared by cuda.py

// ids: of the tokens of runs; unused without runs.
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)
#define ARGUMENTS                                                                                      \
    const int *__restrict__ lens, const int *__restrict__ ids, int row_stride, int *__restrict__ table, \
        const __grid_constant__ Sizes n
#define REQUESTS Requests<const int*>{lens, row_stride, n.factor}, table, blockIdx.x, n
#define RUNS Runs{lens, ids, n.batch_size, n.factor}, table, blockIdx.x, n

KERNEL paged_mqa_schedule_requests_one_kernel(ARGUMENTS) { schedule<false>(REQUESTS); }
KERNEL paged_mqa_schedule_requests_four_kernel(ARGUMENTS) { schedule<false, 4>(REQUESTS); }
KERNEL paged_mqa_schedule_requests_many_kernel(ARGUMENTS) { schedule<true>(REQUESTS); }
KERNEL paged_mqa_schedule_runs_one_kernel(ARGUMENTS) { schedule<false>(RUNS); }
KERNEL paged_mqa_schedule_runs_four_kernel(ARGUMENTS) { schedule<false, 4>(RUNS); }
KERNEL paged_mqa_schedule_runs_many_kernel(ARGUMENTS) { schedule<true>(RUNS); }
