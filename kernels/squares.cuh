// Sums of squares of main grads, in the one order that they have.
//
// Laws:
// - Squares are exact in f64 and added in f64, in an order that follows from the lengths of main grads alone: that of
//   the CPU backend, which is stated in `crates/backend/src/cpu/squares.rs`. So the norm has the same bits on every
//   device, at every address and in every run, whichever kernel takes the squares of a block.
// - A block's squares are of SQUARED_TOGETHER elements, by one thread block: four neighbours of every thread, four
//   times, then the halves of each warp, then its warps in order.

#pragma once

#include "common.cuh"

// Elements of which a block is: op::SQUARED_TOGETHER.
constexpr u32 SQUARED_TOGETHER = 4096;
static_assert(SQUARED_TOGETHER == 16 * THREADS, "four neighbours of every thread, four times");

__device__ __forceinline__ double square_onto(double sum, float value) {
    double wide = value;
    return __fma_rn(wide, wide, sum);
}

// Squares of a thread, of which each of four neighbours has a sum.
struct Squares {
    double sums[4] = {0.0, 0.0, 0.0, 0.0};

    __device__ __forceinline__ void add(float4 v) {
        sums[0] = square_onto(sums[0], v.x);
        sums[1] = square_onto(sums[1], v.y);
        sums[2] = square_onto(sums[2], v.z);
        sums[3] = square_onto(sums[3], v.w);
    }
    __device__ __forceinline__ double of_thread() const { return (sums[0] + sums[1]) + (sums[2] + sums[3]); }
};

// Halves of so many neighbouring lanes added onto halves: the sum is in the first of them.
template <u32 LANES>
__device__ __forceinline__ double halved(double sum) {
#pragma unroll
    for (u32 distance = LANES / 2; distance > 0; distance /= 2) {
        sum += __shfl_down_sync(0xFFFFFFFFu, sum, distance, LANES);
    }
    return sum;
}

// Sum over the block, in thread 0. Once in a kernel: its memory is not used again.
__device__ __forceinline__ double over_block(double sum) {
    __shared__ double of_warp[WARPS];
    sum = halved<32>(sum);
    if (lane() == 0) of_warp[warp()] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 w = 1; w < WARPS; ++w) sum += of_warp[w];
    }
    return sum;
}
