// Scale planes after a gather and before a GEMM: expand and swizzle.
//
// Laws:
// - Expanding works in place. With G compact rows, those from G/16 on land below all compact rows, so they are
//   spread by many blocks at once. The first G/16 land on compact rows: the block that finishes a strip of
//   columns last spreads them, from the last to the first, through shared memory. No compact row is
//   overwritten before it is read.
// - The counters that tell who is last are zero between launches.
// - Padding is zeroed, whatever it held.

#include "common.cuh"

struct ExpandTensor {
    const u8* compact;
    u8* plane;
    // One counter per strip of columns.
    u32* arrived;
    // Rows of tiles, rows of the plane, words of 4 bytes per row.
    u32 tile_rows;
    u32 plane_rows;
    u32 words;
    // Blocks that spread the lower compact rows of a strip.
    u32 blocks_down;
};
static_assert(sizeof(ExpandTensor) == 40, "kernels::scale_plane::ExpandTensor");

struct ExpandArguments {
    Tiles tiles;
    const ExpandTensor* tensors;
};

// Rows that one tile's scales stand in.
constexpr u32 REPEAT = 16;
// Compact rows of a block.
constexpr u32 BATCH = 16;
// Compact rows that the last block keeps in shared memory at a time.
constexpr u32 KEPT = 64;

// Compact rows that land on compact rows.
__device__ __forceinline__ u32 upper_rows(const ExpandTensor& t) { return divide_up(t.tile_rows, REPEAT); }

// Fills the rows of one row of tiles with a word.
__device__ __forceinline__ void spread(const ExpandTensor& t, u32 tile_row, u32 column, u32 word) {
    u32* to = reinterpret_cast<u32*>(t.plane) + u64(tile_row) * REPEAT * t.words + column;
    if (column >= t.words) return;
#pragma unroll
    for (u32 r = 0; r < REPEAT; ++r) to[u64(r) * t.words] = word;
}

// NVFP4 in 16x16 tiles: one compact row per row of tiles becomes 16 equal rows. A block takes a strip of 32 words,
// a warp one row of it at a time.
extern "C" __global__ void __launch_bounds__(THREADS) expand_scale(const __grid_constant__ ExpandArguments all) {
    __shared__ u32 kept[KEPT][32];
    __shared__ bool is_last;
    Place place = place_of(all.tiles, blockIdx.x);
    const ExpandTensor& t = all.tensors[place.tensor];
    u32 strip = place.tile / t.blocks_down;
    u32 column = strip * 32 + lane();
    // The compact rows are written by this launch, so they are not read as read-only data.
    const volatile u32* compact = reinterpret_cast<const volatile u32*>(t.compact);

    u32 first = upper_rows(t) + place.tile % t.blocks_down * BATCH;
    u32 end = min(first + BATCH, t.plane_rows / REPEAT);
    u32 words[BATCH / WARPS];
#pragma unroll
    for (u32 i = 0; i < BATCH / WARPS; ++i) {
        u32 row = first + i * WARPS + warp();
        bool is_scale = row < t.tile_rows && column < t.words;
        words[i] = is_scale ? compact[u64(row) * t.words + column] : 0;
    }
    // What is left to wait for are reads, so the block is counted before it writes.
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = arrive(t.arrived + strip) == t.blocks_down;
        if (is_last) t.arrived[strip] = 0;
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < BATCH / WARPS; ++i) {
        u32 row = first + i * WARPS + warp();
        if (row < end) spread(t, row, column, words[i]);
    }
    if (!is_last) return;
    for (u32 end = upper_rows(t); end > 0;) {
        u32 begin = end > KEPT ? end - KEPT : 0;
        for (u32 row = begin + warp(); row < end; row += WARPS) {
            if (column < t.words) kept[row - begin][lane()] = compact[u64(row) * t.words + column];
        }
        __syncthreads();
        for (u32 row = begin + warp(); row < end; row += WARPS) spread(t, row, column, kept[row - begin][lane()]);
        __syncthreads();
        end = begin;
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
    // Do rows of the source begin at multiples of 16 bytes?
    u32 aligned;
};
static_assert(sizeof(SwizzleTensor) == 40, "kernels::scale_plane::SwizzleTensor");

struct SwizzleArguments {
    Tiles tiles;
    const SwizzleTensor* tensors;
};

// Four scales of row `row` from column `column` on, those beyond the matrix zero.
__device__ __forceinline__ u32 only_valid(const SwizzleTensor& t, u32 row, u32 column, u32 word) {
    if (row >= t.rows || column >= t.cols) return 0;
    u32 valid = t.cols - column;
    return valid >= 4 ? word : word & ((1u << (8 * valid)) - 1);
}

// Scale (i, j) of a 128x4 tile goes to byte i % 32 * 16 + i / 32 * 4 + j of the tile's 512: 16 bytes of a tile are
// four scales of each of the rows i, i + 32, i + 64 and i + 96. A thread makes them for four tiles side by side.
__device__ __forceinline__ void swizzle_rows(const SwizzleTensor& t, u32 item) {
    u32 across = divide_up(t.tiles_across, 4);
    // Two neighbours read 32 bytes of a row, sixteen write 256 bytes of a tile.
    u32 pair = item / 2 % 32;
    u32 group = item / 64 * 2 + item % 2;
    u32 pairs_across = divide_up(across, 2) * 2;
    u32 top = group / pairs_across * 128;
    u32 first = group % pairs_across * 4;
    if (top >= t.rows || first >= t.tiles_across) return;
    u32 words[4][4];
#pragma unroll
    for (u32 q = 0; q < 4; ++q) {
        u32 row = top + q * 32 + pair;
        const u8* from = t.scale + u64(row) * t.pitch + first * 4;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row < t.rows) {
            if (t.aligned && first + 4 <= t.tiles_across) {
                v = load16(from);
            } else {
                const u32* word = reinterpret_cast<const u32*>(from);
                v.x = __ldg(word);
                v.y = first + 1 < t.tiles_across ? __ldg(word + 1) : 0;
                v.z = first + 2 < t.tiles_across ? __ldg(word + 2) : 0;
                v.w = first + 3 < t.tiles_across ? __ldg(word + 3) : 0;
            }
        }
        words[q][0] = only_valid(t, row, first * 4, v.x);
        words[q][1] = only_valid(t, row, first * 4 + 4, v.y);
        words[q][2] = only_valid(t, row, first * 4 + 8, v.z);
        words[q][3] = only_valid(t, row, first * 4 + 12, v.w);
    }
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
        if (first + n >= t.tiles_across) break;
        u8* to = t.swizzled + (u64(top / 128) * t.tiles_across + first + n) * 512 + pair * 16;
        *reinterpret_cast<uint4*>(to) = make_uint4(words[0][n], words[1][n], words[2][n], words[3][n]);
    }
}

// The same from the transposed matrix: four scales of a row of the tile come from four rows of the source. A thread
// makes four neighbouring groups of 16 bytes of one tile; eight threads make the tile.
__device__ __forceinline__ void swizzle_columns(const SwizzleTensor& t, u32 item) {
    u32 tile = item / 8;
    u32 top = tile % divide_up(t.rows, 128) * 128;
    u32 across = tile / divide_up(t.rows, 128);
    if (across >= t.tiles_across) return;
    u32 own = item % 8 * 4;
    u32 words[4][4];
#pragma unroll
    for (u32 q = 0; q < 4; ++q) {
        u32 row = top + q * 32 + own;
        u32 bytes[4];
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            u32 column = across * 4 + k;
            // Source rows are padded to 128 entries, so four neighbours can always be read.
            const u8* from = t.scale + u64(column) * t.pitch + row;
            bytes[k] = column < t.cols && row < t.rows ? __ldg(reinterpret_cast<const u32*>(from)) : 0;
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u32 low = __byte_perm(bytes[0], bytes[1], i | (4 + i) << 4);
            u32 high = __byte_perm(bytes[2], bytes[3], i | (4 + i) << 4);
            words[q][i] = row + i < t.rows ? __byte_perm(low, high, 0x5410) : 0;
        }
    }
    u8* to = t.swizzled + (u64(top / 128) * t.tiles_across + across) * 512 + own * 16;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        reinterpret_cast<uint4*>(to)[i] = make_uint4(words[0][i], words[1][i], words[2][i], words[3][i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
swizzle_scale(const __grid_constant__ SwizzleArguments all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const SwizzleTensor& t = all.tensors[place.tensor];
    u32 item = place.tile * THREADS + threadIdx.x;
    if (t.transposed) {
        swizzle_columns(t, item);
    } else {
        swizzle_rows(t, item);
    }
}
