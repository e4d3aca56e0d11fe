// Codes of many fragments, with the encode factors of their blocks.
//
// Laws:
// - Exactly the codes of a fragment change. Of a byte that it shares with a neighbour its own nibble is
//   replaced; the two nibbles of a byte are always one thread's.
// - One rounding to bfloat16 if asked, one f32 multiplication, one rounding to the element.
// - A master is read once; MXFP8's two orientations come from one pass.

#include "common.cuh"
#include "elements.cuh"
#include "fragment.cuh"

struct CastTensor {
    Fragment fragment;
    // Factors and codes; an orientation without a plane is not wanted.
    const float* encode;
    const float* columnwise_encode;
    u8* data;
    u8* columnwise_data;
    // Columns of the block grid.
    u32 grid_cols;
    // May a row's codes be stored four at a time?
    u32 data_aligned;
};
static_assert(sizeof(CastTensor) == 80, "kernels::cast::TensorArguments");

struct CastArguments {
    Tiles tiles;
    const CastTensor* tensors;
    const Vote* vote;
    u32 via_bf16;
    u32 reserved;
};

__device__ __forceinline__ float4 round4(float4 v) {
    round_both_to_bf16(v.x, v.y);
    round_both_to_bf16(v.z, v.w);
    return v;
}

__device__ __forceinline__ float4 times(float4 v, float factor) {
    return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

// Stores the codes of four neighbours, one byte each, of which any may be missing.
__device__ __forceinline__ void store_bytes(const Fragment& f, u8* data, bool whole, u32 row, u32 column,
                                            u32 codes) {
    if (whole) {
        *reinterpret_cast<u32*>(data + offset_of(f, row, column)) = codes;
        return;
    }
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        if (holds(f, row, column + k)) data[offset_of(f, row, column + k)] = u8(codes >> (8 * k));
    }
}

// Stores the codes of four neighbours, one nibble each. The first has an even column, and rows are of even
// length, so no byte is split between threads.
__device__ __forceinline__ void store_nibbles(const Fragment& f, u8* data, bool whole, u32 row, u32 column,
                                              u32 codes) {
    u64 at = (u64(row) * f.cols + column) / 2 - f.start / 2;
    if (whole) {
        *reinterpret_cast<u16*>(data + at) = u16(codes);
        return;
    }
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
        u32 own = (holds(f, row, column + 2 * k) ? 0x0Fu : 0u) | (holds(f, row, column + 2 * k + 1) ? 0xF0u : 0u);
        u32 byte = (codes >> (8 * k)) & own;
        if (own == 0) continue;
        data[at + k] = u8(own == 0xFF ? byte : byte | (data[at + k] & ~own));
    }
}

// How a block format finds the factor of a lane's four columns, and stores their codes.
template <u32 HEIGHT, u32 WIDTH>
struct Blocks {
    static constexpr bool BY_ROW = HEIGHT == 1;

    static __device__ __forceinline__ float factor(const CastTensor& t, u32 row, u32 column) {
        if (row >= t.fragment.rows || column >= t.fragment.cols) return 0.0f;
        return __ldg(t.encode + u64(row / HEIGHT) * t.grid_cols + column / WIDTH);
    }
};

template <class Block, class Store>
__device__ __forceinline__ void cast_patch(const CastTensor& t, const Patch& patch, bool via_bf16, u32 row,
                                           u32 column, float factor, Store store) {
    float factors[PATCH_ROWS];
#pragma unroll
    for (u32 r = 0; r < PATCH_ROWS; ++r) {
        factors[r] = Block::BY_ROW ? Block::factor(t, row + r, column) : factor;
    }
#pragma unroll
    for (u32 r = 0; r < PATCH_ROWS; ++r) {
        float4 v = via_bf16 ? round4(patch.row[r]) : patch.row[r];
        store(row + r, times(v, factors[r]));
    }
}

// A warp takes 16 rows, 128 columns; a block of HEIGHT x WIDTH covers whole rows of a lane's patch or one.
template <class Block, class Store>
__device__ __forceinline__ void cast_strip(const CastArguments& all, Store store) {
    constexpr u32 ROWS = 16;
    Place place = place_of(all.tiles, blockIdx.x);
    const CastTensor& t = all.tensors[place.tensor];
    const Fragment& f = t.fragment;
    u32 item = place.tile * WARPS + warp();
    Strip strip = strip_of(item, divide_up(f.cols, PATCH_COLUMNS), ROWS);
    if (strip.row >= f.rows) return;
    bool whole = is_whole(f, strip.row, ROWS, strip.column);
    bool stores_whole = whole && t.data_aligned;
    u32 column = strip.column + 4 * lane();
    float factor = Block::BY_ROW ? 0.0f : Block::factor(t, strip.row, column);
    auto put = [&](u32 row, float4 v) { store(t, stores_whole, row, column, v); };
#pragma unroll
    for (u32 part = 0; part < ROWS / PATCH_ROWS; ++part) {
        u32 row = strip.row + part * PATCH_ROWS;
        Patch patch = load_patch(f, whole, row, strip.column);
        if (all.via_bf16) {
            cast_patch<Block>(t, patch, true, row, column, factor, put);
        } else {
            cast_patch<Block>(t, patch, false, row, column, factor, put);
        }
    }
}

struct StoreE2m1 {
    __device__ __forceinline__ void operator()(const CastTensor& t, bool whole, u32 row, u32 column,
                                               float4 v) const {
        store_nibbles(t.fragment, t.data, whole, row, column, E2m1::encode4(v));
    }
};

template <class Element>
struct StoreFp8 {
    __device__ __forceinline__ void operator()(const CastTensor& t, bool whole, u32 row, u32 column,
                                               float4 v) const {
        store_bytes(t.fragment, t.data, whole, row, column, encode4<Element>(v));
    }
};

#define CAST_KERNEL(name, height, width, store)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ CastArguments all) {    \
        if (skips(all.vote)) return;                                                                           \
        cast_strip<Blocks<height, width>>(all, store{});                                                       \
    }

CAST_KERNEL(cast_nvfp4_tile16, 16, 16, StoreE2m1)
CAST_KERNEL(cast_nvfp4_row16, 1, 16, StoreE2m1)
CAST_KERNEL(cast_e4m3_tile128, 128, 128, StoreFp8<E4m3>)
CAST_KERNEL(cast_e5m2_tile128, 128, 128, StoreFp8<E5m2>)
CAST_KERNEL(cast_e4m3_row128, 1, 128, StoreFp8<E4m3>)
CAST_KERNEL(cast_e5m2_row128, 1, 128, StoreFp8<E5m2>)

// MXFP8, both orientations: a warp takes 32 rows, so that it holds whole columnwise blocks.
extern "C" __global__ void __launch_bounds__(THREADS) cast_mxfp8(const __grid_constant__ CastArguments all) {
    if (skips(all.vote)) return;
    constexpr u32 ROWS = 32;
    Place place = place_of(all.tiles, blockIdx.x);
    const CastTensor& t = all.tensors[place.tensor];
    const Fragment& f = t.fragment;
    u32 item = place.tile * WARPS + warp();
    Strip strip = strip_of(item, divide_up(f.cols, PATCH_COLUMNS), ROWS);
    if (strip.row >= f.rows) return;
    bool whole = is_whole(f, strip.row, ROWS, strip.column);
    bool stores_whole = whole && t.data_aligned;
    u32 column = strip.column + 4 * lane();
    float of_columns[4];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        u64 at = u64(strip.row / ROWS) * f.cols + column + k;
        bool is_wanted = column + k < f.cols && t.columnwise_data != nullptr;
        of_columns[k] = is_wanted ? __ldg(t.columnwise_encode + at) : 0.0f;
    }
    for (u32 part = 0; part < ROWS / PATCH_ROWS; ++part) {
        u32 row = strip.row + part * PATCH_ROWS;
        Patch patch = load_patch(f, whole, row, strip.column);
        float of_rows[PATCH_ROWS];
#pragma unroll
        for (u32 r = 0; r < PATCH_ROWS; ++r) {
            of_rows[r] = t.data == nullptr ? 0.0f : Blocks<1, 32>::factor(t, row + r, column);
        }
#pragma unroll
        for (u32 r = 0; r < PATCH_ROWS; ++r) {
            float4 v = all.via_bf16 ? round4(patch.row[r]) : patch.row[r];
            if (t.data != nullptr) {
                u32 codes = encode4<E4m3>(times(v, of_rows[r]));
                store_bytes(f, t.data, stores_whole, row + r, column, codes);
            }
            if (t.columnwise_data != nullptr) {
                u32 codes = encode4<E4m3>(make_float4(v.x * of_columns[0], v.y * of_columns[1],
                                                      v.z * of_columns[2], v.w * of_columns[3]));
                store_bytes(f, t.columnwise_data, stores_whole, row + r, column, codes);
            }
        }
    }
}

// Elements of a tile of a format without blocks.
constexpr u32 FLAT_TILE = 8192;

// Formats without blocks: element after element, one factor or none.
template <class Store>
__device__ __forceinline__ void cast_flat(const CastArguments& all, Store store) {
    Place place = place_of(all.tiles, blockIdx.x);
    const CastTensor& t = all.tensors[place.tensor];
    const Fragment& f = t.fragment;
    u64 first = u64(place.tile) * FLAT_TILE;
    float factor = t.encode == nullptr ? 1.0f : __ldg(t.encode);
    bool via_bf16 = all.via_bf16 != 0;
    if (f.aligned && t.data_aligned && first + FLAT_TILE <= f.len) {
        u64 own = first + 4 * threadIdx.x;
        float4 v[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) v[i] = load16(f.master + own + i * 4 * THREADS);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) store.four(t.data, own + i * 4 * THREADS, v[i], factor, via_bf16);
    } else {
        u64 end = min(first + FLAT_TILE, f.len);
        for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
            store.one(t.data, at, __ldg(f.master + at), factor, via_bf16);
        }
    }
}

template <class Element>
struct FlatFp8 {
    __device__ __forceinline__ void four(u8* data, u64 at, float4 v, float factor, bool via_bf16) const {
        v = via_bf16 ? round4(v) : v;
        *reinterpret_cast<u32*>(data + at) = encode4<Element>(times(v, factor));
    }
    __device__ __forceinline__ void one(u8* data, u64 at, float v, float factor, bool via_bf16) const {
        v = via_bf16 ? round_to_bf16(v) : v;
        data[at] = u8(Element::encode1(v * factor));
    }
};

// A NaN keeps its payload here, so the rounding is the exact one.
struct FlatBf16 {
    __device__ __forceinline__ void four(u8* data, u64 at, float4 v, float, bool) const {
        u32 low = bf16_bits(round_to_bf16(v.x)) | u32(bf16_bits(round_to_bf16(v.y))) << 16;
        u32 high = bf16_bits(round_to_bf16(v.z)) | u32(bf16_bits(round_to_bf16(v.w))) << 16;
        *reinterpret_cast<uint2*>(data + 2 * at) = make_uint2(low, high);
    }
    __device__ __forceinline__ void one(u8* data, u64 at, float v, float, bool) const {
        reinterpret_cast<u16*>(data)[at] = bf16_bits(round_to_bf16(v));
    }
};

struct FlatF32 {
    __device__ __forceinline__ void four(u8* data, u64 at, float4 v, float, bool via_bf16) const {
        if (via_bf16) {
            v = make_float4(round_to_bf16(v.x), round_to_bf16(v.y), round_to_bf16(v.z), round_to_bf16(v.w));
        }
        *reinterpret_cast<float4*>(data + 4 * at) = v;
    }
    __device__ __forceinline__ void one(u8* data, u64 at, float v, float, bool via_bf16) const {
        reinterpret_cast<float*>(data)[at] = via_bf16 ? round_to_bf16(v) : v;
    }
};

#define FLAT_CAST_KERNEL(name, store)                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ CastArguments all) {    \
        if (skips(all.vote)) return;                                                                           \
        cast_flat(all, store{});                                                                               \
    }

FLAT_CAST_KERNEL(cast_e4m3_tensor, FlatFp8<E4m3>)
FLAT_CAST_KERNEL(cast_e5m2_tensor, FlatFp8<E5m2>)
FLAT_CAST_KERNEL(cast_bf16, FlatBf16)
FLAT_CAST_KERNEL(cast_f32, FlatF32)
