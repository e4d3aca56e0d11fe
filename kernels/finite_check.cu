// Finite check: values that are too large or no numbers, in what a custom optimizer has left, and in gradients as
// calls wrote them.
//
// Laws:
// - A value passes if its magnitude is at most that of its tensor; NaN does not. Values are read and never changed.
// - A thread that finds one that does not leaves the launch's number in a word of the host's memory that is still 0,
//   which is written in no other case. So of launches on one stream the first that finds one stands.
// - A vote that skips is not checked after: nothing was changed then.

#include "common.cuh"
#include "slice.cuh"

struct FiniteCheckTensor {
    u64 values;
    u64 count;
    float largest;
    u32 aligned;
};
static_assert(sizeof(FiniteCheckTensor) == 24, "kernels::finite_check::TensorArguments");

struct FiniteCheckArguments {
    Tiles tiles;
    const FiniteCheckTensor* tensors;
    const Vote* vote;
    u32* word;
    u32 number;
    u32 reserved;
    FiniteCheckTensor only;
};
static_assert(sizeof(FiniteCheckArguments) == 72, "kernels::finite_check::Arguments");

// Groups of four elements that a thread has in flight at once.
constexpr u32 GROUPS = 4;
constexpr u32 TILE = GROUPS * WIDTH * THREADS;

template <class Slice>
__device__ __forceinline__ void finite_check(const FiniteCheckArguments& all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const FiniteCheckTensor t = tensor_of<FiniteCheckTensor>(all, place);
    u64 first = u64(place.tile) * TILE;
    bool valid = true;
    if (t.aligned && first + TILE <= t.count) {
        float v[GROUPS][WIDTH];
#pragma unroll
        for (u32 i = 0; i < GROUPS; ++i) {
            Slice::load(t.values, first + WIDTH * (threadIdx.x + i * THREADS), t.count, v[i]);
        }
#pragma unroll
        for (u32 i = 0; i < GROUPS; ++i) {
#pragma unroll
            for (u32 k = 0; k < WIDTH; ++k) valid &= fabsf(v[i][k]) <= t.largest;
        }
    } else {
        u64 end = min(first + TILE, t.count);
        for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
            valid &= fabsf(Slice::one(t.values, at, t.count)) <= t.largest;
        }
    }
    if (!valid && !skips(all.vote) && *all.word == 0) *all.word = all.number;
}

extern "C" __global__ void __launch_bounds__(THREADS) finite_check_f32(const __grid_constant__ FiniteCheckArguments all) {
    finite_check<SliceF32>(all);
}

extern "C" __global__ void __launch_bounds__(THREADS) finite_check_bf16(const __grid_constant__ FiniteCheckArguments all) {
    finite_check<SliceBf16>(all);
}
