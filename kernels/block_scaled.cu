// Turns activations and their gradients, bf16 [rows, cols], into operands of products whose hardware scales blocks:
// MXFP8 along the rows, and of the transposed matrix along its columns, from one reading, with GELU on the way where
// a source says so; NVFP4 in 1x16 blocks along the rows.
//
// Laws, besides those of activation.cuh:
// - Codes and scales are those of `format`: MXFP8 of the matrix and of its transpose, with rows of zeros after the
//   last one where a block of 32 is not full; NVFP4 of the matrix, whose amax `turned_scale` holds.
// - Scales are written in the layout that products read (`format::swizzle`): a tile of 128 lines by four blocks is
//   512 bytes one after the other. The tile of a thread block is such a tile in either direction, or two of NVFP4,
//   so thread blocks write whole tiles, and with them the padding, which is zero because outside the matrix are
//   zeros.
// - An NVFP4 amax that is not finite has no scales. Codes are then any, and the product's alpha is not finite, so
//   nor is a result.
// - cols is a multiple of 32, pitch the rows rounded up to 32.

#include "activation.cuh"

// Bytes of a tile of swizzled scales, and elements of a block.
constexpr u32 SCALE_TILE = 512;
constexpr u32 BLOCK32 = 32;
constexpr u32 BLOCKS = SIDE / BLOCK32;

// Where a tile of swizzled scales holds that of `line`, of the 128, and `block`, of the four.
__device__ __forceinline__ u32 swizzled(u32 line, u32 block) { return line % 32 * 16 + line / 32 * 4 + block; }

// Writes tile (`down`, `over`) of a plane that is `across` tiles wide, and with them those to its right of which
// `tiles` has room, if the plane has them.
template <u32 TILES>
__device__ __forceinline__ void write_scales(float* plane, u32 down, u32 over, u32 across,
                                             const u32 (&tiles)[TILES * SCALE_TILE / 4]) {
    u32 tile = over + threadIdx.x / (SCALE_TILE / 4);
    if (threadIdx.x >= TILES * SCALE_TILE / 4 || tile >= across) return;
    reinterpret_cast<u32*>(plane)[(u64(down) * across + over) * (SCALE_TILE / 4) + threadIdx.x] = tiles[threadIdx.x];
}

// The scale of a block of MXFP8 with this amax.
__device__ __forceinline__ u32 scale_of(float amax) { return E8m0::encode(amax * __uint_as_float(0x3B124925u)); }

// The largest of the lanes that differ from this one in bits below `LANES`.
template <u32 LANES>
__device__ __forceinline__ u32 largest_of_lanes(u32 amax) {
#pragma unroll
    for (u32 bit = 1; bit < LANES; bit *= 2) amax = max(amax, __shfl_xor_sync(ALL_LANES, amax, bit));
    return amax;
}

template <class Source>
__device__ __forceinline__ void quantize_mxfp8(const ActivationArguments& t) {
    __shared__ uint4 lines[SIDE * SIDE / 16];
    __shared__ u32 scales[SCALE_TILE / 4];
    __shared__ u32 turned_scales[SCALE_TILE / 4];
    // Amaxes of four columns of 16 rows each, and the factors of all columns of 32 rows.
    __shared__ uint2 of_columns[WARPS][SIDE / 4];
    __shared__ float4 of_blocks[BLOCKS][SIDE / 4];
    const TilePlace tile = tile_of(t);
    uint2 held[ROWS_OF_WARP];
    hold<Source>(t, tile, held);
    u32 down = tile.top / SIDE;
    u32 over = tile.left / SIDE;

    if (t.data != nullptr) {
        // Eight lanes hold a block of a row.
        u8* into = t.data + u64(tile.row) * t.cols + tile.column;
#pragma unroll
        for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
            u32 scale = scale_of(__uint_as_float(largest_of_lanes<8>(largest_of_row(held[r]))));
            float factor = E8m0::reciprocal(scale);
            float4 v = values_of(held[r]);
            u32 codes = encode4<E4m3>(make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor));
            if (r < tile.rows) *reinterpret_cast<u32*>(into) = codes;
            if (lane() % 8 == 0) {
                reinterpret_cast<u8*>(scales)[swizzled(warp() * ROWS_OF_WARP + r, lane() / 8)] = u8(scale);
            }
            into += t.cols;
        }
        __syncthreads();
        write_scales<1>(t.scale, down, over, divide_up(t.cols, SIDE), scales);
    }

    if (t.turned == nullptr) return;
    of_columns[warp()][lane()] = largest_of_columns(held);
    __syncthreads();
#pragma unroll
    for (u32 n = 0; n < SIDE * BLOCKS / THREADS; ++n) {
        u32 item = n * THREADS + threadIdx.x;
        u32 column = item % SIDE;
        u32 block = item / SIDE;
        // Two warps hold the rows of a block.
        const u16* of_warps = reinterpret_cast<const u16*>(of_columns[2 * block]) + column;
        u32 amax = max(u32(of_warps[0]), u32(of_warps[SIDE]));
        u32 scale = scale_of(bf16_value(u16(amax)));
        reinterpret_cast<u8*>(turned_scales)[swizzled(column, block)] = u8(scale);
        reinterpret_cast<float*>(of_blocks[block])[column] = E8m0::reciprocal(scale);
    }
    __syncthreads();
    write_scales<1>(t.turned_scale, over, down, divide_up(t.rows, SIDE), turned_scales);
    write_turned<E4m3>(t, tile, lines, held, of_blocks[warp() / 2][lane()]);
}

#define MXFP8_KERNEL(name, Source)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                        \
    activation_mxfp8##name(const __grid_constant__ ActivationArguments all) {                                    \
        quantize_mxfp8<Source>(all);                                                                             \
    }

MXFP8_KERNEL(, Values)
MXFP8_KERNEL(_gelu, Gelu)
MXFP8_KERNEL(_gelu_gradient, GeluGradient)

// Elements of a block of NVFP4, and tiles of swizzled scales side by side in a tile of values.
constexpr u32 BLOCK16 = 16;
constexpr u32 TILES16 = SIDE / BLOCK16 / 4;

extern "C" __global__ void __launch_bounds__(THREADS)
activation_nvfp4(const __grid_constant__ ActivationArguments all) {
    __shared__ u32 scales[TILES16 * SCALE_TILE / 4];
    // A scale has 128 codes, so a thread block divides 128 times. Amaxes are not negative.
    __shared__ float factor_of[128];
    __shared__ float multiplier;
    const TilePlace tile = tile_of(all);
    uint2 held[ROWS_OF_WARP];
    hold<Values>(all, tile, held);
    if (threadIdx.x < 128) {
        // As in scale.cu: S_enc, its sixth, and 1 / (s * (1 / S_enc)).
        float amax = __ldg(all.turned_scale);
        float encode_tensor = amax == 0.0f ? 1.0f : fminf(2688.0f / amax, LARGEST_F32);
        float decode_tensor = 1.0f / encode_tensor;
        factor_of[threadIdx.x] = fminf(1.0f / (E4m3::decode(threadIdx.x) * decode_tensor), LARGEST_F32);
        if (threadIdx.x == 0) multiplier = encode_tensor * __uint_as_float(0x3E2AAAABu);
    }
    __syncthreads();

    // Four lanes hold a block of a row.
    u8* into = all.data + (u64(tile.row) * all.cols + tile.column) / 2;
    u32 block = lane() / 4;
    u8* own = reinterpret_cast<u8*>(scales) + block / 4 * SCALE_TILE;
#pragma unroll
    for (u32 r = 0; r < ROWS_OF_WARP; ++r) {
        float amax = __uint_as_float(largest_of_lanes<4>(largest_of_row(held[r])));
        u32 scale = E4m3::encode1(fminf(amax * multiplier, LARGEST_F32));
        float factor = factor_of[scale & 0x7F];
        float4 v = values_of(held[r]);
        u32 codes = E2m1::encode4(make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor));
        if (r < tile.rows) *reinterpret_cast<u16*>(into) = u16(codes);
        if (lane() % 4 == 0) own[swizzled(warp() * ROWS_OF_WARP + r, block % 4)] = u8(scale);
        into += all.cols / 2;
    }
    __syncthreads();
    write_scales<TILES16>(all.scale, tile.top / SIDE, tile.left / SIDE * TILES16, divide_up(all.cols, SIDE / TILES16),
                          scales);
}

struct ScalarsArguments {
    const float* first_amax;
    const float* second_amax;
    float* alpha;
    float* beta;
    float addends;
    u32 reserved;
};
static_assert(sizeof(ScalarsArguments) == 40, "kernels::scalars::Arguments");

// Alpha and beta of a product of two tensors in NVFP4: block scales are relative to amax / 2688.
extern "C" __global__ void product_scalars(const __grid_constant__ ScalarsArguments all) {
    *all.alpha = *all.first_amax * *all.second_amax * (1.0f / 7225344.0f);
    *all.beta = all.addends;
}
