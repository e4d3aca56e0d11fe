// Turns activations and their gradients, bf16 [rows, cols], into FP8 operands of a product: codes along the rows,
// and codes of the transposed matrix along its columns, from one reading. GELU is computed on the way where a
// source says so.
//
// Laws:
// - A source's values are rounded to bf16 before anything is made of them: codes and scales are those that two
//   launches would give, one that writes the values and another that reads them.
// - Blocks are 1 x 128 along the contraction: 128 columns of a row for the codes as they are, 128 rows of a
//   column for the transposed ones; or one scale holds for the whole matrix. Numbers are those of `format`: FP8
//   in 1x128 blocks, of the matrix and of its transpose, and FP8 with one scale.
// - A line of transposed codes has `pitch` bytes, of which those after the last row are zero, so that they may
//   be contracted over. Padding of scale planes is zero.
// - cols and row_pitch are multiples of 16, pitch the rows rounded up to 16, and matrices begin at multiples
//   of 16 bytes.

#include "common.cuh"
#include "elements.cuh"
#include "gelu.cuh"

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
    // What is read with the values, for a source that reads two matrices.
    const u16* beside;
};
static_assert(sizeof(ActivationArguments) == 72, "kernels::activation::Arguments");

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

// Four values, or zeros where they are not wanted. By a predicate: the compiler makes a branch of a
// conditional load.
__device__ __forceinline__ uint2 load_if(bool wanted, const u16* four) {
    uint2 values;
    asm("{\n\t"
        ".reg .pred wanted;\n\t"
        "setp.ne.u32 wanted, %3, 0;\n\t"
        "mov.b32 %0, 0;\n\t"
        "mov.b32 %1, 0;\n\t"
        "@wanted ld.global.nc.v2.b32 {%0, %1}, [%2];\n\t"
        "}"
        : "=&r"(values.x), "=&r"(values.y)
        : "l"(four), "r"(u32(wanted)));
    return values;
}

// Magnitudes of two values.
__device__ __forceinline__ u32 magnitudes(u32 pair) { return pair & 0x7FFF7FFFu; }

// The larger of each of two magnitudes. NaN loses, so what began with zeros has none.
__device__ __forceinline__ u32 larger(u32 a, u32 b) {
    u32 pair;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}

// What is quantized, four values at a time.
struct Values {
    static constexpr bool READS_TWO = false;
    static __device__ __forceinline__ uint2 of(uint2 values, uint2) { return values; }
};

// GELU of the values.
struct Gelu {
    static constexpr bool READS_TWO = false;
    static __device__ __forceinline__ uint2 of(uint2 values, uint2) {
        float4 x = values_of(values);
        return make_uint2(pack_bf16(gelu_of(x.x), gelu_of(x.y)), pack_bf16(gelu_of(x.z), gelu_of(x.w)));
    }
};

// The gradient read with the values is that of their GELU; it becomes that of the values.
struct GeluGradient {
    static constexpr bool READS_TWO = true;
    static __device__ __forceinline__ uint2 of(uint2 values, uint2 beside) {
        float4 x = values_of(values);
        float4 g = values_of(beside);
        return make_uint2(pack_bf16(gelu_gradient_of(g.x, x.x), gelu_gradient_of(g.y, x.y)),
                          pack_bf16(gelu_gradient_of(g.z, x.z), gelu_gradient_of(g.w, x.w)));
    }
};

// A block takes 128 x 128 values, a warp 16 rows of them, a lane four columns.
template <class Element, bool WHOLE, class Source>
__device__ __forceinline__ void quantize(const ActivationArguments& t) {
    __shared__ uint4 lines[SIDE * SIDE / 16];
    // Amaxes of four columns each, and the factors of all.
    __shared__ uint2 of_columns[WARPS][SIDE / 4];
    __shared__ float4 of_tile[SIDE / 4];
    u32 across = divide_up(t.cols, SIDE);
    u32 top = blockIdx.x / across * SIDE;
    u32 left = blockIdx.x % across * SIDE;
    u32 row = top + warp() * ROWS_OF_WARP;
    u32 column = left + 4 * lane();
    // Rows of the warp and those below it where the lane's columns are in the matrix.
    u32 rows = column < t.cols && row < t.rows ? t.rows - row : 0;

    // All are requested before any is waited for. Outside the matrix are zeros, of which every source
    // makes zeros.
    u64 at = u64(row) * t.row_pitch + column;
    uint2 held[ROWS_OF_WARP];
    uint2 beside[Source::READS_TWO ? ROWS_OF_WARP : 1];
#pragma unroll
    for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
        u32 second = Source::READS_TWO ? r : 0;
        held[r] = load_if(r < rows, t.values + at);
        beside[second] = Source::READS_TWO ? load_if(r < rows, t.beside + at) : make_uint2(0, 0);
        at += t.row_pitch;
    }
#pragma unroll
    for (u32 r = 0; r < ROWS_OF_WARP; ++r) held[r] = Source::of(held[r], beside[Source::READS_TWO ? r : 0]);

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
                u32 pair = larger(larger(0, magnitudes(held[r].x)), magnitudes(held[r].y));
                u32 amax = __reduce_max_sync(ALL_LANES, max(pair << 16, pair & 0xFFFF0000u));
                own = lane() == r ? amax : own;
            }
            factor = fp8_scale(__uint_as_float(own), t.epsilon, Element::largest(), t.power_of_two != 0);
            u32 height = divide_up(t.rows, 4) * 4;
            if (lane() < ROWS_OF_WARP && row + lane() < height) {
                t.scale[u64(left / SIDE) * height + row + lane()] = row + lane() < t.rows ? 1.0f / factor : 0.0f;
            }
        }
        u8* into = t.data + u64(row) * t.cols + column;
#pragma unroll
        for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
            float of_row = WHOLE ? whole : __shfl_sync(ALL_LANES, factor, r);
            float4 v = values_of(held[r]);
            u32 codes = encode4<Element>(make_float4(v.x * of_row, v.y * of_row, v.z * of_row, v.w * of_row));
            if (r < rows) *reinterpret_cast<u32*>(into) = codes;
            into += t.cols;
        }
    }

    if (t.turned == nullptr) return;
    float4 factors = make_float4(whole, whole, whole, whole);
    if (!WHOLE) {
        uint2 columns = make_uint2(0, 0);
#pragma unroll
        for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
            columns = make_uint2(larger(columns.x, magnitudes(held[r].x)), larger(columns.y, magnitudes(held[r].y)));
        }
        of_columns[warp()][lane()] = columns;
        __syncthreads();
        if (threadIdx.x < SIDE) {
            const u16* of_warps = reinterpret_cast<const u16*>(of_columns) + threadIdx.x;
            u32 amax = 0;
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) amax = max(amax, u32(of_warps[w * SIDE]));
            float factor = fp8_scale(bf16_value(u16(amax)), t.epsilon, Element::largest(), t.power_of_two != 0);
            reinterpret_cast<float*>(of_tile)[threadIdx.x] = factor;
            u32 own = left + threadIdx.x;
            if (own < t.cols) t.turned_scale[u64(top / SIDE) * t.cols + own] = 1.0f / factor;
        }
        __syncthreads();
        factors = of_tile[lane()];
    }
    // The rows of a warp are 16 bytes of a transposed line. Groups of 16 bytes are at place g ^ (a quarter of the
    // line's number % 8): both sides touch every bank once.
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
