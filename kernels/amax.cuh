// Largest magnitudes: of four values, of a warp's, and of a tensor by all blocks that have a part of it.
//
// Laws:
// - NaN never raises an amax; infinity does.
// - A maximum does not depend on the order it is taken in, so atomics on the bits of non-negative floats are
//   exact and the same in every run.
// - The first block of a tensor to start clears the tensor's amax while its data is on the way, whichever
//   block that is; the others raise it when they are done, and wait only if that has not been done
//   yet. No block waits for one that has not started. So the stage is one launch, needs no clearing launch
//   before it, and ends with its slowest block.

#pragma once

#include "common.cuh"

// Never NaN: a maximum with a number is that number, and 0 is one (AM-1).
__device__ __forceinline__ float largest_of(float4 v) {
    return fmaxf(fmaxf(0.0f, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
}

// Maximum over the GROUP neighbouring lanes, in all of them. No value is negative or NaN.
template <u32 GROUP>
__device__ __forceinline__ float over_lanes(float value) {
#pragma unroll
    for (u32 distance = GROUP / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
    }
    return value;
}

// The same over all lanes, by one instruction: magnitudes are ordered as their bits are.
__device__ __forceinline__ float over_warp(float value) {
    return __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(value)));
}

// What the blocks of a tensor share. Zero between launches.
struct Pending {
    // Blocks that have started; zero again once all have.
    u32 started;
    // Blocks that have not raised the tensor's amax yet, counted from when it is cleared.
    u32 left;
};

// A block's part in the amax of its tensor. Its first thread counts the block when it starts, looks at the
// answer once the block's first data is on the way (`clear`), and raises the tensor's amax at the end
// (`publish`).
class Shared {
    Pending* pending;
    u32* tensor_amax;
    u32 tiles;
    u32 started;
    bool looked;

  public:
    __device__ __forceinline__ Shared(const Tiles& all, Pending* pending, const Place& place, float* tensor_amax)
        : pending(pending + place.tensor),
          tensor_amax(reinterpret_cast<u32*>(tensor_amax)),
          tiles(tiles_of(all, place.tensor)),
          started(0),
          looked(threadIdx.x != 0) {
        if (threadIdx.x == 0) started = started_before(&this->pending->started, tiles);
    }

    // Clears the tensor's amax if no block was before this one. Only the first call of a block does anything.
    __device__ __forceinline__ void clear() {
        if (looked) return;
        looked = true;
        if (started != 0) return;
        asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(tensor_amax) : "memory");
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&pending->left), "r"(tiles) : "memory");
    }

    // Combines the threads' amaxes, and then those of the blocks.
    __device__ __forceinline__ void publish(float largest) {
        __shared__ float of_warp[WARPS];
        clear();
        largest = over_warp(largest);
        if (lane() == 0) of_warp[warp()] = largest;
        __syncthreads();
        if (threadIdx.x != 0) return;
        for (u32 w = 1; w < WARPS; ++w) largest = fmaxf(largest, of_warp[w]);
        u32 left;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(left) : "l"(&pending->left) : "memory");
        } while (left == 0);
        atomicMax(tensor_amax, __float_as_uint(largest));
        atomicSub(&pending->left, 1);
    }
};

// The tile of a block, from the last to the first.
__device__ __forceinline__ Place place_of_block(const Tiles& tiles) {
    return place_of(tiles, tiles.count - 1 - blockIdx.x);
}
