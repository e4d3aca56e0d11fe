// The sum of a block's threads.
//
// Law: halves are added onto halves, so the sum is the same in every run.

#pragma once

#include "common.cuh"

// The sum of every thread's value, for all of them. Once in a kernel: its memory is not used again.
__device__ __forceinline__ double sum_over_block(double value) {
    __shared__ double of_threads[THREADS];
    of_threads[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) of_threads[threadIdx.x] += of_threads[threadIdx.x + half];
        __syncthreads();
    }
    return of_threads[0];
}
