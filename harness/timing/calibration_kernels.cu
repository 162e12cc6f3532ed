// Kernels of the timer: an empty one, a copy, waits, full load, a pointer chase.

extern "C" __global__ void null_kernel() {}

// Copies 16 bytes per thread, with neither loop nor bound.
extern "C" __global__ void block_copy(const int4* __restrict__ source, int4* __restrict__ target) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    target[i] = source[i];
}

// Copies 4 bytes per thread: the fastest for a handful of them.
extern "C" __global__ void copy_integers(const int* __restrict__ source, int* __restrict__ target) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    target[i] = source[i];
}

// Copies `count` times 16 bytes with any number of threads, four loads in flight each.
extern "C" __global__ void copy_vectors(const int4* __restrict__ source, int4* __restrict__ target, int count) {
    const int stride = gridDim.x * blockDim.x;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < count; i += 4 * stride) {
        const int4 a = source[i], b = source[i + stride], c = source[i + 2 * stride], d = source[i + 3 * stride];
        target[i] = a;
        target[i + stride] = b;
        target[i + 2 * stride] = c;
        target[i + 3 * stride] = d;
    }
    for (; i < count; i += stride) target[i] = source[i];
}

__device__ __forceinline__ unsigned long long wait(int nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < (unsigned long long)nanoseconds);
    return now - start;
}

// Keeps the stream busy for some nanoseconds of the global timer, while the host queues the work to be timed.
extern "C" __global__ void spin(int nanoseconds) { wait(nanoseconds); }

// The same, and writes how long the global timer says that it took: a kernel of known duration.
extern "C" __global__ void timed_spin(int nanoseconds, unsigned long long* __restrict__ taken) { *taken = wait(nanoseconds); }

// Mark the beginning and the end of a span in a trace.
extern "C" __global__ void span_begins() {}
extern "C" __global__ void span_ends() {}

// Arithmetic on every SM, to bring the clock up.
extern "C" __global__ void busy(float* out, int iterations) {
    float x = threadIdx.x * 1e-3f;
    for (int i = 0; i < iterations; ++i) x = x * 0.999f + 0.5f;
    if (x == -1.0f) out[0] = x;
}

// One thread follows a ring of byte offsets, past L1. out: clock cycles of all hops; the offset it ended at.
extern "C" __global__ void chase(const char* ring, int hops, unsigned int* out) {
    unsigned int at = 0;
    const long long start = clock64();
#pragma unroll 1
    for (int i = 0; i < hops; ++i) asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(ring + at));
    out[0] = (unsigned int)(clock64() - start);
    out[1] = at;
}
