// Adam and AdamW over masters that are cast to FP8 in blocks of 128x128: update, amax, scale and cast in one pass.
//
// Laws:
// - The arithmetic is that of adam.cuh, and bit for bit that of amax.cu, scale.cu and cast.cu after it.
// - A thread block takes one block of the format, and reads and writes each element of it once. What it casts it holds
//   as bfloat16; where the cast does not go by way of bfloat16, it reads its masters again.
// - What lies outside the matrix is neither read nor written, but for the entries that pad a row of scales: they are 0.

#include "adam.cuh"

struct AdamBlockCastTensor {
    float* master;
    u8* exp_avg;
    u8* exp_avg_sq;
    const float* gradient;
    const Hyperparameters* hyperparameters;
    u8* data;
    float* plane;
    float* tensor_scale;
    u32 rows;
    u32 cols;
    // Entries of a row of scales.
    u32 pitch;
    // Whether four elements of a row may be read and written at once.
    u32 aligned;
};
static_assert(sizeof(AdamBlockCastTensor) == 80, "kernels::adam_block_cast::TensorArguments");

struct AdamBlockCastArguments {
    Tiles tiles;
    const AdamBlockCastTensor* tensors;
    Rule rule;
    // The largest code's value, and the lower bound of an amax.
    float largest_code;
    float smallest_amax;
    u32 power_of_two;
    u16 via_bf16;
    // E5M2 instead of E4M3.
    u16 e5m2;
    AdamBlockCastTensor only;
};
static_assert(sizeof(AdamBlockCastArguments) == 152, "kernels::adam_block_cast::Arguments");

constexpr u32 SIDE = 128;
constexpr u32 TILE_THREADS = 512;
constexpr u32 TILE_WARPS = TILE_THREADS / 32;
// Rows of a warp.
constexpr u32 ROUNDS = SIDE / TILE_WARPS;

// Replaces what a thread has of a whole block, and keeps its masters as they are cast. The thread's first element is
// `first`; its others are `pitch` apart.
template <bool DECOUPLED, class Moment>
__device__ __forceinline__ Found update_whole_block(const AdamBlockCastArguments& all, const AdamBlockCastTensor& t,
                                                    const Step& step, u64 first, u64 pitch, uint2 (&kept)[ROUNDS]) {
    Found found = {0.0f, true};
#pragma unroll
    for (u32 i = 0; i < ROUNDS; ++i) {
        float4 p = update_four<DECOUPLED, Moment>(all.rule, t, step, first + i * pitch, found);
        kept[i] = make_uint2(pack_bf16(p.x, p.y), pack_bf16(p.z, p.w));
    }
    return found;
}

// The same of a block that is cut, or whose rows do not begin at multiples of four elements: one element after the
// other, of rows from `row` on below `end`, and of columns from `column` on.
template <bool DECOUPLED, class Moment>
__device__ __forceinline__ Found update_cut_block(const AdamBlockCastArguments& all, const AdamBlockCastTensor& t,
                                                  const Step& step, u32 row, u32 end, u32 column) {
    Found found = {0.0f, true};
    u32 right = min((column / SIDE + 1) * SIDE, t.cols);
#pragma unroll 1
    for (; row < end; row += TILE_WARPS) {
#pragma unroll 1
        for (u32 c = column; c < right; c += 32) {
            update_one<DECOUPLED, Moment>(all.rule, t, step, u64(row) * t.cols + c, found);
        }
    }
    return found;
}

__device__ __forceinline__ u32 codes_of(const AdamBlockCastArguments& all, float4 v, float factor) {
    v = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
    return all.e5m2 ? encode4<E5m2>(v) : encode4<E4m3>(v);
}

template <bool DECOUPLED, class Moment>
__device__ __forceinline__ void adam_block_cast(const AdamBlockCastArguments& all) {
    if (skips(all.rule.vote)) return;
    __shared__ float of_warp[TILE_WARPS];
    Place place = place_of(all.tiles, blockIdx.x);
    const AdamBlockCastTensor t = tensor_of<AdamBlockCastTensor>(all, place);
    u32 across = max(divide_up(t.cols, SIDE), 1u);
    u32 block_row = place.tile / across;
    u32 block_column = place.tile % across;
    u32 top = block_row * SIDE;
    u32 left = block_column * SIDE;
    u32 end = min(top + SIDE, t.rows);
    bool whole = t.aligned && top + SIDE <= t.rows && left + SIDE <= t.cols;
    u64 first = u64(top + warp()) * t.cols + left + 4 * lane();
    u64 pitch = u64(TILE_WARPS) * t.cols;
    const Step& step = scalars(all.rule, t.hyperparameters);
    uint2 kept[ROUNDS];
    Found found = whole ? update_whole_block<DECOUPLED, Moment>(all, t, step, first, pitch, kept)
                        : update_cut_block<DECOUPLED, Moment>(all, t, step, top + warp(), end, left + lane());
    if (!found.valid) diverge(all.rule);
    float amax = over_warp(found.largest);
    if (lane() == 0) of_warp[warp()] = amax;
    __syncthreads();
    amax = over_warp(of_warp[lane() % TILE_WARPS]);
    amax = all.via_bf16 ? round_to_bf16(amax) : amax;
    float encode = fp8_scale(amax, all.smallest_amax, all.largest_code, all.power_of_two != 0);
    if (threadIdx.x == 0) {
        if (place.tile == 0) *t.tensor_scale = 1.0f;
        if (top < t.rows) {
            float* row = t.plane + u64(block_row) * t.pitch;
            row[block_column] = 1.0f / encode;
            u32 padding = block_column + 1 == across ? across : t.pitch;
            for (u32 entry = padding; entry < t.pitch; ++entry) row[entry] = 0.0f;
        }
    }
    if (!whole) {
#pragma unroll 1
        for (u32 row = top + warp(); row < end; row += TILE_WARPS) {
#pragma unroll 1
            for (u32 c = left + lane(); c < min(left + SIDE, t.cols); c += 32) {
                u64 at = u64(row) * t.cols + c;
                float p = t.master[at];
                p = (all.via_bf16 ? round_to_bf16(p) : p) * encode;
                t.data[at] = u8(all.e5m2 ? E5m2::encode1(p) : E4m3::encode1(p));
            }
        }
    } else if (all.via_bf16) {
#pragma unroll
        for (u32 i = 0; i < ROUNDS; ++i) {
            float4 p = make_float4(__uint_as_float(kept[i].x << 16), __uint_as_float(kept[i].x & 0xFFFF0000u),
                                   __uint_as_float(kept[i].y << 16), __uint_as_float(kept[i].y & 0xFFFF0000u));
            *reinterpret_cast<u32*>(t.data + first + i * pitch) = codes_of(all, p, encode);
        }
    } else {
#pragma unroll 1
        for (u32 i = 0; i < ROUNDS; ++i) {
            u64 at = first + i * pitch;
            float4 p = *reinterpret_cast<const float4*>(t.master + at);
            *reinterpret_cast<u32*>(t.data + at) = codes_of(all, p, encode);
        }
    }
}

#define ADAM_BLOCK_CAST_KERNEL(name, decoupled, moment)                \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 2)      \
    name(const __grid_constant__ AdamBlockCastArguments all) {         \
        adam_block_cast<decoupled, moment>(all);                       \
    }

ADAM_BLOCK_CAST_KERNEL(adamw_cast_block128_f32, true, MomentF32)
ADAM_BLOCK_CAST_KERNEL(adamw_cast_block128_bf16, true, MomentBf16)
ADAM_BLOCK_CAST_KERNEL(adam_cast_block128_f32, false, MomentF32)
ADAM_BLOCK_CAST_KERNEL(adam_cast_block128_bf16, false, MomentBf16)
