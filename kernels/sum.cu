// Sums and maxima of vectors: accumulation into main grads, and what ranks contributed, in rank order.
//
// Laws:
// - A contribution is multiplied by the factor, rounded once, then added. The first one overwrites.
// - A sum over ranks begins with rank 0's value and adds 1, 2, ... in f32, and is rounded once if it is kept in
//   bf16; a maximum ignores NaN unless all are. What is accumulated in the same pass is the finished sum. None of it
//   depends on the number of blocks, so every rank and every run gets the same bits.
// - Squares that a sum takes are of what it leaves, as squares.cuh says; only those of real rows are not zero.

#include "common.cuh"
#include "elements.cuh"
#include "slice.cuh"
#include "squares.cuh"

// Elements of a tile: four 16-byte accesses per thread.
constexpr u32 TILE = 4096;
static_assert(TILE == SQUARED_TOGETHER, "a tile's squares are a block's");
constexpr u32 STEPS = TILE / (4 * THREADS);

// Four neighbours, of which those past the end count as 0.
__device__ __forceinline__ float4 counted_of(float4 v, u64 at, u64 end) {
    return make_float4(at < end ? v.x : 0.0f, at + 1 < end ? v.y : 0.0f, at + 2 < end ? v.z : 0.0f,
                       at + 3 < end ? v.w : 0.0f);
}

struct AccumulateTensor {
    const float* from;
    float* into;
    u64 count;
    u32 aligned;
    u32 reserved;
    // Where the squares of each tile go, if they are taken, and of how many elements they are.
    double* squares;
    u64 counted;
};
static_assert(sizeof(AccumulateTensor) == 48, "kernels::sum::AccumulateTensor");

struct AccumulateArguments {
    Tiles tiles;
    const AccumulateTensor* tensors;
    float factor;
    u32 reserved;
    AccumulateTensor only;
};

template <bool FIRST>
__device__ __forceinline__ void accumulate(const AccumulateArguments& all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const AccumulateTensor t = tensor_of<AccumulateTensor>(all, place);
    u64 first = u64(place.tile) * TILE;
    float factor = all.factor;
    Squares squares;
    if (t.aligned && first + TILE <= t.count) {
        u64 own = first + 4 * threadIdx.x;
        float4 from[STEPS];
        float4 into[STEPS];
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) {
            from[i] = load16(t.from + own + i * 4 * THREADS);
            if (!FIRST) into[i] = *reinterpret_cast<const float4*>(t.into + own + i * 4 * THREADS);
        }
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) {
            float4 v = make_float4(from[i].x * factor, from[i].y * factor, from[i].z * factor, from[i].w * factor);
            if (!FIRST) {
                v = make_float4(into[i].x + v.x, into[i].y + v.y, into[i].z + v.z, into[i].w + v.w);
            }
            *reinterpret_cast<float4*>(t.into + own + i * 4 * THREADS) = v;
            if (t.squares != nullptr) {
                u64 at = own + i * 4 * THREADS;
                squares.add(first + TILE <= t.counted ? v : counted_of(v, at, t.counted));
            }
        }
    } else {
        u64 end = min(first + TILE, t.count);
        // Four neighbours at a time, whose squares are the thread's.
#pragma unroll 1
        for (u64 own = first + 4 * threadIdx.x; own < end; own += 4 * THREADS) {
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                u64 at = own + k;
                if (at >= end) continue;
                v[k] = __ldg(t.from + at) * factor;
                if (!FIRST) v[k] = t.into[at] + v[k];
                t.into[at] = v[k];
            }
            squares.add(counted_of(make_float4(v[0], v[1], v[2], v[3]), own, t.counted));
        }
    }
    if (t.squares == nullptr) return;
    double sum = over_block(squares.of_thread());
    if (threadIdx.x == 0) t.squares[place.tile] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
accumulate_first(const __grid_constant__ AccumulateArguments all) {
    accumulate<true>(all);
}

extern "C" __global__ void __launch_bounds__(THREADS)
accumulate_more(const __grid_constant__ AccumulateArguments all) {
    accumulate<false>(all);
}

struct CombineTensor {
    // One address per rank.
    const u64* sources;
    u64 to;
    u64 count;
    u32 source_count;
    u32 aligned;
};
static_assert(sizeof(CombineTensor) == 32, "kernels::sum::CombineTensor");

struct CombineArguments {
    Tiles tiles;
    const CombineTensor* tensors;
    CombineTensor only;
};

// Values that may be overwritten by the kernel that reads them.
struct ValuesF32 {
    static __device__ __forceinline__ float4 four(u64 values, u64 at) {
        return *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(values) + at);
    }
    static __device__ __forceinline__ float one(u64 values, u64 at) { return reinterpret_cast<const float*>(values)[at]; }
    static __device__ __forceinline__ void put_four(u64 values, u64 at, float4 v) {
        *reinterpret_cast<float4*>(reinterpret_cast<float*>(values) + at) = v;
    }
    static __device__ __forceinline__ void put(u64 values, u64 at, float v) { reinterpret_cast<float*>(values)[at] = v; }
};

struct ValuesBf16 {
    static __device__ __forceinline__ float4 four(u64 values, u64 at) {
        uint2 bits = *reinterpret_cast<const uint2*>(reinterpret_cast<const u16*>(values) + at);
        return make_float4(bf16_value(u16(bits.x)), bf16_value(u16(bits.x >> 16)), bf16_value(u16(bits.y)),
                           bf16_value(u16(bits.y >> 16)));
    }
    static __device__ __forceinline__ float one(u64 values, u64 at) {
        return bf16_value(reinterpret_cast<const u16*>(values)[at]);
    }
    static __device__ __forceinline__ u32 both(float a, float b) {
        return u32(bf16_bits(round_to_bf16(a))) | u32(bf16_bits(round_to_bf16(b))) << 16;
    }
    static __device__ __forceinline__ void put_four(u64 values, u64 at, float4 v) {
        *reinterpret_cast<uint2*>(reinterpret_cast<u16*>(values) + at) = make_uint2(both(v.x, v.y), both(v.z, v.w));
    }
    static __device__ __forceinline__ void put(u64 values, u64 at, float v) {
        reinterpret_cast<u16*>(values)[at] = bf16_bits(round_to_bf16(v));
    }
};

struct Sum {
    static __device__ __forceinline__ float of(float sum, float value) { return sum + value; }
};

struct Max {
    static __device__ __forceinline__ float of(float max, float value) {
        return value > max || max != max ? value : max;
    }
};

// The target may be one of the sources: an element is read from all of them before it is written.
template <class Reduction, class Values>
__device__ __forceinline__ void combine(const CombineArguments& all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const CombineTensor t = tensor_of<CombineTensor>(all, place);
    u64 first = u64(place.tile) * TILE;
    u32 count = t.source_count;
    if (t.aligned && first + TILE <= t.count) {
        u64 own = first + 4 * threadIdx.x;
        float4 sum[STEPS];
        u64 source = __ldg(t.sources);
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) sum[i] = Values::four(source, own + i * 4 * THREADS);
#pragma unroll 3
        for (u32 r = 1; r < count; ++r) {
            source = __ldg(t.sources + r);
            float4 v[STEPS];
#pragma unroll
            for (u32 i = 0; i < STEPS; ++i) v[i] = Values::four(source, own + i * 4 * THREADS);
#pragma unroll
            for (u32 i = 0; i < STEPS; ++i) {
                sum[i] = make_float4(Reduction::of(sum[i].x, v[i].x), Reduction::of(sum[i].y, v[i].y),
                                     Reduction::of(sum[i].z, v[i].z), Reduction::of(sum[i].w, v[i].w));
            }
        }
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) Values::put_four(t.to, own + i * 4 * THREADS, sum[i]);
        return;
    }
    u64 end = min(first + TILE, t.count);
    for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
        float sum = Values::one(__ldg(t.sources), at);
        for (u32 r = 1; r < count; ++r) sum = Reduction::of(sum, Values::one(__ldg(t.sources + r), at));
        Values::put(t.to, at, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_f32(const __grid_constant__ CombineArguments all) {
    combine<Sum, ValuesF32>(all);
}

extern "C" __global__ void __launch_bounds__(THREADS) max_f32(const __grid_constant__ CombineArguments all) {
    combine<Max, ValuesF32>(all);
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_bf16(const __grid_constant__ CombineArguments all) {
    combine<Sum, ValuesBf16>(all);
}

extern "C" __global__ void __launch_bounds__(THREADS) max_bf16(const __grid_constant__ CombineArguments all) {
    combine<Max, ValuesBf16>(all);
}

// What a rank has of a gradient: a slice per rank. They are summed, and the sum is stored, rounded to bf16, quantized
// to MXFP8 or as it is, or accumulated, in one pass over memory.
struct SlicesTensor {
    // One address per rank.
    const u64* slices;
    float* into;
    u64 count;
    u32 slice_count;
    u16 aligned;
    // ROWS, MORE, ROUNDED, or 1 for what begins a sum. Kernels that quantize do not ask.
    u16 target;
    // Where the squares of each tile go, if they are taken, and of how many elements they are.
    double* squares;
    u64 counted;
};
static_assert(sizeof(SlicesTensor) == 48, "kernels::slices::SlicesTensor");

struct SlicesArguments {
    Tiles tiles;
    const SlicesTensor* tensors;
    float factor;
    u32 reserved;
};

// The sum as it is, its product with the factor, added, and the sum rounded to bf16. The product that overwrites is 1.
constexpr u32 ROWS = 0;
constexpr u32 MORE = 2;
constexpr u32 ROUNDED = 3;

template <class Slice, bool QUANTIZED>
__device__ __forceinline__ void sum_slices(const SlicesArguments& all) {
    constexpr u32 LOADS = TILE / (WIDTH * THREADS);
    Place place = place_of(all.tiles, blockIdx.x);
    const SlicesTensor& t = all.tensors[place.tensor];
    u64 first = u64(place.tile) * TILE;
    u32 count = t.slice_count;
    u32 target = QUANTIZED ? ROWS : t.target;
    float factor = all.factor;
    double* into_squares = QUANTIZED ? nullptr : t.squares;
    u64 counted = t.counted;
    Squares squares;
    if (t.aligned && first + TILE <= t.count) {
        u64 own = first + WIDTH * threadIdx.x;
        float sum[LOADS][WIDTH];
        float4 before[LOADS];
        if (target == MORE) {
#pragma unroll
            for (u32 i = 0; i < LOADS; ++i) {
                before[i] = *reinterpret_cast<const float4*>(t.into + own + i * WIDTH * THREADS);
            }
        }
        u64 slice = __ldg(t.slices);
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i) Slice::load(slice, own + i * WIDTH * THREADS, t.count, sum[i]);
#pragma unroll 3
        for (u32 r = 1; r < count; ++r) {
            slice = __ldg(t.slices + r);
            float v[LOADS][WIDTH];
#pragma unroll
            for (u32 i = 0; i < LOADS; ++i) Slice::load(slice, own + i * WIDTH * THREADS, t.count, v[i]);
#pragma unroll
            for (u32 i = 0; i < LOADS; ++i) {
#pragma unroll
                for (u32 k = 0; k < WIDTH; ++k) sum[i][k] = sum[i][k] + v[i][k];
            }
        }
#pragma unroll
        for (u32 i = 0; i < LOADS; ++i) {
            float4 v = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
            if (target == ROUNDED) {
                ValuesBf16::put_four(u64(t.into), own + i * WIDTH * THREADS, v);
                continue;
            }
            if (QUANTIZED) {
                u64 at = own + i * WIDTH * THREADS;
                u32 scale;
                u32 codes = SliceMxfp8::codes_of(sum[i], scale);
                *reinterpret_cast<u32*>(u64(t.into) + at) = codes;
                SliceMxfp8::put_scale(u64(t.into), at, t.count, scale);
                continue;
            }
            if (target != ROWS) v = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
            if (target == MORE) {
                v = make_float4(before[i].x + v.x, before[i].y + v.y, before[i].z + v.z, before[i].w + v.w);
            }
            *reinterpret_cast<float4*>(t.into + own + i * WIDTH * THREADS) = v;
            if (into_squares != nullptr) {
                u64 at = own + i * WIDTH * THREADS;
                squares.add(first + TILE <= counted ? v : counted_of(v, at, counted));
            }
        }
    } else {
        u64 end = min(first + TILE, t.count);
        // Four neighbours at a time, whose squares are the thread's.
#pragma unroll 1
        for (u64 own = first + WIDTH * threadIdx.x; own < end; own += WIDTH * THREADS) {
            float v[WIDTH] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (u32 k = 0; k < WIDTH; ++k) {
                u64 at = own + k;
                if (at >= end) continue;
                v[k] = Slice::one(__ldg(t.slices), at, t.count);
                for (u32 r = 1; r < count; ++r) v[k] = v[k] + Slice::one(__ldg(t.slices + r), at, t.count);
                if (QUANTIZED) continue;
                if (target == ROUNDED) {
                    ValuesBf16::put(u64(t.into), at, v[k]);
                    continue;
                }
                if (target != ROWS) v[k] = v[k] * factor;
                if (target == MORE) v[k] = t.into[at] + v[k];
                t.into[at] = v[k];
            }
            if (QUANTIZED) {
                u32 scale;
                u32 codes = SliceMxfp8::codes_of(v, scale);
#pragma unroll
                for (u32 k = 0; k < WIDTH; ++k) reinterpret_cast<u8*>(t.into)[own + k] = u8(codes >> 8 * k);
                SliceMxfp8::put_scale(u64(t.into), own, t.count, scale);
            }
            squares.add(counted_of(make_float4(v[0], v[1], v[2], v[3]), own, counted));
        }
    }
    if (into_squares == nullptr) return;
    double sum = over_block(squares.of_thread());
    if (threadIdx.x == 0) into_squares[place.tile] = sum;
}

#define SLICES_KERNELS(name, Slice)                                             \
    extern "C" __global__ void __launch_bounds__(THREADS)                       \
    sum_slices_##name(const __grid_constant__ SlicesArguments all) {            \
        sum_slices<Slice, false>(all);                                          \
    }                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS)                       \
    quantize_slices_##name(const __grid_constant__ SlicesArguments all) {       \
        sum_slices<Slice, true>(all);                                           \
    }

SLICES_KERNELS(f32, SliceF32)
SLICES_KERNELS(bf16, SliceBf16)
SLICES_KERNELS(mxfp8, SliceMxfp8)
