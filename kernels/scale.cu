// Scales of every block, from its amax and the tensor's: decode scales into the scale plane, encode factors
// for the cast, the tensor's own scale.
//
// Laws:
// - A thread makes quads: four neighbouring entries of the scale plane, whose pitch is a multiple of four. It
//   takes the quads of two rows, and reads the amaxes of both before it divides; in large launches it takes
//   four, because starting a thread costs as much as a row. Entries that belong to no block are zeroed with the
//   quad they are in.
// - Every division is IEEE, and the order of operations is the format's (see each function).
// - Tensors of a scale group have their amaxes next to one another, and each takes the largest of them for its own.
// - A tensor whose amax has no scale (NVFP4, not finite) keeps its planes, and says so in the word in which Adam says
//   that training does not go on (adam.cu).

#include "common.cuh"
#include "elements.cuh"

struct ScaleTensor {
    const float* block_amax;
    // Amaxes of the tensors that share its scale.
    const float* tensor_amax;
    float* encode;
    u8* plane;
    float* tensor_scale;
    // Blocks.
    u32 grid_rows;
    u32 grid_cols;
    // Entries of the scale plane: rows, and entries per row.
    u32 plane_rows;
    u32 pitch;
    // Plane rows that repeat the scales of one row of blocks.
    u16 repeat;
    // How many tensors share its scale, itself among them.
    u16 scaled_with;
    // Whether four entries of the plane may be stored at once, four amaxes read, and four factors stored.
    u16 plane_aligned;
    u16 blocks_aligned;
};
static_assert(sizeof(ScaleTensor) == 64, "kernels::scale::TensorArguments");

struct ScaleArguments {
    Tiles tiles;
    const ScaleTensor* tensors;
    const Vote* vote;
    // Becomes 1 where a tensor has no scale; may be null.
    u32* diverged;
    // The largest code's value, and the lower bound of an amax: FP8 with an f32 scale.
    float largest;
    float epsilon;
    u32 power_of_two;
    u32 reserved;
    ScaleTensor only;
};

// Quads of a thread.
constexpr u32 FEW = 2;
constexpr u32 MANY = 4;

// The amax that the tensor's scale is made of.
__device__ __forceinline__ float shared_amax(const ScaleTensor& t) {
    float amax = *t.tensor_amax;
    for (u32 k = 1; k < t.scaled_with; ++k) amax = fmaxf(amax, t.tensor_amax[k]);
    return amax;
}

// Where a quad of plane entries begins, and how many of them are scales of blocks.
struct Quad {
    u32 row;
    u32 column;
    u32 valid;
};

// The first of the thread's quads.
__device__ __forceinline__ Quad first_quad(const ScaleTensor& t, u32 tile, u32 quads) {
    u32 across = max(t.pitch / 4, 1u);
    u32 number = tile * THREADS + threadIdx.x;
    return Quad{number / across * quads, number % across * 4, 0};
}

// The quad `n` rows below.
__device__ __forceinline__ Quad below(const ScaleTensor& t, const Quad& first, u32 n) {
    u32 row = first.row + n;
    bool is_block = row < t.grid_rows && first.column < t.grid_cols;
    return Quad{row, first.column, is_block ? min(t.grid_cols - first.column, 4u) : 0};
}

__device__ __forceinline__ u64 block_of(const ScaleTensor& t, const Quad& quad) {
    return u64(quad.row) * t.grid_cols + quad.column;
}

// Amaxes of a quad; those of entries without a block are 0.
__device__ __forceinline__ float4 load_amaxes(const ScaleTensor& t, const Quad& quad) {
    const float* at = t.block_amax + block_of(t, quad);
    if (quad.valid == 4 && t.blocks_aligned) return load16(at);
    float4 v;
    v.x = quad.valid > 0 ? __ldg(at) : 0.0f;
    v.y = quad.valid > 1 ? __ldg(at + 1) : 0.0f;
    v.z = quad.valid > 2 ? __ldg(at + 2) : 0.0f;
    v.w = quad.valid > 3 ? __ldg(at + 3) : 0.0f;
    return v;
}

__device__ __forceinline__ void store_factors(const ScaleTensor& t, const Quad& quad, float4 factors) {
    float* to = t.encode + block_of(t, quad);
    if (quad.valid == 4 && t.blocks_aligned) {
        *reinterpret_cast<float4*>(to) = factors;
        return;
    }
    for (u32 k = 0; k < quad.valid; ++k) to[k] = component(factors, k);
}

__device__ __forceinline__ void store_scales(const ScaleTensor& t, u32 row, u32 column, u32 bytes) {
    u8* to = t.plane + u64(row) * t.pitch + column;
    if (t.plane_aligned) {
        *reinterpret_cast<u32*>(to) = bytes;
    } else {
        for (u32 k = 0; k < 4; ++k) to[k] = u8(bytes >> (8 * k));
    }
}

// Bytes of a quad from those of its blocks: the others are zero.
__device__ __forceinline__ u32 only_valid(const Quad& quad, u32 bytes) {
    return quad.valid == 4 ? bytes : bytes & ((1u << (8 * quad.valid)) - 1);
}

// Codes of the scales of four blocks.
__device__ __forceinline__ u32 codes_of(float4 amaxes, float multiplier) {
    return encode4<E4m3>(
        make_float4(fminf(amaxes.x * multiplier, LARGEST_F32), fminf(amaxes.y * multiplier, LARGEST_F32),
                    fminf(amaxes.z * multiplier, LARGEST_F32), fminf(amaxes.w * multiplier, LARGEST_F32)));
}

// Their factors, which follow from the codes.
__device__ __forceinline__ float4 factors_of(const float (&factor_of)[128], u32 codes) {
    return make_float4(factor_of[codes & 0x7F], factor_of[codes >> 8 & 0x7F], factor_of[codes >> 16 & 0x7F],
                       factor_of[codes >> 24 & 0x7F]);
}

// NVFP4, both block shapes. With A the amax of the tensor:
//   S_enc = A == 0 ? 1 : min(2688 / A, FMAX)       mult = S_enc * (1/6)
//   s = E4M3(min(block_amax * mult, FMAX))          e = min(1 / (s * (1 / S_enc)), FMAX)
template <u32 QUADS>
__device__ __forceinline__ void scale_nvfp4(const ScaleArguments& all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const ScaleTensor t = tensor_of<ScaleTensor>(all, place);
    Quad first = first_quad(t, place.tile, QUADS);
    // Only the way of whole quads is unrolled.
    bool whole = t.blocks_aligned && t.plane_aligned && first.column + 4 <= t.grid_cols &&
                 first.row + QUADS <= t.grid_rows && (first.row + QUADS) * t.repeat <= t.plane_rows;
    u64 at = block_of(t, first);
    float4 amaxes[QUADS];
    if (whole) {
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n) amaxes[n] = load16(t.block_amax + at + u64(n) * t.grid_cols);
    }
    float amax = shared_amax(t);
    bool finite = fabsf(amax) <= LARGEST_F32;
    if (place.tile == 0 && threadIdx.x == 0) {
        *t.tensor_scale = finite ? amax : *t.tensor_scale;
        if (!finite && all.diverged != nullptr) *all.diverged = 1;
    }
    if (!finite) return;
    // A scale has 128 codes, so a block divides 128 times. Amaxes are not negative.
    __shared__ float factor_of[128];
    __shared__ float multiplier;
    if (threadIdx.x < 128) {
        float encode_tensor = amax == 0.0f ? 1.0f : fminf(2688.0f / amax, LARGEST_F32);
        float decode_tensor = 1.0f / encode_tensor;
        factor_of[threadIdx.x] = fminf(1.0f / (E4m3::decode(threadIdx.x) * decode_tensor), LARGEST_F32);
        if (threadIdx.x == 0) multiplier = encode_tensor * __uint_as_float(0x3E2AAAABu);
    }
    __syncthreads();
    if (whole) {
        u8* plane = t.plane + u64(first.row) * t.repeat * t.pitch + first.column;
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n) {
            u32 codes = codes_of(amaxes[n], multiplier);
            *reinterpret_cast<float4*>(t.encode + at + u64(n) * t.grid_cols) = factors_of(factor_of, codes);
#pragma unroll 1
            for (u32 row = 0; row < t.repeat; ++row, plane += t.pitch) *reinterpret_cast<u32*>(plane) = codes;
        }
        return;
    }
#pragma unroll 1
    for (u32 n = 0; n < QUADS; ++n) {
        Quad quad = below(t, first, n);
        u32 codes = codes_of(load_amaxes(t, quad), multiplier);
        store_factors(t, quad, factors_of(factor_of, codes));
        codes = only_valid(quad, codes);
        u32 end = min((quad.row + 1) * t.repeat, t.plane_rows);
        for (u32 row = quad.row * t.repeat; row < end; ++row) store_scales(t, row, quad.column, codes);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 8) scale_nvfp4(const __grid_constant__ ScaleArguments all) {
    if (skips(all.vote)) return;
    scale_nvfp4<FEW>(all);
}

extern "C" __global__ void __launch_bounds__(THREADS, 6)
scale_nvfp4_large(const __grid_constant__ ScaleArguments all) {
    if (skips(all.vote)) return;
    scale_nvfp4<MANY>(all);
}

// MXFP8: c = E8M0(block_amax * (1/448)), and the cast multiplies by 2^(127 - c).
template <u32 QUADS>
__device__ __forceinline__ void scale_mxfp8(const ScaleArguments& all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const ScaleTensor t = tensor_of<ScaleTensor>(all, place);
    if (place.tile == 0 && threadIdx.x == 0) *t.tensor_scale = 1.0f;
    Quad first = first_quad(t, place.tile, QUADS);
    float4 amaxes[QUADS];
#pragma unroll
    for (u32 n = 0; n < QUADS; ++n) amaxes[n] = load_amaxes(t, below(t, first, n));
#pragma unroll
    for (u32 n = 0; n < QUADS; ++n) {
        Quad quad = below(t, first, n);
        if (quad.row >= t.plane_rows) break;
        u32 bytes = 0;
        float factors[4];
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            u32 code = E8m0::encode(component(amaxes[n], k) * __uint_as_float(0x3B124925u));
            factors[k] = E8m0::reciprocal(code);
            bytes |= code << (8 * k);
        }
        store_factors(t, quad, make_float4(factors[0], factors[1], factors[2], factors[3]));
        store_scales(t, quad.row, quad.column, only_valid(quad, bytes));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) scale_mxfp8(const __grid_constant__ ScaleArguments all) {
    if (skips(all.vote)) return;
    scale_mxfp8<FEW>(all);
}

extern "C" __global__ void __launch_bounds__(THREADS)
scale_mxfp8_large(const __grid_constant__ ScaleArguments all) {
    if (skips(all.vote)) return;
    scale_mxfp8<MANY>(all);
}

__device__ __forceinline__ float fp8_scale(const ScaleArguments& all, float amax) {
    return fp8_scale(amax, all.epsilon, all.largest, all.power_of_two != 0);
}

// FP8 in blocks. TRANSPOSED planes have a row for each column of blocks: those of 1x128.
template <bool TRANSPOSED>
__device__ __forceinline__ void scale_fp8_block(const ScaleArguments& all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const ScaleTensor t = tensor_of<ScaleTensor>(all, place);
    if (place.tile == 0 && threadIdx.x == 0) *t.tensor_scale = 1.0f;
    Quad first = first_quad(t, place.tile, FEW);
    for (u32 n = 0; n < FEW; ++n) {
        Quad quad = below(t, first, n);
        if (quad.row >= t.plane_rows || quad.column >= t.pitch) return;
        float* to = reinterpret_cast<float*>(t.plane) + u64(quad.row) * t.pitch + quad.column;
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            u32 row = TRANSPOSED ? quad.column + k : quad.row;
            u32 column = TRANSPOSED ? quad.row : quad.column + k;
            float decode = 0.0f;
            if (row < t.grid_rows && column < t.grid_cols) {
                u64 at = u64(row) * t.grid_cols + column;
                float encode = fp8_scale(all, __ldg(t.block_amax + at));
                t.encode[at] = encode;
                decode = 1.0f / encode;
            }
            to[k] = decode;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
scale_fp8_tile128(const __grid_constant__ ScaleArguments all) {
    if (skips(all.vote)) return;
    scale_fp8_block<false>(all);
}

extern "C" __global__ void __launch_bounds__(THREADS)
scale_fp8_row128(const __grid_constant__ ScaleArguments all) {
    if (skips(all.vote)) return;
    scale_fp8_block<true>(all);
}

// FP8 with one scale per tensor: a tile is a tensor.
extern "C" __global__ void __launch_bounds__(THREADS)
scale_fp8_tensor(const __grid_constant__ ScaleArguments all) {
    if (skips(all.vote)) return;
    u32 tensor = blockIdx.x * THREADS + threadIdx.x;
    if (tensor >= all.tiles.tensors) return;
    const ScaleTensor& t = all.tensors[tensor];
    float encode = fp8_scale(all, shared_amax(t));
    *t.encode = encode;
    *t.tensor_scale = 1.0f / encode;
}
