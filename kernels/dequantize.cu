// Values of planes, f32 or bfloat16.
//
// Laws:
// - `y = code * scale` in the format's order of operations, rounded once more only for a bfloat16 output.
// - The planes are those of the stored matrix, which is the transposed weight for columnwise planes; only
//   MXFP8 stores its columnwise planes untransposed, and they are transposed on the way out.
// - Padding of the planes is never read. A row of codes may be longer than a row of values, by columns that
//   complete its last block.

#include "common.cuh"
#include "crossing.cuh"
#include "elements.cuh"

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
    // Whether four neighbours of a row may be read, and written, at once.
    u16 aligned;
    // As a power of two, the rows that share a row of the scale plane, in addition to what the format says.
    u16 shared_rows;
};
static_assert(sizeof(DequantizeTensor) == 48, "kernels::dequantize::TensorArguments");

struct DequantizeArguments {
    Tiles tiles;
    const DequantizeTensor* tensors;
    DequantizeTensor only;
};

// Values as they are stored: a lane makes 16 bytes of a row.
struct ToF32 {
    static constexpr u32 BYTES = 4;
    static constexpr u32 COLUMNS = 4;
    static constexpr u32 AT_A_TIME = 16;
    static __device__ __forceinline__ void store(u8* out, const float (&v)[4]) {
        *reinterpret_cast<float4*>(out) = make_float4(v[0], v[1], v[2], v[3]);
    }
    static __device__ __forceinline__ void one(u8* out, float v) { *reinterpret_cast<float*>(out) = v; }
};

struct ToBf16 {
    static constexpr u32 BYTES = 2;
    static constexpr u32 COLUMNS = 8;
    static constexpr u32 AT_A_TIME = 2;
    static __device__ __forceinline__ void store(u8* out, const float (&v)[8]) {
        *reinterpret_cast<uint4*>(out) = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]),
                                                    pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
    }
    static __device__ __forceinline__ void store(u8* out, const float (&v)[4]) {
        *reinterpret_cast<uint2*>(out) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    }
    static __device__ __forceinline__ void one(u8* out, float v) {
        *reinterpret_cast<u16*>(out) = bf16_bits(round_to_bf16(v));
    }
};

// Rows of a warp: whichever was faster, by 1 % for narrow blocks (one H100, 2026-11-25).
constexpr u32 FEW_ROWS = 2;
constexpr u32 MANY_ROWS = 4;

// Formats: codes as they are stored, their values, and the factor of a column's block. A block is at least 16
// columns wide.
struct Nvfp4 {
    static constexpr u32 ROWS = FEW_ROWS;
    // Codes of four or eight neighbours.
    template <u32 COUNT>
    struct Codes {
        u32 bits;
    };
    template <u32 COUNT>
    static __device__ __forceinline__ Codes<COUNT> load(const u8* data, u64 at) {
        const u8* from = data + at / 2;
        return {COUNT == 4 ? u32(__ldg(reinterpret_cast<const u16*>(from)))
                           : __ldg(reinterpret_cast<const u32*>(from))};
    }
    // Stores the values of codes that share a factor.
    static __device__ __forceinline__ void store(ToF32, u8* out, const Codes<4>& codes, float factor) {
        float v[4];
#pragma unroll
        for (u32 k = 0; k < 4; ++k) v[k] = E2m1::decode(codes.bits >> (4 * k)) * factor;
        ToF32::store(out, v);
    }
    static __device__ __forceinline__ void store(ToBf16, u8* out, const Codes<8>& codes, float factor) {
        if (E2m1::is_plain(factor)) {
            *reinterpret_cast<uint4*>(out) = E2m1::times_bf16(codes.bits, factor);
            return;
        }
#pragma unroll 1
        for (u32 k = 0; k < 8; k += 2) {
            u32 both = codes.bits >> (4 * k);
            *reinterpret_cast<u32*>(out + 2 * k) =
                pack_bf16(E2m1::decode(both) * factor, E2m1::decode(both >> 4) * factor);
        }
    }
    static __device__ __forceinline__ float decode_one(const u8* data, u64 at) {
        return E2m1::decode(__ldg(data + at / 2) >> (4 * (at % 2)));
    }
    // Codes from one row to the next.
    static __device__ __forceinline__ u32 pitch(u32 cols) { return (cols + 15) / 16 * 16; }
    static __device__ __forceinline__ float factor(const DequantizeTensor& t, float tensor, u32 row, u32 column) {
        u32 scale = __ldg(t.scale + u64(row >> t.shared_rows) * t.pitch + column / 16);
        return (E4m3::decode(scale) * tensor) * (1.0f / 2688.0f);
    }
};

template <class Element>
struct Fp8Codes {
    static constexpr u32 ROWS = MANY_ROWS;
    template <u32 COUNT>
    struct Codes {
        u32 bits[COUNT / 4];
    };
    template <u32 COUNT>
    static __device__ __forceinline__ Codes<COUNT> load(const u8* data, u64 at) {
        Codes<COUNT> codes;
        if (COUNT == 4) {
            codes.bits[0] = __ldg(reinterpret_cast<const u32*>(data + at));
        } else {
            uint2 v = __ldg(reinterpret_cast<const uint2*>(data + at));
            codes.bits[0] = v.x;
            codes.bits[1 % (COUNT / 4)] = v.y;
        }
        return codes;
    }
    template <class Out, u32 COUNT>
    static __device__ __forceinline__ void store(Out, u8* out, const Codes<COUNT>& codes, float factor) {
        float v[COUNT];
#pragma unroll
        for (u32 k = 0; k < COUNT; k += 2) {
            float2 both = Element::decode2(codes.bits[k / 4] >> (8 * (k % 4)));
            v[k] = both.x * factor;
            v[k + 1] = both.y * factor;
        }
        Out::store(out, v);
    }
    static __device__ __forceinline__ float decode_one(const u8* data, u64 at) {
        return Element::decode(__ldg(data + at));
    }
    static __device__ __forceinline__ u32 pitch(u32 cols) { return cols; }
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
    static constexpr u32 ROWS = FEW_ROWS;
    static __device__ __forceinline__ float factor(const DequantizeTensor& t, float, u32 row, u32 column) {
        return E8m0::decode(__ldg(t.scale + u64(row) * t.pitch + column / 32));
    }
};

// A warp takes some rows, and as many columns as 512 bytes of values hold.
template <class Format, class Out>
__device__ __forceinline__ void dequantize(const DequantizeArguments& all) {
    constexpr u32 ROWS = Format::ROWS;
    constexpr u32 COLUMNS = Out::COLUMNS;
    Place place = place_of(all.tiles, blockIdx.x);
    const DequantizeTensor t = tensor_of<DequantizeTensor>(all, place);
    u32 item = place.tile * WARPS + warp();
    u32 across = max(divide_up(t.cols, 32 * COLUMNS), 1u);
    u32 top = item / across * ROWS;
    u32 column = (item % across * 32 + lane()) * COLUMNS;
    if (top >= t.rows || column >= t.cols) return;
    float tensor = t.tensor_scale == nullptr ? 1.0f : __ldg(t.tensor_scale);
    u32 pitch = Format::pitch(t.cols);
    u64 at = u64(top) * t.cols + column;
    u64 from = u64(top) * pitch + column;
    if (t.aligned && top + ROWS <= t.rows && column + COLUMNS <= t.cols) {
        typename Format::template Codes<COLUMNS> codes[ROWS];
        float factors[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) codes[r] = Format::template load<COLUMNS>(t.data, from + u64(r) * pitch);
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) factors[r] = Format::factor(t, tensor, top + r, column);
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            Format::store(Out{}, t.out + (at + u64(r) * t.cols) * Out::BYTES, codes[r], factors[r]);
        }
        return;
    }
    for (u32 row = top; row < min(top + ROWS, t.rows); ++row) {
        for (u32 k = 0; k < COLUMNS && column + k < t.cols; ++k) {
            u64 one = u64(row) * t.cols + column + k;
            float factor = Format::factor(t, tensor, row, column + k);
            float code = Format::decode_one(t.data, u64(row) * pitch + column + k);
            Out::one(t.out + one * Out::BYTES, code * factor);
        }
    }
}

// Columnwise MXFP8: data and scales of [M, K], values of [K, M], K a multiple of 32. A block transposes a tile of
// 128x128 codes and decodes it on the way out: four codes of a column by each thread, a column by a warp.
template <class Out>
__device__ __forceinline__ void dequantize_columns(const DequantizeArguments& all) {
    using Tile = Crossing<8, 1, THREADS>;
    __shared__ uint4 lines[Tile::WORDS / 4];
    Place place = place_of(all.tiles, blockIdx.x);
    const DequantizeTensor t = tensor_of<DequantizeTensor>(all, place);
    auto [top, left] = corner_of<Tile::SIDE>(place.tile, t.rows);
    // The tile's scales are requested with its codes: a thread fetches and decodes two of them. One extra word
    // per row keeps the banks apart.
    constexpr u32 SCALE_ROWS = Tile::SIDE / 32;
    __shared__ float factors[SCALE_ROWS][Tile::SIDE + 1];
    constexpr u32 FETCHED = SCALE_ROWS * Tile::SIDE / THREADS;
    u8 fetched[FETCHED];
#pragma unroll
    for (u32 i = 0; i < FETCHED; ++i) {
        u32 at = i * THREADS + threadIdx.x;
        u32 row = top + at / Tile::SIDE * 32;
        u32 column = left + at % Tile::SIDE;
        fetched[i] = row < t.rows && column < t.cols ? __ldg(t.scale + u64(row / 32) * t.pitch + column) : u8(0);
    }
    Tile::read(&lines[0].x, t.data, t.rows, t.cols, top, left, t.aligned ? BY_GROUPS : BY_BYTES);
#pragma unroll
    for (u32 i = 0; i < FETCHED; ++i) {
        u32 at = i * THREADS + threadIdx.x;
        factors[at / Tile::SIDE][at % Tile::SIDE] = E8m0::decode(fetched[i]);
    }
    __syncthreads();
    u32 row = top + 4 * lane();
    if (row >= t.rows) return;
    // Columns that a warp reads before it writes the first of them.
    constexpr u32 AT_A_TIME = Out::AT_A_TIME;
    u32 columns = min(Tile::SIDE, t.cols - left);
#pragma unroll 1
    for (u32 first = warp(); first < columns; first += AT_A_TIME * WARPS) {
        u32 codes[AT_A_TIME];
        float factor[AT_A_TIME];
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) {
            u32 line = first + i * WARPS;
            factor[i] = factors[lane() / 8][line];
            codes[i] = (&lines[0].x)[line * Tile::LINE + Tile::place(line, lane() / 4) * 4 + lane() % 4];
        }
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) {
            u32 line = first + i * WARPS;
            if (line >= columns) break;
            float v[4];
#pragma unroll
            for (u32 k = 0; k < 4; k += 2) {
                float2 both = E4m3::decode2(codes[i] >> (8 * k));
                v[k] = both.x * factor[i];
                v[k + 1] = both.y * factor[i];
            }
            u8* to = t.out + (u64(left + line) * t.rows + row) * Out::BYTES;
            if (t.aligned) {
                Out::store(to, v);
            } else {
#pragma unroll
                for (u32 k = 0; k < 4; ++k) {
                    if (row + k < t.rows) Out::one(to + k * Out::BYTES, v[k]);
                }
            }
        }
    }
}

// With `f32_blocks` and `bf16_blocks` blocks at a time on a multiprocessor: the numbers that were fastest.
#define DEQUANTIZE_KERNEL(name, format, f32_blocks, bf16_blocks)                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, f32_blocks)                                          \
    dequantize_##name##_f32(const __grid_constant__ DequantizeArguments all) {                                 \
        dequantize<format, ToF32>(all);                                                                        \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, bf16_blocks)                                         \
    dequantize_##name##_bf16(const __grid_constant__ DequantizeArguments all) {                                \
        dequantize<format, ToBf16>(all);                                                                       \
    }

DEQUANTIZE_KERNEL(nvfp4, Nvfp4, 6, 8)
DEQUANTIZE_KERNEL(e4m3_tile128, Fp8Tile128<E4m3>, 4, 4)
DEQUANTIZE_KERNEL(e5m2_tile128, Fp8Tile128<E5m2>, 4, 4)
DEQUANTIZE_KERNEL(e4m3_row128, Fp8Row128<E4m3>, 4, 4)
DEQUANTIZE_KERNEL(e5m2_row128, Fp8Row128<E5m2>, 4, 4)
DEQUANTIZE_KERNEL(e4m3_tensor, Fp8Whole<E4m3>, 4, 4)
DEQUANTIZE_KERNEL(e5m2_tensor, Fp8Whole<E5m2>, 4, 4)
DEQUANTIZE_KERNEL(mxfp8_rowwise, Mxfp8Rowwise, 4, 4)

extern "C" __global__ void __launch_bounds__(THREADS, 4)
dequantize_mxfp8_columnwise_f32(const __grid_constant__ DequantizeArguments all) {
    dequantize_columns<ToF32>(all);
}
extern "C" __global__ void __launch_bounds__(THREADS, 8)
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
    constexpr u32 COLUMNS = Out::COLUMNS;
    constexpr u32 STEPS = FLAT_TILE / (COLUMNS * THREADS);
    Place place = place_of(all.tiles, blockIdx.x);
    const DequantizeTensor t = tensor_of<DequantizeTensor>(all, place);
    u64 count = u64(t.rows) * t.cols;
    u64 first = u64(place.tile) * FLAT_TILE;
    if (t.aligned && first + FLAT_TILE <= count) {
        u64 own = first + COLUMNS * threadIdx.x;
        float v[STEPS][COLUMNS];
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) {
#pragma unroll
            for (u32 k = 0; k < COLUMNS; k += 4) {
                float4 four = In::load4(t.data, own + i * COLUMNS * THREADS + k);
                v[i][k] = four.x;
                v[i][k + 1] = four.y;
                v[i][k + 2] = four.z;
                v[i][k + 3] = four.w;
            }
        }
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) Out::store(t.out + (own + i * COLUMNS * THREADS) * Out::BYTES, v[i]);
    } else {
        u64 end = min(first + FLAT_TILE, count);
        for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
            Out::one(t.out + at * Out::BYTES, In::load(t.data, at));
        }
    }
}

#define DENSE_KERNEL(name, in)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                                                   \
    dequantize_##name##_f32(const __grid_constant__ DequantizeArguments all) {                                 \
        dense<in, ToF32>(all);                                                                                 \
    }                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                                                   \
    dequantize_##name##_bf16(const __grid_constant__ DequantizeArguments all) {                                \
        dense<in, ToBf16>(all);                                                                                \
    }

DENSE_KERNEL(bf16, DenseBf16)
DENSE_KERNEL(f32, DenseF32)
