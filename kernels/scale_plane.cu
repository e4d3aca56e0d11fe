// Scale planes after a gather and before a GEMM: expand and swizzle.
//
// Laws:
// - Expanding works in place. A block owns four columns of the plane from top to bottom, and takes the compact
//   rows from the last to the first: the rows that a batch fills lie at or below its own compact rows, which
//   are in shared memory by then, so no compact row is overwritten before it is read.
// - Padding is zeroed, whatever it held.

#include "common.cuh"

struct ExpandTensor {
    const u8* compact;
    u8* plane;
    // Rows of tiles, rows of the plane, bytes per row.
    u32 tile_rows;
    u32 plane_rows;
    u32 pitch;
    u32 reserved;
};
static_assert(sizeof(ExpandTensor) == 32, "kernels::scale_plane::ExpandTensor");

struct ExpandArguments {
    Tiles tiles;
    const ExpandTensor* tensors;
};

// Rows that one tile's scales stand in.
constexpr u32 REPEAT = 16;
// Compact rows in shared memory at a time.
constexpr u32 BATCH = 2048;

// NVFP4 in 16x16 tiles: one compact row per row of tiles becomes 16 equal rows. A tile is four columns.
extern "C" __global__ void __launch_bounds__(THREADS) expand_scale(const __grid_constant__ ExpandArguments all) {
    __shared__ u32 rows[BATCH];
    Place place = place_of(all.tiles, blockIdx.x);
    const ExpandTensor& t = all.tensors[place.tensor];
    u64 column = u64(place.tile) * 4;
    if (column >= t.pitch) return;
    u32 words = t.pitch / 4;
    // In place, so neither is read-only.
    const volatile u32* from = reinterpret_cast<const volatile u32*>(t.compact + column);
    u32* to = reinterpret_cast<u32*>(t.plane + column);

    for (u32 end = t.tile_rows; end > 0;) {
        u32 begin = end > BATCH ? end - BATCH : 0;
        for (u32 row = begin + threadIdx.x; row < end; row += THREADS) rows[row - begin] = from[u64(row) * words];
        __syncthreads();
        for (u32 row = begin * REPEAT + threadIdx.x; row < end * REPEAT; row += THREADS) {
            to[u64(row) * words] = rows[row / REPEAT - begin];
        }
        __syncthreads();
        end = begin;
    }
    for (u32 row = t.tile_rows * REPEAT + threadIdx.x; row < t.plane_rows; row += THREADS) {
        to[u64(row) * words] = 0;
    }
}

struct SwizzleTensor {
    const u8* scale;
    u8* swizzled;
    // Valid rows and columns of the matrix that is swizzled (rows of the stored data, blocks along them).
    u32 rows;
    u32 cols;
    // Bytes per row of the source.
    u32 pitch;
    // 128x4 tiles side by side.
    u32 tiles_across;
    // Does the source hold the transposed matrix?
    u32 transposed;
    u32 aligned;
};
static_assert(sizeof(SwizzleTensor) == 40, "kernels::scale_plane::SwizzleTensor");

struct SwizzleArguments {
    Tiles tiles;
    const SwizzleTensor* tensors;
};

// 128x4 tiles that a block turns around together, so that it reads 32 bytes of a row.
constexpr u32 SIDE_BY_SIDE = 8;

// Scale (i, j) of a 128x4 tile goes to byte i % 32 * 16 + i / 32 * 4 + j of the tile's 512.
extern "C" __global__ void __launch_bounds__(THREADS)
swizzle_scale(const __grid_constant__ SwizzleArguments all) {
    // Word i of a tile is row i's; one word more per tile keeps the banks apart.
    __shared__ u32 words[SIDE_BY_SIDE][128 + 1];
    Place place = place_of(all.tiles, blockIdx.x);
    const SwizzleTensor& t = all.tensors[place.tensor];
    u32 groups = max(divide_up(t.tiles_across, SIDE_BY_SIDE), 1u);
    u32 top = place.tile / groups * 128;
    u32 first = place.tile % groups * SIDE_BY_SIDE;
    for (u32 n = threadIdx.x; n < SIDE_BY_SIDE * 128; n += THREADS) {
        // Neighbouring threads take neighbouring bytes of the source.
        u32 i = t.transposed ? n % 128 : n / SIDE_BY_SIDE;
        u32 tile = t.transposed ? n / 128 : n % SIDE_BY_SIDE;
        u32 row = top + i;
        u32 column = (first + tile) * 4;
        u32 word = 0;
        if (row < t.rows && first + tile < t.tiles_across) {
            if (!t.transposed && t.aligned && column + 4 <= t.cols) {
                word = __ldg(reinterpret_cast<const u32*>(t.scale + u64(row) * t.pitch + column));
            } else {
                for (u32 k = 0; k < 4 && column + k < t.cols; ++k) {
                    u64 at = t.transposed ? u64(column + k) * t.pitch + row : u64(row) * t.pitch + column + k;
                    word |= u32(__ldg(t.scale + at)) << (8 * k);
                }
            }
        }
        words[tile][i] = word;
    }
    __syncthreads();
    for (u32 n = threadIdx.x; n < SIDE_BY_SIDE * 128; n += THREADS) {
        u32 tile = n / 128;
        u32 w = n % 128;
        if (first + tile >= t.tiles_across) break;
        u32 word = words[tile][w / 4 + w % 4 * 32];
        u8* to = t.swizzled + (u64(top / 128) * t.tiles_across + first + tile) * 512 + 4 * w;
        if (t.aligned) {
            *reinterpret_cast<u32*>(to) = word;
        } else {
            for (u32 k = 0; k < 4; ++k) to[k] = u8(word >> (8 * k));
        }
    }
}
