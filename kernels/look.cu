// Looks for values from which no training goes on, in what a rule of the trainer's own has left.
//
// Laws:
// - A value goes on if its magnitude is at most that of its tensor; NaN does not. Values are read and never changed.
// - A thread that finds one that does not says so in a word of the host's memory, which is written in no other case.
// - A vote that skips is not looked behind: nothing was changed then.

#include "common.cuh"

struct LookTensor {
    const float* values;
    u64 count;
    float largest;
    u32 aligned;
};
static_assert(sizeof(LookTensor) == 24, "kernels::look::TensorArguments");

struct LookArguments {
    Tiles tiles;
    const LookTensor* tensors;
    const Vote* vote;
    u32* diverged;
    LookTensor only;
};
static_assert(sizeof(LookArguments) == 64, "kernels::look::Arguments");

// Groups of four elements that a thread has in flight at once.
constexpr u32 GROUPS = 4;
constexpr u32 TILE = GROUPS * 4 * THREADS;

extern "C" __global__ void __launch_bounds__(THREADS) look(const __grid_constant__ LookArguments all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const LookTensor t = tensor_of<LookTensor>(all, place);
    u64 first = u64(place.tile) * TILE;
    bool sound = true;
    if (t.aligned && first + TILE <= t.count) {
        float4 v[GROUPS];
#pragma unroll
        for (u32 i = 0; i < GROUPS; ++i) v[i] = load16(t.values + first + 4 * (threadIdx.x + i * THREADS));
#pragma unroll
        for (u32 i = 0; i < GROUPS; ++i) {
            sound &= (fabsf(v[i].x) <= t.largest) & (fabsf(v[i].y) <= t.largest) & (fabsf(v[i].z) <= t.largest) &
                     (fabsf(v[i].w) <= t.largest);
        }
    } else {
        u64 end = min(first + TILE, t.count);
        for (u64 at = first + threadIdx.x; at < end; at += THREADS) sound &= fabsf(__ldg(t.values + at)) <= t.largest;
    }
    if (!sound && !skips(all.vote)) *all.diverged = 1;
}
