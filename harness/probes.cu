// Kernels the ruler itself needs: nothing, the smallest useful kernel, and a wait.

extern "C" __global__ void null_kernel() {}

// One block that copies n integers: the least a metadata kernel can cost.
extern "C" __global__ void block_copy(const int* __restrict__ source, int* __restrict__ target, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) target[i] = source[i];
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
