// Kernels the ruler itself needs: nothing, the smallest useful kernel, and a wait.

extern "C" __global__ void null_kernel() {}

// One block that copies 4 integers per thread, 16 bytes at a time: the least a kernel that reads and writes can cost.
extern "C" __global__ void block_copy(const int4* __restrict__ source, int4* __restrict__ target) {
    target[threadIdx.x] = source[threadIdx.x];
}

// Keeps the stream busy for some nanoseconds of the global timer, while the host queues what is to be timed.
extern "C" __global__ void spin(int nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < (unsigned long long)nanoseconds);
}

// Arithmetic on every SM, to bring the clock up.
extern "C" __global__ void busy(float* out, int iterations) {
    float x = threadIdx.x * 1e-3f;
    for (int i = 0; i < iterations; ++i) x = x * 0.999f + 0.5f;
    if (x == -1.0f) out[0] = x;
}
