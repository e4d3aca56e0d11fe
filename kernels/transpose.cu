// Columnwise planes from rowwise ones: elements of 4, 8, 16 and 32 bits, and the scales of square blocks.
//
// Laws:
// - Codes and scale bytes are moved, never rounded again. Padding of the columnwise scale plane is zeroed.
// - A tensor's tiles are those of its scales, which wait longer, followed by those of its data, top to bottom
//   and then left to right.

#include "common.cuh"
#include "crossing.cuh"

struct TransposeTensor {
    const u8* data;
    const u8* scale;
    u8* out_data;
    u8* out_scale;
    // The matrix that is read.
    u32 rows;
    u32 cols;
    u32 scale_tiles;
    // BY_BYTES, BY_WORDS or BY_GROUPS.
    u32 way;
    // Entries per row of the scale planes, and rows of the columnwise one.
    u32 pitch;
    u32 out_pitch;
    u32 out_rows;
    u32 reserved;
};
static_assert(sizeof(TransposeTensor) == 64, "kernels::transpose::TensorArguments");

struct TransposeArguments {
    Tiles tiles;
    const TransposeTensor* tensors;
    TransposeTensor only;
};

template <u32 BITS, class Tile>
__device__ __forceinline__ void transpose_data(u32* lines, const TransposeTensor& t, u32 tile) {
    auto [top, left] = corner_of<Tile::SIDE>(tile, t.rows);
    Tile::read(lines, t.data, t.rows, u64(t.cols) * BITS / 8, top, left, t.way);
    Tile::write(lines, t.out_data, t.cols, u64(t.rows) * BITS / 8, top, left, t.way);
}

// NVFP4: out[r][c] = in[16c][r / 16], as each scale is in all 16 rows of its tile. A block takes 16 scales of
// each of 128 rows of tiles, which become 16 rows of 16 columns of tiles.
constexpr u32 SCALE_DOWN = 128;
constexpr u32 SCALE_ACROSS = 16;
// Sixteen bytes more per row keep the banks apart.
constexpr u32 SCALE_LINE = SCALE_DOWN + 16;

__device__ __forceinline__ void transpose_tile_scales(u8* scales, const TransposeTensor& t, u32 tile) {
    constexpr u32 WORDS = SCALE_ACROSS / 4;
    constexpr u32 LOADS = SCALE_DOWN * WORDS / THREADS;
    u32 down = max(divide_up(t.out_pitch, SCALE_DOWN), 1u);
    u32 top = tile % down * SCALE_DOWN;
    u32 left = tile / down * SCALE_ACROSS;
    u32 own = threadIdx.x % WORDS * 4;
    u32 words[LOADS];
#pragma unroll
    for (u32 i = 0; i < LOADS; ++i) {
        u32 row = top + i * (THREADS / WORDS) + threadIdx.x / WORDS;
        u32 valid = row < t.rows / 16 ? t.cols / 16 : 0;
        words[i] = load_word(t.scale + u64(row) * 16 * t.pitch, left + own, valid, t.way);
    }
#pragma unroll
    for (u32 i = 0; i < LOADS; ++i) {
        u32 row = i * (THREADS / WORDS) + threadIdx.x / WORDS;
#pragma unroll
        for (u32 k = 0; k < 4; ++k) scales[(own + k) * SCALE_LINE + row] = u8(words[i] >> (8 * k));
    }
    __syncthreads();
    // Eight threads write 128 scales of a row: 32 rows at a time, two columns of tiles.
    u32 at = top + threadIdx.x % 8 * 16;
    bool in_groups = (reinterpret_cast<u64>(t.out_scale) | t.out_pitch) % 16 == 0;
#pragma unroll 4
    for (u32 n = 0; n < SCALE_ACROSS / 2; ++n) {
        u32 line = n * 2 + threadIdx.x / 128;
        u32 row = (left + line) * 16 + threadIdx.x / 8 % 16;
        if (row >= t.out_rows || at >= t.out_pitch) break;
        uint4 entries = *reinterpret_cast<const uint4*>(scales + line * SCALE_LINE + threadIdx.x % 8 * 16);
        u8* to = t.out_scale + u64(row) * t.out_pitch;
        if (in_groups) {
            *reinterpret_cast<uint4*>(to + at) = entries;
            continue;
        }
#pragma unroll 1
        for (u32 w = 0; w < 4; ++w) {
            if (at + 4 * w < t.out_pitch) store_word(to, at + 4 * w, t.out_pitch, t.way, word_of(entries, w));
        }
    }
}

// FP8 in 128x128 tiles: the plane transposed. A thread makes one entry.
__device__ __forceinline__ void transpose_block_scales(const TransposeTensor& t, u32 tile) {
    u32 item = tile * THREADS + threadIdx.x;
    u32 row = item / max(t.out_pitch, 1u);
    u32 column = item % max(t.out_pitch, 1u);
    if (row >= t.out_rows) return;
    const float* in = reinterpret_cast<const float*>(t.scale);
    bool valid = row < divide_up(t.cols, 128) && column < divide_up(t.rows, 128);
    reinterpret_cast<float*>(t.out_scale)[item] = valid ? __ldg(in + u64(column) * t.pitch + row) : 0.0f;
}

// 256x256 nibbles: runs of 128 bytes on both sides.
extern "C" __global__ void __launch_bounds__(THREADS)
transpose_nvfp4(const __grid_constant__ TransposeArguments all) {
    using Tile = Crossing<4, 1, THREADS>;
    __shared__ uint4 lines[Tile::WORDS / 4];
    static_assert(sizeof(lines) >= SCALE_ACROSS * SCALE_LINE, "a tile of scales takes the place of one of data");
    Place place = place_of(all.tiles, blockIdx.x);
    const TransposeTensor t = tensor_of<TransposeTensor>(all, place);
    if (place.tile >= t.scale_tiles) {
        transpose_data<4, Tile>(&lines[0].x, t, place.tile - t.scale_tiles);
    } else {
        transpose_tile_scales(reinterpret_cast<u8*>(lines), t, place.tile);
    }
}

// 128x128 bytes.
extern "C" __global__ void __launch_bounds__(THREADS)
transpose_fp8(const __grid_constant__ TransposeArguments all) {
    using Tile = Crossing<8, 1, THREADS>;
    __shared__ uint4 lines[Tile::WORDS / 4];
    Place place = place_of(all.tiles, blockIdx.x);
    const TransposeTensor t = tensor_of<TransposeTensor>(all, place);
    if (place.tile >= t.scale_tiles) {
        transpose_data<8, Tile>(&lines[0].x, t, place.tile - t.scale_tiles);
    } else {
        transpose_block_scales(t, place.tile);
    }
}

// 128x128 halves, runs of 256 bytes, by twice as many threads.
extern "C" __global__ void __launch_bounds__(2 * THREADS)
transpose_bf16(const __grid_constant__ TransposeArguments all) {
    using Tile = Crossing<16, 2, 2 * THREADS>;
    __shared__ uint4 lines[Tile::WORDS / 4];
    Place place = place_of(all.tiles, blockIdx.x);
    transpose_data<16, Tile>(&lines[0].x, tensor_of<TransposeTensor>(all, place), place.tile);
}

// 64x64 values, runs of 256 bytes.
extern "C" __global__ void __launch_bounds__(THREADS)
transpose_f32(const __grid_constant__ TransposeArguments all) {
    using Tile = Crossing<32, 2, THREADS>;
    __shared__ uint4 lines[Tile::WORDS / 4];
    Place place = place_of(all.tiles, blockIdx.x);
    transpose_data<32, Tile>(&lines[0].x, tensor_of<TransposeTensor>(all, place), place.tile);
}
