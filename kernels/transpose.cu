// Columnwise planes from rowwise ones: elements of 4, 8, 16 and 32 bits, and the scales of square blocks.
//
// Laws:
// - Codes and scale bytes are moved, never rounded again. Padding of the columnwise scale plane is zeroed.
// - Where rows of both matrices begin at multiples of 16 bytes and divide into squares, a thread reads a square
//   of elements, 16 bytes of each row (8 of nibbles), turns it around in registers and writes its columns, 16
//   bytes of each. Eight threads lie side by side and four one below the other, so a warp reads runs of 128
//   bytes (64) and writes runs of 64, with 64 registers of loads in flight per thread and no barrier.
// - Elsewhere data moves in words of 4 bytes that cross over in shared memory. Word w of line k lies at place
//   w ^ (k's group) of the line: neither side of the crossing has a bank conflict, and no padding is needed.
// - A tensor's tiles are those of its data, then those of its scales.

#include "common.cuh"
#include "elements.cuh"

struct TransposeTensor {
    const u8* data;
    const u8* scale;
    u8* out_data;
    u8* out_scale;
    // The matrix that is read.
    u32 rows;
    u32 cols;
    u32 data_tiles;
    // How data may be moved: IN_BYTES, IN_WORDS or IN_SQUARES.
    u32 way;
    // Entries per row of the scale planes, and rows of the columnwise one.
    u32 pitch;
    u32 out_pitch;
    u32 out_rows;
    u32 reserved;
};
static_assert(sizeof(TransposeTensor) == 64, "kernels::transpose::TensorArguments");

// Small blocks: a small weight, too, must reach every multiprocessor.
constexpr u32 BLOCK = 128;
constexpr u32 BLOCK_WARPS = BLOCK / 32;

// Rows of both matrices begin anywhere, at multiples of 4 bytes, or at multiples of 16 and are whole squares.
constexpr u32 IN_BYTES = 0;
constexpr u32 IN_WORDS = 1;
constexpr u32 IN_SQUARES = 2;

struct TransposeArguments {
    Tiles tiles;
    const TransposeTensor* tensors;
};

// Transposes the square of elements that one word of each of its rows holds.
template <u32 BITS>
struct Square;

template <>
struct Square<32> {
    static __device__ __forceinline__ void turn(u32 (&)[1]) {}
};

template <>
struct Square<16> {
    static __device__ __forceinline__ void turn(u32 (&w)[2]) {
        u32 low = __byte_perm(w[0], w[1], 0x5410);
        w[1] = __byte_perm(w[0], w[1], 0x7632);
        w[0] = low;
    }
};

template <>
struct Square<8> {
    static __device__ __forceinline__ void turn(u32 (&w)[4]) {
        u32 a = __byte_perm(w[0], w[1], 0x5140);
        u32 b = __byte_perm(w[2], w[3], 0x5140);
        u32 c = __byte_perm(w[0], w[1], 0x7362);
        u32 d = __byte_perm(w[2], w[3], 0x7362);
        w[0] = __byte_perm(a, b, 0x5410);
        w[1] = __byte_perm(a, b, 0x7632);
        w[2] = __byte_perm(c, d, 0x5410);
        w[3] = __byte_perm(c, d, 0x7632);
    }
};

template <>
struct Square<4> {
    static __device__ __forceinline__ void turn(u32 (&w)[8]) {
        // Byte j of even[p] holds column 2j of rows 2p and 2p + 1, of odd[p] column 2j + 1.
        u32 even[4];
        u32 odd[4];
#pragma unroll
        for (u32 p = 0; p < 4; ++p) {
            even[p] = (w[2 * p] & 0x0F0F0F0Fu) | ((w[2 * p + 1] << 4) & 0xF0F0F0F0u);
            odd[p] = ((w[2 * p] >> 4) & 0x0F0F0F0Fu) | (w[2 * p + 1] & 0xF0F0F0F0u);
        }
        Square<8>::turn(even);
        Square<8>::turn(odd);
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            w[2 * j] = even[j];
            w[2 * j + 1] = odd[j];
        }
    }
};

// Four bytes of a row, from byte `at` on, of which those from `row_bytes` on are missing.
__device__ __forceinline__ u32 load_word(const u8* row, u32 at, u32 row_bytes, bool aligned) {
    if (aligned && at + 4 <= row_bytes) return __ldg(reinterpret_cast<const u32*>(row + at));
    u32 word = 0;
    for (u32 k = 0; k < 4; ++k) {
        if (at + k < row_bytes) word |= u32(__ldg(row + at + k)) << (8 * k);
    }
    return word;
}

__device__ __forceinline__ void store_word(u8* row, u32 at, u32 row_bytes, bool aligned, u32 word) {
    if (aligned && at + 4 <= row_bytes) {
        *reinterpret_cast<u32*>(row + at) = word;
        return;
    }
    for (u32 k = 0; k < 4; ++k) {
        if (at + k < row_bytes) row[at + k] = u8(word >> (8 * k));
    }
}

// Moves a tile through shared memory.
template <u32 BITS>
__device__ __forceinline__ void cross_over(const TransposeTensor& t, u32 tile) {
    constexpr u32 GROUP = 32 / BITS;
    constexpr u32 SIDE = 32 * GROUP;
    __shared__ u32 lines[SIDE * 32];
    u32 across = max(divide_up(t.cols, SIDE), 1u);
    u32 top = tile / across * SIDE;
    u32 left = tile % across * SIDE;
    u64 row_bytes = u64(t.cols) * BITS / 8;
    u64 out_bytes = u64(t.rows) * BITS / 8;
    u32 at = left / GROUP * 4 + 4 * lane();
    bool aligned = t.way != IN_BYTES;

#pragma unroll 2
    for (u32 group = warp(); group < 32; group += BLOCK_WARPS) {
        u32 words[GROUP];
#pragma unroll
        for (u32 r = 0; r < GROUP; ++r) {
            u32 row = top + group * GROUP + r;
            words[r] = row < t.rows ? load_word(t.data + row * row_bytes, at, row_bytes, aligned) : 0;
        }
        Square<BITS>::turn(words);
#pragma unroll
        for (u32 k = 0; k < GROUP; ++k) lines[(lane() * GROUP + k) * 32 + (group ^ lane())] = words[k];
    }
    __syncthreads();

    u32 out_at = top / GROUP * 4 + 4 * lane();
#pragma unroll 8
    for (u32 k = warp(); k < SIDE; k += BLOCK_WARPS) {
        u32 column = left + k;
        if (column >= t.cols) break;
        u32 word = lines[k * 32 + (lane() ^ (k / GROUP))];
        store_word(t.out_data + column * out_bytes, out_at, out_bytes, aligned, word);
    }
}

// Threads of a warp side by side, and one below the other.
constexpr u32 ACROSS = 8;
constexpr u32 DOWN = 4;

// The square a thread turns around: as many rows as 16 bytes of a column have elements.
template <u32 BITS>
struct Share {
    static constexpr u32 ROWS = 128 / BITS;
    static constexpr u32 WORDS = BITS == 4 ? 2 : 4;
    static constexpr u32 COLUMNS = WORDS * 32 / BITS;
    // Squares of a thread, one warp's height apart, so that every format has 64 registers of loads in flight.
    static constexpr u32 COUNT = 64 / (ROWS * WORDS);
    static constexpr u32 TILE_ROWS = ROWS * DOWN * COUNT;
    static constexpr u32 TILE_COLUMNS = COLUMNS * ACROSS;
};

template <u32 WORDS>
__device__ __forceinline__ void load_words(u32 (&words)[WORDS], const u8* at) {
    if (WORDS == 4) {
        uint4 v = __ldg(reinterpret_cast<const uint4*>(at));
        words[0] = v.x;
        words[1] = v.y;
        words[2 % WORDS] = v.z;
        words[3 % WORDS] = v.w;
    } else {
        uint2 v = __ldg(reinterpret_cast<const uint2*>(at));
        words[0] = v.x;
        words[1] = v.y;
    }
}

// Moves a tile through registers. A warp takes one, the warps of a block one below the other.
template <u32 BITS>
__device__ __forceinline__ void turn_squares(const TransposeTensor& t, u32 tile) {
    using S = Share<BITS>;
    constexpr u32 GROUP = 32 / BITS;
    u32 tiles_down = divide_up(divide_up(t.rows, S::TILE_ROWS), BLOCK_WARPS);
    u32 top = (tile % tiles_down * BLOCK_WARPS + warp()) * S::TILE_ROWS + lane() / ACROSS * S::ROWS;
    u32 left = tile / tiles_down * S::TILE_COLUMNS + lane() % ACROSS * S::COLUMNS;
    if (left >= t.cols) return;
    u64 row_bytes = u64(t.cols) * BITS / 8;
    u64 out_bytes = u64(t.rows) * BITS / 8;

    u32 words[S::COUNT][S::ROWS][S::WORDS];
#pragma unroll
    for (u32 n = 0; n < S::COUNT; ++n) {
        u32 row = top + n * DOWN * S::ROWS;
        if (row >= t.rows) continue;
        const u8* from = t.data + row * row_bytes + u64(left) * BITS / 8;
#pragma unroll
        for (u32 r = 0; r < S::ROWS; ++r) load_words(words[n][r], from + r * row_bytes);
    }
#pragma unroll
    for (u32 n = 0; n < S::COUNT; ++n) {
        u32 row = top + n * DOWN * S::ROWS;
        if (row >= t.rows) continue;
        u8* to = t.out_data + left * out_bytes + u64(row) * BITS / 8;
        // Word w of the rows of a group makes one word of each of its columns.
#pragma unroll
        for (u32 w = 0; w < S::WORDS; ++w) {
            u32 turned[4][GROUP];
#pragma unroll
            for (u32 g = 0; g < 4; ++g) {
#pragma unroll
                for (u32 r = 0; r < GROUP; ++r) turned[g][r] = words[n][g * GROUP + r][w];
                Square<BITS>::turn(turned[g]);
            }
#pragma unroll
            for (u32 c = 0; c < GROUP; ++c) {
                uint4 line = make_uint4(turned[0][c], turned[1][c], turned[2][c], turned[3][c]);
                *reinterpret_cast<uint4*>(to + (w * GROUP + c) * out_bytes) = line;
            }
        }
    }
}

template <u32 BITS>
__device__ __forceinline__ void transpose_data(const TransposeTensor& t, u32 tile) {
    if (t.way == IN_SQUARES) {
        turn_squares<BITS>(t, tile);
    } else {
        cross_over<BITS>(t, tile);
    }
}

// NVFP4: out[r][c] = in[16c][r / 16], as each scale stands in all 16 rows of its tile. A thread makes four
// entries of 16 rows.
__device__ __forceinline__ void transpose_tile_scales(const TransposeTensor& t, u32 tile) {
    u32 across = max(t.out_pitch / 4, 1u);
    u32 item = tile * BLOCK + threadIdx.x;
    u32 block = item / across;
    u32 column = item % across * 4;
    if (block * 16 >= t.out_rows) return;
    u32 entries = 0;
    if (block < t.cols / 16) {
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            if (column + k < t.rows / 16) {
                entries |= u32(__ldg(t.scale + u64(column + k) * 16 * t.pitch + block)) << (8 * k);
            }
        }
    }
    for (u32 row = block * 16; row < min(block * 16 + 16, t.out_rows); ++row) {
        store_word(t.out_scale + u64(row) * t.out_pitch, column, t.out_pitch, t.way != IN_BYTES, entries);
    }
}

// FP8 in 128x128 tiles: the plane transposed. A thread makes one entry.
__device__ __forceinline__ void transpose_block_scales(const TransposeTensor& t, u32 tile) {
    u32 item = tile * BLOCK + threadIdx.x;
    u32 row = item / max(t.out_pitch, 1u);
    u32 column = item % max(t.out_pitch, 1u);
    if (row >= t.out_rows) return;
    const float* in = reinterpret_cast<const float*>(t.scale);
    bool valid = row < divide_up(t.cols, 128) && column < divide_up(t.rows, 128);
    reinterpret_cast<float*>(t.out_scale)[item] = valid ? __ldg(in + u64(column) * t.pitch + row) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose_nvfp4(const __grid_constant__ TransposeArguments all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const TransposeTensor& t = all.tensors[place.tensor];
    if (place.tile < t.data_tiles) {
        transpose_data<4>(t, place.tile);
    } else {
        transpose_tile_scales(t, place.tile - t.data_tiles);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose_fp8(const __grid_constant__ TransposeArguments all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const TransposeTensor& t = all.tensors[place.tensor];
    if (place.tile < t.data_tiles) {
        transpose_data<8>(t, place.tile);
    } else {
        transpose_block_scales(t, place.tile - t.data_tiles);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose_bf16(const __grid_constant__ TransposeArguments all) {
    Place place = place_of(all.tiles, blockIdx.x);
    transpose_data<16>(all.tensors[place.tensor], place.tile);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose_f32(const __grid_constant__ TransposeArguments all) {
    Place place = place_of(all.tiles, blockIdx.x);
    transpose_data<32>(all.tensors[place.tensor], place.tile);
}
