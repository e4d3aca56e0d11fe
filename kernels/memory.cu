// Copies and zeroes of many ranges at once.
//
// Law: bytes outside the ranges are never touched; 16 bytes at a time where the range allows, the rest one
// by one. Ranges of one launch do not overlap.

#include "range.cuh"

struct MoveArguments {
    Tiles tiles;
    const Range* tensors;
    Range only;
};

// Bytes of a tile: four 16-byte accesses per thread.
constexpr u32 TILE = 16384;
constexpr u32 STEPS = TILE / (16 * THREADS);

template <bool COPY>
__device__ __forceinline__ void move(const MoveArguments& all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const Range range = tensor_of<Range>(all, place);
    u64 first = u64(place.tile) * TILE;
    if (range.aligned && first + TILE <= range.bytes) {
        u64 own = first + 16 * threadIdx.x;
        uint4 v[STEPS];
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) {
            v[i] = COPY ? load16(range.from + own + i * 16 * THREADS) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) *reinterpret_cast<uint4*>(range.to + own + i * 16 * THREADS) = v[i];
        return;
    }
    u64 end = min(first + TILE, range.bytes);
    for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
        range.to[at] = COPY ? __ldg(range.from + at) : u8(0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) copy_ranges(const __grid_constant__ MoveArguments all) {
    move<true>(all);
}

extern "C" __global__ void __launch_bounds__(THREADS) zero_ranges(const __grid_constant__ MoveArguments all) {
    move<false>(all);
}
