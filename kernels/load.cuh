// Loads that NVVM leaves where they are written. (ptxas may still move one into the only branch that uses its value.)
//
// Each branch that waits for a load costs a memory latency for every load behind it, and the compiler moves loads down
// to their first use, behind such branches. Launches this short have a handful of latencies, so the kernels over
// request slots issue all loads of a row first, whether they will be needed or not, as far as the address is legal.
//
// ptxas moves loads as well; it leaves relaxed ones in order, so load_in_order stays where it is written. (So does
// ld.volatile, but it goes past L1.) It is used where it was measured to be faster; it slows step_epilogue down.

#pragma once

__device__ __forceinline__ int load(const int* from) {
    int value;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ long long load(const long long* from) {
    long long value;
    asm volatile("ld.global.b64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ bool load(const bool* from) {
    int value;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ int4 load(const int4* from) {
    int4 value;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

__device__ __forceinline__ int load_in_order(const int* from) {
    int value;
    asm volatile("ld.relaxed.cta.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ long long load_in_order(const long long* from) {
    long long value;
    asm volatile("ld.relaxed.cta.global.b64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ bool load_in_order(const bool* from) {
    int value;
    asm volatile("ld.relaxed.cta.global.u8 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
