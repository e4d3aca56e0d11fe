// Codes of many fragments, with the encode factors of their blocks.
//
// Laws:
// - Exactly the codes of a fragment change. Of a byte that it shares with a neighbour only its own nibble is
//   replaced; the same thread writes both nibbles of a byte.
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
    // Whether a row's codes may be stored four at a time.
    u32 data_aligned;
};
static_assert(sizeof(CastTensor) == 80, "kernels::cast::TensorArguments");

struct CastArguments {
    Tiles tiles;
    const CastTensor* tensors;
    const Vote* vote;
    u32 via_bf16;
    u32 reserved;
    CastTensor only;
};

__device__ __forceinline__ float4 round4(float4 v) {
    round_both_to_bf16(v.x, v.y);
    round_both_to_bf16(v.z, v.w);
    return v;
}

__device__ __forceinline__ float4 times(float4 v, float factor) {
    return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

// Codes of four neighbours, one byte each.
template <class Element>
struct StoreFp8 {
    static __device__ __forceinline__ u64 offset(const Fragment& f, u32 row, u32 column) {
        return offset_of(f, row, column);
    }
    static __device__ __forceinline__ u64 pitch(const Fragment& f) { return f.cols; }
    static __device__ __forceinline__ void whole(u8* at, float4 v) {
        *reinterpret_cast<u32*>(at) = encode4<Element>(v);
    }
    // Any of the four may be missing.
    static __device__ __forceinline__ void some(const Fragment& f, u8* data, u32 row, u32 column, float4 v) {
        u32 codes = encode4<Element>(v);
        for (u32 k = 0; k < 4; ++k) {
            if (holds(f, row, column + k)) data[offset_of(f, row, column + k)] = u8(codes >> (8 * k));
        }
    }
};

// One nibble each. The first has an even column, and rows are of even length, so no byte is split between threads.
struct StoreE2m1 {
    static __device__ __forceinline__ u64 offset(const Fragment& f, u32 row, u32 column) {
        return (u64(row) * f.cols + column) / 2 - f.start / 2;
    }
    static __device__ __forceinline__ u64 pitch(const Fragment& f) { return f.cols / 2; }
    static __device__ __forceinline__ void whole(u8* at, float4 v) {
        *reinterpret_cast<u16*>(at) = u16(E2m1::encode4(v));
    }
    static __device__ __forceinline__ void some(const Fragment& f, u8* data, u32 row, u32 column, float4 v) {
        u32 codes = E2m1::encode4(v);
        u64 at = offset(f, row, column);
        for (u32 k = 0; k < 2; ++k) {
            u32 own = (holds(f, row, column + 2 * k) ? 0x0Fu : 0u) | (holds(f, row, column + 2 * k + 1) ? 0xF0u : 0u);
            u32 byte = (codes >> (8 * k)) & own;
            if (own == 0) continue;
            data[at + k] = u8(own == 0xFF ? byte : byte | (data[at + k] & ~own));
        }
    }
};

// How a block format finds the factor of a lane's four columns, and stores their codes.
template <u32 HEIGHT, u32 WIDTH>
struct Blocks {
    static constexpr bool BY_ROW = HEIGHT == 1;

    static __device__ __forceinline__ float factor(const CastTensor& t, u32 row, u32 column) {
        return __ldg(t.encode + u64(row / HEIGHT) * t.grid_cols + column / WIDTH);
    }
};

template <class Block, class Store, bool VIA_BF16>
__device__ __forceinline__ void cast_whole(const CastTensor& t, u32 row, u32 first_column) {
    const Fragment& f = t.fragment;
    u32 column = first_column + 4 * lane();
    u8* to = t.data + Store::offset(f, row, column);
    const float* from = f.master + offset_of(f, row, column);
    float4 values[PATCH_ROWS];
    float factors[PATCH_ROWS];
#pragma unroll
    for (u32 r = 0; r < PATCH_ROWS; ++r) values[r] = load16(from + u64(r) * f.cols);
#pragma unroll
    for (u32 r = 0; r < PATCH_ROWS; ++r) {
        factors[r] = Block::BY_ROW || r == 0 ? Block::factor(t, row + r, column) : factors[0];
    }
#pragma unroll
    for (u32 r = 0; r < PATCH_ROWS; ++r) {
        float4 v = VIA_BF16 ? round4(values[r]) : values[r];
        Store::whole(to + r * Store::pitch(f), times(v, factors[r]));
    }
}

template <class Block, class Store>
__device__ __forceinline__ void cast_some(const CastTensor& t, bool via_bf16, u32 row, u32 column) {
    const Fragment& f = t.fragment;
    if (row >= f.rows || column >= f.cols) return;
    float4 v = load_some(f, row, column);
    if (via_bf16) v = round4(v);
    Store::some(f, t.data, row, column, times(v, Block::factor(t, row, column)));
}

// A warp takes 8 rows of 128 columns; a block of HEIGHT x WIDTH covers whole rows of a lane's patch or one.
template <class Block, class Store>
__device__ __forceinline__ void cast_strip(const CastArguments& all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const CastTensor t = tensor_of<CastTensor>(all, place);
    const Fragment& f = t.fragment;
    u32 item = place.tile * WARPS + warp();
    Strip strip = strip_of(item, divide_up(f.cols, PATCH_COLUMNS), PATCH_ROWS);
    if (strip.row >= f.rows) return;
    if (!t.data_aligned || !is_whole(f, strip.row, PATCH_ROWS, strip.column)) {
#pragma unroll 1
        for (u32 r = 0; r < PATCH_ROWS; ++r) {
            cast_some<Block, Store>(t, all.via_bf16, strip.row + r, strip.column + 4 * lane());
        }
    } else if (all.via_bf16) {
        cast_whole<Block, Store, true>(t, strip.row, strip.column);
    } else {
        cast_whole<Block, Store, false>(t, strip.row, strip.column);
    }
}

#define CAST_KERNEL(name, height, width, store)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 6) name(const __grid_constant__ CastArguments all) { \
        if (skips(all.vote)) return;                                                                           \
        cast_strip<Blocks<height, width>, store>(all);                                                         \
    }

CAST_KERNEL(cast_nvfp4_tile16, 16, 16, StoreE2m1)
CAST_KERNEL(cast_nvfp4_row16, 1, 16, StoreE2m1)
CAST_KERNEL(cast_e4m3_tile128, 128, 128, StoreFp8<E4m3>)
CAST_KERNEL(cast_e5m2_tile128, 128, 128, StoreFp8<E5m2>)
CAST_KERNEL(cast_e4m3_row128, 1, 128, StoreFp8<E4m3>)
CAST_KERNEL(cast_e5m2_row128, 1, 128, StoreFp8<E5m2>)

struct ColumnsOf32 {
    static __device__ __forceinline__ float factor(const CastTensor& t, u32 row, u32 column) {
        return __ldg(t.columnwise_encode + u64(row / 32) * t.fragment.cols + column);
    }
};

// MXFP8: a warp takes 8 rows of 128 columns, in both orientations.
extern "C" __global__ void __launch_bounds__(THREADS) cast_mxfp8(const __grid_constant__ CastArguments all) {
    if (skips(all.vote)) return;
    Place place = place_of(all.tiles, blockIdx.x);
    const CastTensor t = tensor_of<CastTensor>(all, place);
    const Fragment& f = t.fragment;
    u32 item = place.tile * WARPS + warp();
    Strip strip = strip_of(item, divide_up(f.cols, PATCH_COLUMNS), PATCH_ROWS);
    if (strip.row >= f.rows) return;
    u32 column = strip.column + 4 * lane();
    bool by_rows = t.data != nullptr;
    bool by_columns = t.columnwise_data != nullptr;
    float of_columns[4];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        of_columns[k] = by_columns && column + k < f.cols ? ColumnsOf32::factor(t, strip.row, column + k) : 0.0f;
    }
    auto turned = [&](float4 v) {
        return make_float4(v.x * of_columns[0], v.y * of_columns[1], v.z * of_columns[2], v.w * of_columns[3]);
    };
    if (t.data_aligned && is_whole(f, strip.row, PATCH_ROWS, strip.column)) {
        Patch patch = load_patch(f, strip.row, strip.column);
        float of_rows[PATCH_ROWS];
#pragma unroll
        for (u32 r = 0; r < PATCH_ROWS; ++r) {
            of_rows[r] = by_rows ? Blocks<1, 32>::factor(t, strip.row + r, column) : 0.0f;
        }
        u64 at = offset_of(f, strip.row, column);
#pragma unroll
        for (u32 r = 0; r < PATCH_ROWS; ++r) {
            float4 v = all.via_bf16 ? round4(patch.row[r]) : patch.row[r];
            u64 own = at + u64(r) * f.cols;
            if (by_rows) StoreFp8<E4m3>::whole(t.data + own, times(v, of_rows[r]));
            if (by_columns) StoreFp8<E4m3>::whole(t.columnwise_data + own, turned(v));
        }
        return;
    }
#pragma unroll 1
    for (u32 row = strip.row; row < min(strip.row + PATCH_ROWS, f.rows); ++row) {
        if (column >= f.cols) return;
        float4 v = load_some(f, row, column);
        if (all.via_bf16) v = round4(v);
        if (by_rows) StoreFp8<E4m3>::some(f, t.data, row, column, times(v, Blocks<1, 32>::factor(t, row, column)));
        if (by_columns) StoreFp8<E4m3>::some(f, t.columnwise_data, row, column, turned(v));
    }
}

// Elements of a tile of a format without blocks.
constexpr u32 FLAT_TILE = 8192;

// Formats without blocks: element after element, one factor or none.
template <class Store>
__device__ __forceinline__ void cast_flat(const CastArguments& all, Store store) {
    Place place = place_of(all.tiles, blockIdx.x);
    const CastTensor t = tensor_of<CastTensor>(all, place);
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
    extern "C" __global__ void __launch_bounds__(THREADS, 5) name(const __grid_constant__ CastArguments all) { \
        if (skips(all.vote)) return;                                                                           \
        cast_flat(all, store{});                                                                               \
    }

FLAT_CAST_KERNEL(cast_e4m3_tensor, FlatFp8<E4m3>)
FLAT_CAST_KERNEL(cast_e5m2_tensor, FlatFp8<E5m2>)
FLAT_CAST_KERNEL(cast_bf16, FlatBf16)
FLAT_CAST_KERNEL(cast_f32, FlatF32)
