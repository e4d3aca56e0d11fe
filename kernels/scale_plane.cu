// Scale planes after a gather and before a GEMM: expand and swizzle.
//
// Laws:
// - Expanding works in place. Of G compact rows, those from G/16 on are written below all compact rows, so their
//   blocks write as soon as they have read. The first G/16 are written over compact rows: their blocks, the *closing*
//   ones, wait until every block of their strip of columns has read what it spreads. No compact row is overwritten
//   before it is read.
// - Blocks take their numbers as they start, and the closing blocks of a strip have its last ones. So what a block
//   waits for is running already, or is one of the few closing blocks of its own strip, the next to start. These fit on
//   any device at once: the host cuts strips so.
// - A block writes one line after the other, neighbours in memory.
// - Every launch counts each block of a strip once, and counters wrap at twice as many: a launch finds a counter
//   at zero or in the middle, and its blocks are all counted when it has passed the middle or zero. So launches that
//   share counters run one after the other.
// - Padding is zeroed, whatever it held.

#include "common.cuh"

struct ExpandTensor {
    const u8* compact;
    u8* plane;
    // For each strip of columns, counts the blocks that have read what they spread.
    u32* arrived;
    // Rows of tiles, rows of the plane, bytes per row.
    u32 tile_rows;
    u32 plane_rows;
    u32 pitch;
    // Bytes that a strip is wide.
    u32 width;
    // Compact rows of a block, and of a closing block.
    u32 rows;
    u32 closing_rows;
    // Blocks of a strip, and those of them that are not closing.
    u32 parts;
    u32 lower_parts;
    // Whether rows begin at multiples of 16 bytes.
    u32 aligned;
    u32 reserved;
};
static_assert(sizeof(ExpandTensor) == 64, "kernels::expand::ExpandTensor");

struct ExpandArguments {
    Tiles tiles;
    const ExpandTensor* tensors;
    ExpandTensor only;
    // Zero between launches.
    u32* started;
};

// Rows in which one tile's scales are repeated.
constexpr u32 REPEAT = 16;

// Bytes of compact rows that a block holds.
constexpr u32 HELD = 16384;

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

// Counts this block among the `blocks` of its strip, and waits for all of them if it is a closing one.
__device__ __forceinline__ void count_read(u32* arrived, u32 blocks, bool closing) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(arrived), "r"(2 * blocks - 1)
                 : "memory");
    if (!closing) return;
    bool from_the_middle = before >= blocks;
    u32 now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
    } while ((now >= blocks) == from_the_middle);
}

// One compact row per row of tiles becomes 16 equal rows. A block holds some compact rows of a strip.
template <class Unit>
__device__ __forceinline__ void expand(const ExpandTensor& t, u32 tile) {
    __shared__ uint4 lines[HELD / sizeof(uint4)];
    Unit* held = reinterpret_cast<Unit*>(lines);
    u32 units = t.pitch / sizeof(Unit);
    u32 widest = t.width / sizeof(Unit);
    u32 upper = divide_up(t.tile_rows, REPEAT);
    u32 strip = tile / t.parts;
    u32 part = tile % t.parts;
    bool closing = part >= t.lower_parts;
    u32 top = closing ? (part - t.lower_parts) * t.closing_rows : upper + part * t.rows;
    u32 rows = min(closing ? t.closing_rows : t.rows, (closing ? upper : t.plane_rows / REPEAT) - top);
    u32 width = min(widest, units - strip * widest);
    // A thread goes on by so many rows and columns, and one row more at the end of a row.
    u32 down = THREADS / width;
    u32 over = THREADS % width;
    u32 first_row = threadIdx.x / width;
    u32 first_column = threadIdx.x % width;

    const Unit* compact = reinterpret_cast<const Unit*>(t.compact) + u64(top) * units + strip * widest;
    u32 column = first_column;
    for (u32 row = first_row; row < rows; row += down) {
        Unit unit{};
        if (top + row < t.tile_rows) read_shared(unit, compact + u64(row) * units + column);
        held[row * width + column] = unit;
        column += over;
        if (column >= width) {
            column -= width;
            row += 1;
        }
    }
    // The block has read all that it spreads; others may write there.
    __syncthreads();
    if (threadIdx.x == 0) count_read(t.arrived + strip, t.parts, closing);
    if (closing) __syncthreads();

    Unit* to = reinterpret_cast<Unit*>(t.plane) + u64(top * REPEAT + first_row) * units + strip * widest + first_column;
    column = first_column;
#pragma unroll 4
    for (u32 row = first_row; row < rows * REPEAT; row += down) {
        *to = held[row / REPEAT * width + column];
        to += down * units + over;
        column += over;
        if (column >= width) {
            column -= width;
            row += 1;
            to += units - width;
        }
    }
}

// Descriptors that the threads of a block fetch with 16 bytes each.
constexpr u32 FETCHED = THREADS * sizeof(uint4) / sizeof(ExpandTensor);
static_assert(2 * 32 == FETCHED, "a lane looks at two tensors");

// The tables of a launch of up to FETCHED tensors, requested before a block knows its number, so that it waits once.
class Fetched {
    uint4 unit;
    u32 first;
    bool has_unit;
    bool has_first;

  public:
    __device__ __forceinline__ explicit Fetched(const ExpandArguments& all)
        : has_unit(threadIdx.x < all.tiles.tensors * (sizeof(ExpandTensor) / sizeof(uint4))),
          has_first(threadIdx.x < all.tiles.tensors) {
        if (has_unit) unit = __ldg(reinterpret_cast<const uint4*>(all.tensors) + threadIdx.x);
        if (has_first) first = __ldg(all.tiles.first + threadIdx.x);
    }

    __device__ __forceinline__ void store(ExpandTensor* tensors, u32* firsts) const {
        if (has_unit) reinterpret_cast<uint4*>(tensors)[threadIdx.x] = unit;
        // No tile has the number of a tensor that is not there.
        if (threadIdx.x < FETCHED) firsts[threadIdx.x] = has_first ? first : ~0u;
    }

    static __device__ __forceinline__ Place place_in(const u32* firsts, u32 tile) {
        u32 begun = __popc(__ballot_sync(0xFFFFFFFFu, firsts[lane()] <= tile)) +
                    __popc(__ballot_sync(0xFFFFFFFFu, firsts[lane() + 32] <= tile));
        return Place{begun - 1, tile - firsts[begun - 1]};
    }
};

// NVFP4 in 16x16 tiles.
extern "C" __global__ void __launch_bounds__(THREADS, 8)
expand_scale(const __grid_constant__ ExpandArguments all) {
    __shared__ u32 number;
    __shared__ uint4 descriptors[THREADS];
    __shared__ u32 firsts[FETCHED];
    ExpandTensor* tensors = reinterpret_cast<ExpandTensor*>(descriptors);
    u32 before = 0;
    if (threadIdx.x == 0) before = started_before(all.started, gridDim.x);
    bool fetches = all.tiles.tensors != 1 && all.tiles.tensors <= FETCHED;
    if (fetches) Fetched(all).store(tensors, firsts);
    if (threadIdx.x == 0) number = before;
    __syncthreads();
    Place place = fetches ? Fetched::place_in(firsts, number) : place_of(all.tiles, number);
    const ExpandTensor t = fetches ? tensors[place.tensor] : tensor_of<ExpandTensor>(all, place);
    if (t.aligned) {
        expand<uint4>(t, place.tile);
    } else {
        expand<u32>(t, place.tile);
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
