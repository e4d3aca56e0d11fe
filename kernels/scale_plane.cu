// Scale planes after a gather and before a GEMM: expand and swizzle.
//
// Laws:
// - Expanding works in place. With G compact rows, those from G/16 on are written below all compact rows, so they
//   are spread by many blocks at once. The first G/16 are written over compact rows: one block of a strip of columns
//   spreads them, from the last to the first, when all others have read theirs. In a small launch that is the
//   block that is the last to have read, and every block has read the last of them, in case it is that one; in
//   a large one it is a block of its own, so that no block has twice as much to write as the others. No compact row
//   is overwritten before it is read.
// - Strips are narrow in a small launch, so that many blocks share what is left to the last ones, and wide in
//   a large one, which then writes whole lines, neighbours in memory.
// - The counters that tell which block is last are zero between launches.
// - Padding is zeroed, whatever it held.

#include "common.cuh"

struct ExpandTensor {
    const u8* compact;
    u8* plane;
    // A counter per strip of columns: of blocks that have read what they spread, and of blocks that have started.
    u32* arrived;
    u32* started;
    // Rows of tiles, rows of the plane, bytes per row.
    u32 tile_rows;
    u32 plane_rows;
    u32 pitch;
    // Blocks that spread the lower compact rows of a strip.
    u32 blocks_down;
    // Whether rows begin at multiples of 16 bytes.
    u32 aligned;
    // Logarithm of the units, words of 4 or 16 bytes, of a row of a strip.
    u32 strip_bits;
};
static_assert(sizeof(ExpandTensor) == 56, "kernels::expand::ExpandTensor");

struct ExpandArguments {
    Tiles tiles;
    const ExpandTensor* tensors;
    ExpandTensor only;
};

// Rows in which one tile's scales are repeated.
constexpr u32 REPEAT = 16;

// Reads past the first-level cache and in the order written: the launch writes where it reads.
__device__ __forceinline__ void read_shared(u32& unit, const u32* at) {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(unit) : "l"(at) : "memory");
}
__device__ __forceinline__ void read_shared(uint4& unit, const uint4* at) {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
                 : "l"(at)
                 : "memory");
}

// A thread's place in its strip.
template <class Unit>
struct Spread {
    // Units of a row, compact rows that a block takes at a time, and those left to the end.
    u32 units;
    u32 batch;
    u32 upper;
    // The thread's row of a batch, and its column of units.
    u32 number;
    bool in_columns;
    const Unit* compact;
    Unit* plane;

    __device__ __forceinline__ Spread(const ExpandTensor& t, u32 strip)
        : units(t.pitch / sizeof(Unit)),
          batch(THREADS >> t.strip_bits),
          upper(divide_up(t.tile_rows, REPEAT)),
          number(threadIdx.x >> t.strip_bits) {
        u32 column = (strip << t.strip_bits) + threadIdx.x - (number << t.strip_bits);
        in_columns = column < units;
        compact = reinterpret_cast<const Unit*>(t.compact) + column;
        plane = reinterpret_cast<Unit*>(t.plane) + column;
    }

    // The thread's unit of a compact row before `end`; zero elsewhere.
    __device__ __forceinline__ Unit read(u32 row, u32 end) const {
        Unit unit{};
        if (in_columns && row < end) read_shared(unit, compact + u64(row) * units);
        return unit;
    }

    // Spreads it over the rows that repeat it, of a row before `end`.
    __device__ __forceinline__ void write(u32 row, u32 end, const Unit& unit) const {
        if (!in_columns || row >= end) return;
        Unit* to = plane + u64(row) * REPEAT * units;
#pragma unroll
        for (u32 r = 0; r < REPEAT; ++r) to[u64(r) * units] = unit;
    }

    // The first of the last upper rows that make a batch.
    __device__ __forceinline__ u32 last_batch() const { return upper > batch ? upper - batch : 0; }

    // Spreads the upper rows, from the last to the first; the block holds the last batch of them.
    __device__ __forceinline__ void finish(Unit held) const {
        u32 end = upper;
        u32 begin = last_batch();
        while (end > 0) {
            // What is written is below the rows that are read ahead.
            u32 above = begin > batch ? begin - batch : 0;
            Unit ahead = read(above + number, begin);
            write(begin + number, end, held);
            end = begin;
            begin = above;
            held = ahead;
            __syncthreads();
        }
    }
};

// One compact row per row of tiles becomes 16 equal rows. A block takes the `batch` compact rows of a strip
// for which it has threads, one unit each, and holds the same number of upper ones in case it is the last. Counting
// a block waits for what its neighbours write, so a block writes much.
template <class Unit>
__device__ __forceinline__ void expand(const ExpandTensor& t, u32 tile) {
    __shared__ bool is_last;
    u32 strip = tile / t.blocks_down;
    const Spread<Unit> own(t, strip);
    u32 row = own.upper + tile % t.blocks_down * own.batch + own.number;
    Unit unit = own.read(row, t.tile_rows);
    Unit held = own.read(own.last_batch() + own.number, own.upper);
    // Only reads are left to wait for, so the block is counted before it writes.
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = arrive(t.arrived + strip) == t.blocks_down;
        if (is_last) t.arrived[strip] = 0;
    }
    own.write(row, t.plane_rows / REPEAT, unit);
    __syncthreads();
    if (is_last) own.finish(held);
}

// Batches of a block of a large launch.
constexpr u32 BATCHES = 6;

// The same in a large launch, where a strip has one more block: the last of them to start spreads the upper
// rows, while the others spread theirs. The blocks it waits for have started, and wait for none.
template <class Unit>
__device__ __forceinline__ void expand_large(const ExpandTensor& t, u32 tile) {
    __shared__ u32 before;
    u32 strip = tile / (t.blocks_down + 1);
    const Spread<Unit> own(t, strip);
    u32* arrived = t.arrived + strip;
    if (threadIdx.x == 0) before = started_before(t.started + strip, t.blocks_down + 1);
    __syncthreads();
    if (before == t.blocks_down) {
        Unit held = own.read(own.last_batch() + own.number, own.upper);
        if (threadIdx.x == 0) {
            u32 there;
            do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(arrived) : "memory");
            } while (there != t.blocks_down);
            *arrived = 0;
        }
        __syncthreads();
        own.finish(held);
        return;
    }
    u32 first = own.upper + before * BATCHES * own.batch + own.number;
    Unit units[BATCHES];
#pragma unroll
    for (u32 n = 0; n < BATCHES; ++n) units[n] = own.read(first + n * own.batch, t.tile_rows);
    __syncthreads();
    if (threadIdx.x == 0) arrive(arrived);
#pragma unroll
    for (u32 n = 0; n < BATCHES; ++n) own.write(first + n * own.batch, t.plane_rows / REPEAT, units[n]);
}

// NVFP4 in 16x16 tiles.
extern "C" __global__ void __launch_bounds__(THREADS) expand_scale(const __grid_constant__ ExpandArguments all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const ExpandTensor t = tensor_of<ExpandTensor>(all, place);
    if (t.aligned) {
        expand<uint4>(t, place.tile);
    } else {
        expand<u32>(t, place.tile);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 5)
expand_scale_large(const __grid_constant__ ExpandArguments all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const ExpandTensor t = tensor_of<ExpandTensor>(all, place);
    if (t.aligned) {
        expand_large<uint4>(t, place.tile);
    } else {
        expand_large<u32>(t, place.tile);
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
    // Whether the source holds the transposed matrix.
    u32 transposed;
    // Whether rows of the source begin at multiples of 16 bytes.
    u32 aligned;
};
static_assert(sizeof(SwizzleTensor) == 40, "kernels::swizzle::SwizzleTensor");

struct SwizzleArguments {
    Tiles tiles;
    const SwizzleTensor* tensors;
    SwizzleTensor only;
};

// Four scales of row `row` starting at column `column`; those beyond the matrix are zero.
__device__ __forceinline__ u32 only_valid(const SwizzleTensor& t, u32 row, u32 column, u32 word) {
    if (row >= t.rows || column >= t.cols) return 0;
    u32 valid = t.cols - column;
    return valid >= 4 ? word : word & ((1u << (8 * valid)) - 1);
}

// Scale (i, j) of a 128x4 tile goes to byte i % 32 * 16 + i / 32 * 4 + j of the tile's 512: 16 bytes of a tile are
// four scales of each of the rows i, i + 32, i + 64 and i + 96. A thread makes them for four tiles side by side.
__device__ __forceinline__ void swizzle_rows(const SwizzleTensor& t, u32 item) {
    // Four neighbours read 64 bytes of a row, eight write 128 bytes of a tile.
    u32 pair = item / 4 % 32;
    u32 column = item / 128;
    u32 columns = divide_up(t.tiles_across, 16);
    u32 top = column / columns * 128;
    u32 first = (column % columns * 4 + item % 4) * 4;
    if (top >= t.rows || first >= t.tiles_across) return;
    if (t.aligned && top + 128 <= t.rows && first * 4 + 16 <= t.cols) {
        const u8* from = t.scale + u64(top + pair) * t.pitch + first * 4;
        uint4 row[4];
#pragma unroll
        for (u32 q = 0; q < 4; ++q) row[q] = load16(from + u64(q) * 32 * t.pitch);
        uint4* to = reinterpret_cast<uint4*>(t.swizzled + (u64(top / 128) * t.tiles_across + first) * 512) + pair;
        to[0] = make_uint4(row[0].x, row[1].x, row[2].x, row[3].x);
        to[32] = make_uint4(row[0].y, row[1].y, row[2].y, row[3].y);
        to[64] = make_uint4(row[0].z, row[1].z, row[2].z, row[3].z);
        to[96] = make_uint4(row[0].w, row[1].w, row[2].w, row[3].w);
        return;
    }
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

// The same from the transposed matrix: four scales of a row of the tile come from four rows of the source. A
// thread makes four neighbouring groups of 16 bytes of one tile; eight threads make the tile.
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

extern "C" __global__ void __launch_bounds__(THREADS, 4)
swizzle_scale(const __grid_constant__ SwizzleArguments all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const SwizzleTensor t = tensor_of<SwizzleTensor>(all, place);
    u32 item = place.tile * THREADS + threadIdx.x;
    if (t.transposed) {
        swizzle_columns(t, item);
    } else {
        swizzle_rows(t, item);
    }
}
