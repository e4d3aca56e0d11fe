// A tile of activations: how a thread block reads 128 x 128 bf16 values and what its sources make of them, and
// how codes of the transposed tile are written.
//
// Laws:
// - A source's values are rounded to bf16 before anything is made of them: codes and scales are those that two
//   launches would give, one that writes the values and another that reads them.
// - A thread block takes a tile, a warp 16 rows of it, a lane four columns. What is outside the matrix is zero.
// - A line of transposed codes has `pitch` bytes, of which those after the last row are zero, so that they may
//   be contracted over.
// - cols, row_pitch and pitch are multiples of 16, and matrices begin at multiples of 16 bytes.

#pragma once

#include "common.cuh"
#include "elements.cuh"
#include "gelu.cuh"

struct ActivationArguments {
    const u16* values;
    // Null where not wanted.
    u8* data;
    u8* turned;
    // Decode scales of the codes and of the transposed codes, as the source that includes this says.
    float* scale;
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

// The tile of a thread block, and where the values of a thread begin.
struct TilePlace {
    u32 top;
    u32 left;
    u32 row;
    u32 column;
    // Rows of the warp and those below it where the lane's columns are in the matrix.
    u32 rows;
};

__device__ __forceinline__ TilePlace tile_of(const ActivationArguments& t) {
    u32 across = divide_up(t.cols, SIDE);
    u32 top = blockIdx.x / across * SIDE;
    u32 left = blockIdx.x % across * SIDE;
    u32 row = top + warp() * ROWS_OF_WARP;
    u32 column = left + 4 * lane();
    return TilePlace{top, left, row, column, column < t.cols && row < t.rows ? t.rows - row : 0};
}

// What the source makes of the thread's values. All are requested before any is waited for. Outside the matrix
// are zeros, of which every source makes zeros.
template <class Source>
__device__ __forceinline__ void hold(const ActivationArguments& t, const TilePlace& tile, uint2 (&held)[ROWS_OF_WARP]) {
    u64 at = u64(tile.row) * t.row_pitch + tile.column;
    uint2 beside[Source::READS_TWO ? ROWS_OF_WARP : 1];
#pragma unroll
    for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
        u32 second = Source::READS_TWO ? r : 0;
        held[r] = load_if(r < tile.rows, t.values + at);
        beside[second] = Source::READS_TWO ? load_if(r < tile.rows, t.beside + at) : make_uint2(0, 0);
        at += t.row_pitch;
    }
#pragma unroll
    for (u32 r = 0; r < ROWS_OF_WARP; ++r) held[r] = Source::of(held[r], beside[Source::READS_TWO ? r : 0]);
}

// The largest magnitudes of each of the thread's columns.
__device__ __forceinline__ uint2 largest_of_columns(const uint2 (&held)[ROWS_OF_WARP]) {
    uint2 columns = make_uint2(0, 0);
#pragma unroll
    for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
        columns = make_uint2(larger(columns.x, magnitudes(held[r].x)), larger(columns.y, magnitudes(held[r].y)));
    }
    return columns;
}

// The largest magnitude of the thread's values of a row, as the bits of an f32. Magnitudes order as their bits do.
__device__ __forceinline__ u32 largest_of_row(const uint2& four) {
    u32 pair = larger(larger(0, magnitudes(four.x)), magnitudes(four.y));
    return max(pair << 16, pair & 0xFFFF0000u);
}

// Codes of the transposed tile, by way of shared memory. The factors are those of the thread's columns.
template <class Element>
__device__ __forceinline__ void write_turned(const ActivationArguments& t, const TilePlace& tile,
                                             uint4 (&lines)[SIDE * SIDE / 16], const uint2 (&held)[ROWS_OF_WARP],
                                             float4 factors) {
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
        if (tile.left + line < t.cols && tile.top + group * 16 < t.pitch) {
            *reinterpret_cast<uint4*>(t.turned + u64(tile.left + line) * t.pitch + tile.top + group * 16) =
                lines[line * 8 + (group ^ (line / 4 % 8))];
        }
    }
}
