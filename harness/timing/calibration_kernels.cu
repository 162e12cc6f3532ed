// Kernels the ruler itself needs: nothing, the smallest useful kernel, a wait, full load, a pointer chase.

extern "C" __global__ void null_kernel() {}

// Copies 4 integers per thread, 16 bytes at a time. With one block, the least a kernel that reads and writes can cost.
extern "C" __global__ void block_copy(const int4* __restrict__ source, int4* __restrict__ target) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    target[i] = source[i];
}

__device__ __forceinline__ unsigned long long wait(int nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < (unsigned long long)nanoseconds);
    return now - start;
}

// Keeps the stream busy for some nanoseconds of the global timer, while the host queues what is to be timed.
extern "C" __global__ void spin(int nanoseconds) { wait(nanoseconds); }

// The same, and leaves what the global timer says it took: a kernel whose duration is known.
extern "C" __global__ void timed_spin(int nanoseconds, unsigned long long* __restrict__ taken) { *taken = wait(nanoseconds); }

// Frame what is to be found again in a trace.
extern "C" __global__ void span_begins() {}
extern "C" __global__ void span_ends() {}

// Arithmetic on every SM, to bring the clock up.
extern "C" __global__ void busy(float* out, int iterations) {
    float x = threadIdx.x * 1e-3f;
    for (int i = 0; i < iterations; ++i) x = x * 0.999f + 0.5f;
    if (x == -1.0f) out[0] = x;
}

// One thread follows a ring of byte offsets past L1: clock cycles of all hops, and where it ended.
extern "C" __global__ void chase(const char* ring, int hops, unsigned int* out) {
    unsigned int at = 0;
    const long long start = clock64();
#pragma unroll 1
    for (int i = 0; i < hops; ++i) asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(ring + at));
    out[0] = (unsigned int)(clock64() - start);
    out[1] = at;
}
