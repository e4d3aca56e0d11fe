// Values of a gradient as f32, whether they are kept in f32 or in bf16.

#pragma once

#include "common.cuh"
#include "elements.cuh"

// Four neighbours of a slice for each thread, the number that it accumulates at once, so that a warp reads and
// writes whole lines.
constexpr u32 WIDTH = 4;

struct SliceF32 {
    static __device__ __forceinline__ void load(u64 slice, u64 at, float (&v)[WIDTH]) {
        float4 bits = load16(reinterpret_cast<const float*>(slice) + at);
        v[0] = bits.x, v[1] = bits.y, v[2] = bits.z, v[3] = bits.w;
    }
    static __device__ __forceinline__ float one(u64 slice, u64 at) {
        return __ldg(reinterpret_cast<const float*>(slice) + at);
    }
};

struct SliceBf16 {
    static __device__ __forceinline__ void load(u64 slice, u64 at, float (&v)[WIDTH]) {
        uint2 bits = __ldg(reinterpret_cast<const uint2*>(reinterpret_cast<const u16*>(slice) + at));
        v[0] = bf16_value(u16(bits.x)), v[1] = bf16_value(u16(bits.x >> 16));
        v[2] = bf16_value(u16(bits.y)), v[3] = bf16_value(u16(bits.y >> 16));
    }
    static __device__ __forceinline__ float one(u64 slice, u64 at) {
        return bf16_value(__ldg(reinterpret_cast<const u16*>(slice) + at));
    }
};
