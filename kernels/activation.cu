// Activations and their gradients, bf16 [rows, cols], into FP8 operands of a product: codes along the rows, and codes
// of the transposed matrix along its columns, from one reading.
//
// Laws:
// - Blocks are 1 x 128 along the contraction: 128 columns of a row for the codes as they lie, 128 rows of a column
//   for the turned ones; or one scale holds for the whole matrix. Numbers are those of `format`: FP8 in 1x128 blocks, of
//   the matrix and of its transpose, and FP8 with one scale.
// - A line of turned codes has `pitch` bytes, of which those behind the last row are zero, so that they may be contracted
//   over. Padding of scale planes is zero.
// - cols and row_pitch are multiples of 16, pitch the rows rounded up to 16, and matrices begin at multiples of 16 bytes.

#include "common.cuh"
#include "elements.cuh"

struct ActivationArguments {
    const u16* values;
    // Null where not wanted.
    u8* data;
    u8* turned;
    // Blocks: decode scales [blocks of columns, rows rounded up to 4]. Whole matrix: one decode scale, written.
    float* scale;
    // Blocks: decode scales [blocks of rows, cols rounded up to 4]. Whole matrix: the bits of its amax, read.
    float* turned_scale;
    u32 rows;
    u32 cols;
    u32 pitch;
    u32 power_of_two;
    float epsilon;
    // Values from one row to the next.
    u32 row_pitch;
};
static_assert(sizeof(ActivationArguments) == 64, "kernels::activation::Arguments");

constexpr u32 SIDE = 128;
constexpr u32 ROWS_OF_WARP = SIDE / WARPS;
constexpr u32 ALL_LANES = 0xFFFFFFFFu;

__device__ __forceinline__ float4 values_of(uint2 four) {
    return make_float4(bf16_value(u16(four.x)), bf16_value(u16(four.x >> 16)), bf16_value(u16(four.y)),
                       bf16_value(u16(four.y >> 16)));
}

// Value k of four.
__device__ __forceinline__ float value_of(uint2 four, u32 k) {
    u32 pair = k < 2 ? four.x : four.y;
    return bf16_value(u16(k % 2 == 0 ? pair : pair >> 16));
}

// Zero stands for NaN, which never raises an amax.
__device__ __forceinline__ float largest_of(float4 v) {
    float largest = fmaxf(fmaxf(0.0f, fabsf(v.x)), fmaxf(0.0f, fabsf(v.y)));
    return fmaxf(largest, fmaxf(fmaxf(0.0f, fabsf(v.z)), fmaxf(0.0f, fabsf(v.w))));
}

// A block takes 128 x 128 values, a warp 16 rows of them, a lane four columns.
template <class Element, bool WHOLE>
__device__ __forceinline__ void quantize(const ActivationArguments& t) {
    __shared__ uint4 lines[SIDE * SIDE / 16];
    __shared__ float4 of_columns[WARPS][SIDE / 4];
    u32 across = divide_up(t.cols, SIDE);
    u32 top = blockIdx.x / across * SIDE;
    u32 left = blockIdx.x % across * SIDE;
    u32 row = top + warp() * ROWS_OF_WARP;
    u32 column = left + 4 * lane();
    bool in_columns = column < t.cols;

    uint2 held[ROWS_OF_WARP];
#pragma unroll
    for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
        held[r] = make_uint2(0, 0);
        if (in_columns && row + r < t.rows) {
            held[r] = __ldg(reinterpret_cast<const uint2*>(t.values + u64(row + r) * t.row_pitch + column));
        }
    }

    float whole = 1.0f;
    if (WHOLE) {
        whole = fp8_scale(__ldg(t.turned_scale), t.epsilon, Element::largest(), t.power_of_two != 0);
        if (blockIdx.x == 0 && threadIdx.x == 0) *t.scale = 1.0f / whole;
    }

    if (t.data != nullptr) {
        float factor = whole;
        if (!WHOLE) {
            // Magnitudes order as their bits do. Lane r keeps the amax of row r.
            u32 own = 0;
#pragma unroll
            for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
                u32 amax = __reduce_max_sync(ALL_LANES, __float_as_uint(largest_of(values_of(held[r]))));
                own = lane() == r ? amax : own;
            }
            factor = fp8_scale(__uint_as_float(own), t.epsilon, Element::largest(), t.power_of_two != 0);
            u32 height = divide_up(t.rows, 4) * 4;
            if (lane() < ROWS_OF_WARP && row + lane() < height) {
                t.scale[u64(left / SIDE) * height + row + lane()] = row + lane() < t.rows ? 1.0f / factor : 0.0f;
            }
        }
#pragma unroll
        for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
            float of_row = WHOLE ? whole : __shfl_sync(ALL_LANES, factor, r);
            if (in_columns && row + r < t.rows) {
                float4 v = values_of(held[r]);
                v = make_float4(v.x * of_row, v.y * of_row, v.z * of_row, v.w * of_row);
                *reinterpret_cast<u32*>(t.data + u64(row + r) * t.cols + column) = encode4<Element>(v);
            }
        }
    }

    if (t.turned == nullptr) return;
    float4 factors = make_float4(whole, whole, whole, whole);
    if (!WHOLE) {
        float4 columns = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
            float4 v = values_of(held[r]);
            columns = make_float4(fmaxf(columns.x, fabsf(v.x)), fmaxf(columns.y, fabsf(v.y)),
                                  fmaxf(columns.z, fabsf(v.z)), fmaxf(columns.w, fabsf(v.w)));
        }
        of_columns[warp()][lane()] = columns;
        __syncthreads();
        if (threadIdx.x < SIDE) {
            float* first = reinterpret_cast<float*>(of_columns) + threadIdx.x;
            float amax = 0.0f;
            for (u32 w = 0; w < WARPS; ++w) amax = fmaxf(amax, first[w * SIDE]);
            float factor = fp8_scale(amax, t.epsilon, Element::largest(), t.power_of_two != 0);
            *first = factor;
            u32 own = left + threadIdx.x;
            if (own < t.cols) t.turned_scale[u64(top / SIDE) * t.cols + own] = 1.0f / factor;
        }
        __syncthreads();
        factors = of_columns[0][lane()];
    }
    // The rows of a warp are 16 bytes of a turned line. Groups of 16 bytes lie at place g ^ (a quarter of the line's number
    // % 8): both sides touch every bank once.
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        float factor = component(factors, k);
        u32 words[4];
#pragma unroll
        for (u32 w = 0; w < 4; ++w) {
            words[w] = encode4<Element>(
                make_float4(value_of(held[4 * w], k) * factor, value_of(held[4 * w + 1], k) * factor,
                            value_of(held[4 * w + 2], k) * factor, value_of(held[4 * w + 3], k) * factor));
        }
        lines[(4 * lane() + k) * 8 + (warp() ^ (lane() % 8))] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    __syncthreads();
#pragma unroll
    for (u32 n = 0; n < SIDE * 8 / THREADS; ++n) {
        u32 item = n * THREADS + threadIdx.x;
        u32 line = item / 8;
        u32 group = item % 8;
        if (left + line < t.cols && top + group * 16 < t.pitch) {
            *reinterpret_cast<uint4*>(t.turned + u64(left + line) * t.pitch + top + group * 16) =
                lines[line * 8 + (group ^ (line / 4 % 8))];
        }
    }
}

#define ACTIVATION_KERNEL(name, Element, WHOLE)                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                        \
    activation_##name(const __grid_constant__ ActivationArguments all) {                                         \
        quantize<Element, WHOLE>(all);                                                                           \
    }

ACTIVATION_KERNEL(e4m3_row128, E4m3, false)
ACTIVATION_KERNEL(e5m2_row128, E5m2, false)
ACTIVATION_KERNEL(e4m3_tensor, E4m3, true)
ACTIVATION_KERNEL(e5m2_tensor, E5m2, true)

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
