// paged_mqa_schedule in one launch: the kernels. paged_mqa_schedule.cuh explains them.
//
// one, four: for batches of up to that many requests per thread; many: for larger ones.

#include "paged_mqa_schedule.cuh"

using paged_mqa_schedule::Requests, paged_mqa_schedule::Runs, paged_mqa_schedule::schedule, paged_mqa_schedule::THREADS;

// ids: of the tokens of runs, whose longest has `atoms` of them; unused without runs.
#define PARAMETERS                                                                                              \
    const int *__restrict__ lens, const int *__restrict__ ids, int *__restrict__ table, int batch_size,         \
        int row_stride, int rows_per_thread, int num_sms, int multiplier, int shift, int atoms, int back
#define ARGUMENTS table, blockIdx.x, batch_size, rows_per_thread, num_sms, multiplier, shift, back
#define OF_REQUESTS Requests<const int*>{lens, row_stride, atoms}
#define OF_RUNS Runs{lens, ids, batch_size, atoms}
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)

KERNEL schedule_one(PARAMETERS) { schedule<false>(OF_REQUESTS, ARGUMENTS); }
KERNEL schedule_four(PARAMETERS) { schedule<false, 4>(OF_REQUESTS, ARGUMENTS); }
KERNEL schedule_many(PARAMETERS) { schedule<true>(OF_REQUESTS, ARGUMENTS); }
KERNEL runs_one(PARAMETERS) { schedule<false>(OF_RUNS, ARGUMENTS); }
KERNEL runs_four(PARAMETERS) { schedule<false, 4>(OF_RUNS, ARGUMENTS); }
KERNEL runs_many(PARAMETERS) { schedule<true>(OF_RUNS, ARGUMENTS); }
