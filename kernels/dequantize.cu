// Values of planes, f32 or bfloat16.
//
// Laws:
// - `y = code * scale` in the format's order of operations, rounded once more only for a bfloat16 output.
// - The planes are those of the stored matrix, which is the transposed weight for columnwise planes; only
//   MXFP8 stores its columnwise planes untransposed, and they are transposed on the way out.
// - Padding of the planes is never looked at.

#include "common.cuh"
#include "elements.cuh"
#include "fragment.cuh"

struct DequantizeTensor {
    const u8* data;
    const u8* scale;
    // One f32, or null: 1.
    const float* tensor_scale;
    u8* out;
    // The stored matrix.
    u32 rows;
    u32 cols;
    // Entries per row of the scale plane.
    u32 pitch;
    // May four neighbours of a row be read, and written, at once?
    u32 aligned;
};
static_assert(sizeof(DequantizeTensor) == 48, "kernels::dequantize::TensorArguments");

struct DequantizeArguments {
    Tiles tiles;
    const DequantizeTensor* tensors;
};

struct ToF32 {
    static constexpr u32 BYTES = 4;
    static __device__ __forceinline__ void four(u8* out, float4 v) { *reinterpret_cast<float4*>(out) = v; }
    static __device__ __forceinline__ void one(u8* out, float v) { *reinterpret_cast<float*>(out) = v; }
};

struct ToBf16 {
    static constexpr u32 BYTES = 2;
    static __device__ __forceinline__ void four(u8* out, float4 v) {
        u32 low = bf16_bits(round_to_bf16(v.x)) | u32(bf16_bits(round_to_bf16(v.y))) << 16;
        u32 high = bf16_bits(round_to_bf16(v.z)) | u32(bf16_bits(round_to_bf16(v.w))) << 16;
        *reinterpret_cast<uint2*>(out) = make_uint2(low, high);
    }
    static __device__ __forceinline__ void one(u8* out, float v) {
        *reinterpret_cast<u16*>(out) = bf16_bits(round_to_bf16(v));
    }
};

// Formats: codes of four neighbours as they are stored, their values, and the factor of a column's block.
struct Nvfp4 {
    static __device__ __forceinline__ u32 load4(const u8* data, u64 at) {
        return __ldg(reinterpret_cast<const u16*>(data + at / 2));
    }
    // The column is even.
    static __device__ __forceinline__ u32 load_one(const u8* data, u64 at) {
        return (__ldg(data + at / 2) >> (4 * (at % 2))) & 15;
    }
    static __device__ __forceinline__ float4 decode4(u32 codes) {
        return make_float4(E2m1::decode(codes), E2m1::decode(codes >> 4), E2m1::decode(codes >> 8),
                           E2m1::decode(codes >> 12));
    }
    static __device__ __forceinline__ float decode(u32 code) { return E2m1::decode(code); }
    static __device__ __forceinline__ float factor(const DequantizeTensor& t, float tensor, u32 row, u32 column) {
        u32 scale = __ldg(t.scale + u64(row) * t.pitch + column / 16);
        return (E4m3::decode(scale) * tensor) * (1.0f / 2688.0f);
    }
};

template <class Element>
struct Fp8Codes {
    static __device__ __forceinline__ u32 load4(const u8* data, u64 at) {
        return __ldg(reinterpret_cast<const u32*>(data + at));
    }
    static __device__ __forceinline__ u32 load_one(const u8* data, u64 at) { return __ldg(data + at); }
    static __device__ __forceinline__ float4 decode4(u32 codes) {
        return make_float4(Element::decode(codes & 0xFF), Element::decode((codes >> 8) & 0xFF),
                           Element::decode((codes >> 16) & 0xFF), Element::decode(codes >> 24));
    }
    static __device__ __forceinline__ float decode(u32 code) { return Element::decode(code); }
};

template <class Element>
struct Fp8Tile128 : Fp8Codes<Element> {
    static __device__ __forceinline__ float factor(const DequantizeTensor& t, float, u32 row, u32 column) {
        return __ldg(reinterpret_cast<const float*>(t.scale) + u64(row / 128) * t.pitch + column / 128);
    }
};

template <class Element>
struct Fp8Row128 : Fp8Codes<Element> {
    static __device__ __forceinline__ float factor(const DequantizeTensor& t, float, u32 row, u32 column) {
        return __ldg(reinterpret_cast<const float*>(t.scale) + u64(column / 128) * t.pitch + row);
    }
};

template <class Element>
struct Fp8Whole : Fp8Codes<Element> {
    static __device__ __forceinline__ float factor(const DequantizeTensor&, float tensor, u32, u32) {
        return tensor;
    }
};

struct Mxfp8Rowwise : Fp8Codes<E4m3> {
    static __device__ __forceinline__ float factor(const DequantizeTensor& t, float, u32 row, u32 column) {
        return E8m0::decode(__ldg(t.scale + u64(row) * t.pitch + column / 32));
    }
};

// A warp takes 16 rows, 128 columns.
template <class Format, class Out>
__device__ __forceinline__ void dequantize(const DequantizeArguments& all) {
    constexpr u32 ROWS = 16;
    Place place = place_of(all.tiles, blockIdx.x);
    const DequantizeTensor& t = all.tensors[place.tensor];
    u32 item = place.tile * WARPS + warp();
    Strip strip = strip_of(item, divide_up(t.cols, PATCH_COLUMNS), ROWS);
    u32 column = strip.column + 4 * lane();
    if (strip.row >= t.rows || column >= t.cols) return;
    float tensor = t.tensor_scale == nullptr ? 1.0f : __ldg(t.tensor_scale);
    u64 at = u64(strip.row) * t.cols + column;
    if (t.aligned && strip.row + ROWS <= t.rows && column + 4 <= t.cols) {
#pragma unroll
        for (u32 part = 0; part < ROWS; part += PATCH_ROWS) {
            u32 codes[PATCH_ROWS];
            float factors[PATCH_ROWS];
#pragma unroll
            for (u32 r = 0; r < PATCH_ROWS; ++r) codes[r] = Format::load4(t.data, at + u64(part + r) * t.cols);
#pragma unroll
            for (u32 r = 0; r < PATCH_ROWS; ++r) {
                factors[r] = Format::factor(t, tensor, strip.row + part + r, column);
            }
#pragma unroll
            for (u32 r = 0; r < PATCH_ROWS; ++r) {
                float4 v = Format::decode4(codes[r]);
                v = make_float4(v.x * factors[r], v.y * factors[r], v.z * factors[r], v.w * factors[r]);
                Out::four(t.out + (at + u64(part + r) * t.cols) * Out::BYTES, v);
            }
        }
        return;
    }
    for (u32 row = strip.row; row < min(strip.row + ROWS, t.rows); ++row) {
        for (u32 k = 0; k < 4 && column + k < t.cols; ++k) {
            u64 one = u64(row) * t.cols + column + k;
            float factor = Format::factor(t, tensor, row, column + k);
            Out::one(t.out + one * Out::BYTES, Format::decode(Format::load_one(t.data, one)) * factor);
        }
    }
}

// Columnwise MXFP8: data and scales of [M, K], values of [K, M]. A block takes 32 rows, 64 columns.
template <class Out>
__device__ __forceinline__ void dequantize_columns(const DequantizeArguments& all) {
    constexpr u32 ROWS = 32;
    constexpr u32 COLUMNS = 64;
    __shared__ float values[COLUMNS][ROWS + 1];
    Place place = place_of(all.tiles, blockIdx.x);
    const DequantizeTensor& t = all.tensors[place.tensor];
    u32 across = max(divide_up(t.cols, COLUMNS), 1u);
    u32 top = place.tile / across * ROWS;
    u32 left = place.tile % across * COLUMNS;
#pragma unroll
    for (u32 i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
        u32 row = top + i / COLUMNS;
        u32 column = left + i % COLUMNS;
        if (row < t.rows && column < t.cols) {
            u32 code = __ldg(t.data + u64(row) * t.cols + column);
            float factor = E8m0::decode(__ldg(t.scale + u64(row / 32) * t.pitch + column));
            values[i % COLUMNS][i / COLUMNS] = E4m3::decode(code) * factor;
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
        u32 row = top + i % ROWS;
        u32 column = left + i / ROWS;
        if (row < t.rows && column < t.cols) {
            Out::one(t.out + (u64(column) * t.rows + row) * Out::BYTES, values[i / ROWS][i % ROWS]);
        }
    }
}

#define DEQUANTIZE_KERNEL(name, format)                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
    dequantize_##name##_f32(const __grid_constant__ DequantizeArguments all) {                                 \
        dequantize<format, ToF32>(all);                                                                        \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
    dequantize_##name##_bf16(const __grid_constant__ DequantizeArguments all) {                                \
        dequantize<format, ToBf16>(all);                                                                       \
    }

DEQUANTIZE_KERNEL(nvfp4, Nvfp4)
DEQUANTIZE_KERNEL(e4m3_tile128, Fp8Tile128<E4m3>)
DEQUANTIZE_KERNEL(e5m2_tile128, Fp8Tile128<E5m2>)
DEQUANTIZE_KERNEL(e4m3_row128, Fp8Row128<E4m3>)
DEQUANTIZE_KERNEL(e5m2_row128, Fp8Row128<E5m2>)
DEQUANTIZE_KERNEL(e4m3_tensor, Fp8Whole<E4m3>)
DEQUANTIZE_KERNEL(e5m2_tensor, Fp8Whole<E5m2>)
DEQUANTIZE_KERNEL(mxfp8_rowwise, Mxfp8Rowwise)

extern "C" __global__ void __launch_bounds__(THREADS)
dequantize_mxfp8_columnwise_f32(const __grid_constant__ DequantizeArguments all) {
    dequantize_columns<ToF32>(all);
}
extern "C" __global__ void __launch_bounds__(THREADS)
dequantize_mxfp8_columnwise_bf16(const __grid_constant__ DequantizeArguments all) {
    dequantize_columns<ToBf16>(all);
}

// Dense planes: what is stored is the value.
struct DenseBf16 {
    static __device__ __forceinline__ float load(const u8* data, u64 at) {
        return bf16_value(__ldg(reinterpret_cast<const u16*>(data) + at));
    }
    static __device__ __forceinline__ float4 load4(const u8* data, u64 at) {
        uint2 v = __ldg(reinterpret_cast<const uint2*>(data + 2 * at));
        return make_float4(bf16_value(u16(v.x)), bf16_value(u16(v.x >> 16)), bf16_value(u16(v.y)),
                           bf16_value(u16(v.y >> 16)));
    }
};

struct DenseF32 {
    static __device__ __forceinline__ float load(const u8* data, u64 at) {
        return __ldg(reinterpret_cast<const float*>(data) + at);
    }
    static __device__ __forceinline__ float4 load4(const u8* data, u64 at) {
        return __ldg(reinterpret_cast<const float4*>(data + 4 * at));
    }
};

constexpr u32 FLAT_TILE = 8192;

template <class In, class Out>
__device__ __forceinline__ void dense(const DequantizeArguments& all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const DequantizeTensor& t = all.tensors[place.tensor];
    u64 count = u64(t.rows) * t.cols;
    u64 first = u64(place.tile) * FLAT_TILE;
    if (t.aligned && first + FLAT_TILE <= count) {
        u64 own = first + 4 * threadIdx.x;
        float4 v[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) v[i] = In::load4(t.data, own + i * 4 * THREADS);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) Out::four(t.out + (own + i * 4 * THREADS) * Out::BYTES, v[i]);
    } else {
        u64 end = min(first + FLAT_TILE, count);
        for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
            Out::one(t.out + at * Out::BYTES, In::load(t.data, at));
        }
    }
}

#define DENSE_KERNEL(name, in)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
    dequantize_##name##_f32(const __grid_constant__ DequantizeArguments all) {                                 \
        dense<in, ToF32>(all);                                                                                 \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
    dequantize_##name##_bf16(const __grid_constant__ DequantizeArguments all) {                                \
        dense<in, ToBf16>(all);                                                                                \
    }

DENSE_KERNEL(bf16, DenseBf16)
DENSE_KERNEL(f32, DenseF32)
