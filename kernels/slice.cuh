// Values of a gradient as f32, whether they are kept in f32, in bf16 or in MXFP8. A slice has `count` of them.

#pragma once

#include "common.cuh"
#include "elements.cuh"

// Four neighbours of a slice for each thread, the number that it accumulates at once, so that a warp reads and
// writes whole lines.
constexpr u32 WIDTH = 4;

struct SliceF32 {
    static __device__ __forceinline__ void load(u64 slice, u64 at, u64, float (&v)[WIDTH]) {
        float4 bits = load16(reinterpret_cast<const float*>(slice) + at);
        v[0] = bits.x, v[1] = bits.y, v[2] = bits.z, v[3] = bits.w;
    }
    static __device__ __forceinline__ float one(u64 slice, u64 at, u64) {
        return __ldg(reinterpret_cast<const float*>(slice) + at);
    }
};

struct SliceBf16 {
    static __device__ __forceinline__ void load(u64 slice, u64 at, u64, float (&v)[WIDTH]) {
        uint2 bits = __ldg(reinterpret_cast<const uint2*>(reinterpret_cast<const u16*>(slice) + at));
        v[0] = bf16_value(u16(bits.x)), v[1] = bf16_value(u16(bits.x >> 16));
        v[2] = bf16_value(u16(bits.y)), v[3] = bf16_value(u16(bits.y >> 16));
    }
    static __device__ __forceinline__ float one(u64 slice, u64 at, u64) {
        return bf16_value(__ldg(reinterpret_cast<const u16*>(slice) + at));
    }
};

// Neighbours that share a scale: WireType::BLOCK.
constexpr u32 SCALED_TOGETHER = 32;

// Codes, then scales: whole blocks.
struct SliceMxfp8 {
    static __device__ __forceinline__ float scale(u64 slice, u64 at, u64 count) {
        return E8m0::decode(__ldg(reinterpret_cast<const u8*>(slice) + count + at / SCALED_TOGETHER));
    }
    static __device__ __forceinline__ void load(u64 slice, u64 at, u64 count, float (&v)[WIDTH]) {
        u32 codes = __ldg(reinterpret_cast<const u32*>(slice + at));
        float factor = scale(slice, at, count);
        float2 low = E4m3::decode2(codes & 0xFFFF);
        float2 high = E4m3::decode2(codes >> 16);
        v[0] = low.x * factor, v[1] = low.y * factor, v[2] = high.x * factor, v[3] = high.y * factor;
    }
    static __device__ __forceinline__ float one(u64 slice, u64 at, u64 count) {
        return E4m3::decode(__ldg(reinterpret_cast<const u8*>(slice) + at)) * scale(slice, at, count);
    }
    // Four neighbours of a thread, whose block is that of eight threads in a row. All of them are here.
    static __device__ __forceinline__ u32 codes_of(const float (&v)[WIDTH], u32& scale) {
        u32 largest = 0;
#pragma unroll
        for (u32 k = 0; k < WIDTH; ++k) largest = max(largest, __float_as_uint(v[k]) & 0x7FFFFFFFu);
        u32 together = 0xFFu << (lane() & 24);
#pragma unroll
        for (u32 distance = 1; distance < SCALED_TOGETHER / WIDTH; distance *= 2) {
            largest = max(largest, __shfl_xor_sync(together, largest, distance));
        }
        // A block with a value that is not finite is no number, all of it.
        if (largest >= 0x7F800000u) {
            scale = 255;
            return 0x7F7F7F7Fu;
        }
        scale = E8m0::encode(__uint_as_float(largest) * (1.0f / 448.0f));
        float factor = E8m0::reciprocal(scale);
        return encode4<E4m3>(make_float4(v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor));
    }
    static __device__ __forceinline__ void put_scale(u64 slice, u64 at, u64 count, u32 scale) {
        if (at % SCALED_TOGETHER == 0) reinterpret_cast<u8*>(slice)[count + at / SCALED_TOGETHER] = u8(scale);
    }
};
