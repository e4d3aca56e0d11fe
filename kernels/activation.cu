// Turns activations and their gradients, bf16 [rows, cols], into FP8 operands of a product: codes along the rows,
// and codes of the transposed matrix along its columns, from one reading. GELU is computed on the way where a
// source says so.
//
// Laws, besides those of activation.cuh:
// - Blocks are 1 x 128 along the contraction: 128 columns of a row for the codes as they are, 128 rows of a
//   column for the transposed ones; or one scale holds for the whole matrix. Numbers are those of `format`: FP8
//   in 1x128 blocks, of the matrix and of its transpose, and FP8 with one scale.
// - Blocks: `scale` is f32 [blocks of columns, rows rounded up to 4], `turned_scale` f32 [blocks of rows, cols
//   rounded up to 4], and padding is zero. Whole matrix: `scale` is one decode scale, written, and
//   `turned_scale` the bits of its amax, read.
// - pitch is the rows rounded up to 16.

#include "activation.cuh"

template <class Element, bool WHOLE, class Source>
__device__ __forceinline__ void quantize(const ActivationArguments& t) {
    __shared__ uint4 lines[SIDE * SIDE / 16];
    // Amaxes of four columns each, and the factors of all.
    __shared__ uint2 of_columns[WARPS][SIDE / 4];
    __shared__ float4 of_tile[SIDE / 4];
    const TilePlace tile = tile_of(t);
    uint2 held[ROWS_OF_WARP];
    hold<Source>(t, tile, held);

    float whole = 1.0f;
    if (WHOLE) {
        whole = fp8_scale(__ldg(t.turned_scale), t.epsilon, Element::largest(), t.power_of_two != 0);
        if (blockIdx.x == 0 && threadIdx.x == 0) *t.scale = 1.0f / whole;
    }

    if (t.data != nullptr) {
        float factor = whole;
        if (!WHOLE) {
            // Lane r keeps the amax of row r.
            u32 own = 0;
#pragma unroll
            for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
                u32 amax = __reduce_max_sync(ALL_LANES, largest_of_row(held[r]));
                own = lane() == r ? amax : own;
            }
            factor = fp8_scale(__uint_as_float(own), t.epsilon, Element::largest(), t.power_of_two != 0);
            u32 height = divide_up(t.rows, 4) * 4;
            if (lane() < ROWS_OF_WARP && tile.row + lane() < height) {
                t.scale[u64(tile.left / SIDE) * height + tile.row + lane()] =
                    tile.row + lane() < t.rows ? 1.0f / factor : 0.0f;
            }
        }
        u8* into = t.data + u64(tile.row) * t.cols + tile.column;
#pragma unroll
        for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
            float of_row = WHOLE ? whole : __shfl_sync(ALL_LANES, factor, r);
            float4 v = values_of(held[r]);
            u32 codes = encode4<Element>(make_float4(v.x * of_row, v.y * of_row, v.z * of_row, v.w * of_row));
            if (r < tile.rows) *reinterpret_cast<u32*>(into) = codes;
            into += t.cols;
        }
    }

    if (t.turned == nullptr) return;
    float4 factors = make_float4(whole, whole, whole, whole);
    if (!WHOLE) {
        of_columns[warp()][lane()] = largest_of_columns(held);
        __syncthreads();
        if (threadIdx.x < SIDE) {
            const u16* of_warps = reinterpret_cast<const u16*>(of_columns) + threadIdx.x;
            u32 amax = 0;
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) amax = max(amax, u32(of_warps[w * SIDE]));
            float factor = fp8_scale(bf16_value(u16(amax)), t.epsilon, Element::largest(), t.power_of_two != 0);
            reinterpret_cast<float*>(of_tile)[threadIdx.x] = factor;
            u32 own = tile.left + threadIdx.x;
            if (own < t.cols) t.turned_scale[u64(tile.top / SIDE) * t.cols + own] = 1.0f / factor;
        }
        __syncthreads();
        factors = of_tile[lane()];
    }
    write_turned<Element>(t, tile, lines, held, factors);
}

#define ACTIVATION_KERNEL(name, Element, WHOLE, Source)                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                        \
    activation_##name(const __grid_constant__ ActivationArguments all) {                                         \
        quantize<Element, WHOLE, Source>(all);                                                                   \
    }

ACTIVATION_KERNEL(e4m3_row128, E4m3, false, Values)
ACTIVATION_KERNEL(e5m2_row128, E5m2, false, Values)
ACTIVATION_KERNEL(e4m3_row128_gelu, E4m3, false, Gelu)
ACTIVATION_KERNEL(e5m2_row128_gelu, E5m2, false, Gelu)
ACTIVATION_KERNEL(e4m3_row128_gelu_gradient, E4m3, false, GeluGradient)
ACTIVATION_KERNEL(e5m2_row128_gelu_gradient, E5m2, false, GeluGradient)
ACTIVATION_KERNEL(e4m3_tensor, E4m3, true, Values)
ACTIVATION_KERNEL(e5m2_tensor, E5m2, true, Values)

// Zero stands for NaN, which never raises an amax.
__device__ __forceinline__ float largest_of(float4 v) {
    float largest = fmaxf(fmaxf(0.0f, fabsf(v.x)), fmaxf(0.0f, fabsf(v.y)));
    return fmaxf(largest, fmaxf(fmaxf(0.0f, fabsf(v.z)), fmaxf(0.0f, fabsf(v.w))));
}

// Values of a block of `activation_amax`.
constexpr u32 AMAX_TILE = 16384;

// Raises the word at `turned_scale` to the amax of the matrix. The word is zero before.
extern "C" __global__ void __launch_bounds__(THREADS)
activation_amax(const __grid_constant__ ActivationArguments all) {
    __shared__ u32 of_warp[WARPS];
    u64 end = u64(all.rows) * all.cols;
    u64 first = u64(blockIdx.x) * AMAX_TILE + 8 * threadIdx.x;
    float largest = 0.0f;
#pragma unroll
    for (u32 i = 0; i < AMAX_TILE / (8 * THREADS); ++i) {
        u64 at = first + u64(i) * 8 * THREADS;
        if (at < end) {
            u64 skipped = all.row_pitch == all.cols ? 0 : at / all.cols * (all.row_pitch - all.cols);
            uint4 eight = __ldg(reinterpret_cast<const uint4*>(all.values + at + skipped));
            largest = fmaxf(largest, fmaxf(largest_of(values_of(make_uint2(eight.x, eight.y))),
                                           largest_of(values_of(make_uint2(eight.z, eight.w)))));
        }
    }
    u32 amax = __reduce_max_sync(ALL_LANES, __float_as_uint(largest));
    if (lane() == 0) of_warp[warp()] = amax;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 w = 1; w < WARPS; ++w) amax = max(amax, of_warp[w]);
        atomicMax(reinterpret_cast<u32*>(all.turned_scale), amax);
    }
}
