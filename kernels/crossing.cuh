// Transposes a tile of a matrix on its way through shared memory.
//
// Laws:
// - A matrix is seen as words of 4 bytes. A word and as many rows as it has elements make a square (8x8
//   nibbles, 4x4 bytes, 2x2 halves, one f32), which a thread transposes in registers; the words cross over
//   in shared memory. So both sides move 16 bytes per thread, in runs of at least 128 bytes.
// - Line k of a tile holds what the tile's column k becomes. Its groups of four words are at place g ^ (k's own
//   group % 8): writers hit every bank once, readers read 16 bytes each without conflict, and no padding is
//   needed.
// - Rows begin at multiples of 16 bytes, of 4, or anywhere; what lies outside the matrix is not touched.

#pragma once

#include "common.cuh"

// How the rows of both matrices are aligned.
constexpr u32 BY_BYTES = 0;
constexpr u32 BY_WORDS = 1;
constexpr u32 BY_GROUPS = 2;

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

// Four bytes of a row, starting at byte `at`, of which those from `row_bytes` on are missing.
__device__ __forceinline__ u32 load_word(const u8* row, u64 at, u64 row_bytes, u32 way) {
    if (way != BY_BYTES && at + 4 <= row_bytes) return __ldg(reinterpret_cast<const u32*>(row + at));
    u32 word = 0;
#pragma unroll 1
    for (u32 k = 0; k < 4; ++k) {
        if (at + k < row_bytes) word |= u32(__ldg(row + at + k)) << (8 * k);
    }
    return word;
}

__device__ __forceinline__ void store_word(u8* row, u64 at, u64 row_bytes, u32 way, u32 word) {
    if (way != BY_BYTES && at + 4 <= row_bytes) {
        *reinterpret_cast<u32*>(row + at) = word;
        return;
    }
#pragma unroll 1
    for (u32 k = 0; k < 4; ++k) {
        if (at + k < row_bytes) row[at + k] = u8(word >> (8 * k));
    }
}

__device__ __forceinline__ u32 word_of(const uint4& group, u32 w) {
    return w == 0 ? group.x : w == 1 ? group.y : w == 2 ? group.z : group.w;
}

// A tile is SCALE times 128 bytes wide, and as high as SCALE times 32 words of a column are. BLOCK threads
// move it.
template <u32 BITS, u32 SCALE, u32 BLOCK>
struct Crossing {
    // Elements of a word.
    static constexpr u32 GROUP = 32 / BITS;
    // Rows and columns of a tile, words of a line.
    static constexpr u32 SIDE = 32 * GROUP * SCALE;
    static constexpr u32 LINE = 32 * SCALE;
    static constexpr u32 WORDS = SIDE * LINE;
    // Squares 16 bytes wide that a thread transposes.
    static constexpr u32 UNITS = 256 * SCALE * SCALE / BLOCK;

    // The group of four words of line `line` that holds group `group`.
    static __device__ __forceinline__ u32 place(u32 line, u32 group) { return group ^ (line / (4 * GROUP) % 8); }

    // Transposes a square of words on its way into the lines.
    static __device__ __forceinline__ void put(u32* lines, u32 unit, u32 w, u32 (&square)[GROUP]) {
        u32 word = unit / 8 % LINE;
        u32 first = unit / 8 / LINE * 32 * GROUP + unit % 8 * 4 * GROUP;
        u32 at = place(first, word / 4) * 4 + word % 4;
        Square<BITS>::turn(square);
#pragma unroll
        for (u32 c = 0; c < GROUP; ++c) lines[(first + w * GROUP + c) * LINE + at] = square[c];
    }

    // Reads the tile whose first element is (top, left) of a matrix, and leaves it transposed in `lines`.
    // Only the path for whole tiles is unrolled: code that is fetched and not run costs small matrices more
    // than their data.
    static __device__ __forceinline__ void read(u32* lines, const u8* data, u32 rows, u64 row_bytes, u32 top,
                                                u32 left, u32 way) {
        u64 begin = u64(left) * BITS / 8;
        if (way == BY_GROUPS && top + SIDE <= rows && begin + LINE * 4 <= row_bytes) {
            uint4 read[UNITS][GROUP];
#pragma unroll
            for (u32 n = 0; n < UNITS; ++n) {
                u32 unit = n * BLOCK + threadIdx.x;
                u64 row = top + unit / 8 % LINE * GROUP;
                const u8* from = data + row * row_bytes + begin + unit / 8 / LINE * 128 + unit % 8 * 16;
#pragma unroll
                for (u32 r = 0; r < GROUP; ++r) read[n][r] = load16(from + r * row_bytes);
            }
#pragma unroll
            for (u32 n = 0; n < UNITS; ++n) {
#pragma unroll
                for (u32 w = 0; w < 4; ++w) {
                    u32 square[GROUP];
#pragma unroll
                    for (u32 r = 0; r < GROUP; ++r) square[r] = word_of(read[n][r], w);
                    put(lines, n * BLOCK + threadIdx.x, w, square);
                }
            }
        } else {
#pragma unroll 1
            for (u32 n = 0; n < UNITS * 4; ++n) {
                u32 unit = n / 4 * BLOCK + threadIdx.x;
                u32 row = top + unit / 8 % LINE * GROUP;
                u64 at = begin + unit / 8 / LINE * 128 + unit % 8 * 16 + n % 4 * 4;
                u32 square[GROUP];
#pragma unroll
                for (u32 r = 0; r < GROUP; ++r) {
                    square[r] = row + r < rows && at < row_bytes
                                    ? load_word(data + (row + r) * row_bytes, at, row_bytes, way)
                                    : 0;
                }
                put(lines, unit, n % 4, square);
            }
        }
        __syncthreads();
    }

    // Writes the tile into the transposed matrix, whose rows are the columns of the one that was read.
    static __device__ __forceinline__ void write(const u32* lines, u8* out, u32 out_rows, u64 out_row_bytes, u32 top,
                                                 u32 left, u32 way) {
        u64 begin = u64(top) * BITS / 8;
        if (way == BY_GROUPS && left + SIDE <= out_rows && begin + LINE * 4 <= out_row_bytes) {
#pragma unroll
            for (u32 n = 0; n < UNITS * GROUP; ++n) {
                u32 item = n * BLOCK + threadIdx.x;
                u32 line = item / (LINE / 4);
                u32 group = item % (LINE / 4);
                *reinterpret_cast<uint4*>(out + (left + line) * out_row_bytes + begin + group * 16) =
                    *reinterpret_cast<const uint4*>(lines + line * LINE + place(line, group) * 4);
            }
            return;
        }
#pragma unroll 1
        for (u32 n = 0; n < UNITS * GROUP * 4; ++n) {
            u32 item = n * BLOCK + threadIdx.x;
            u32 line = item / LINE;
            u32 word = item % LINE;
            u64 at = begin + word * 4;
            if (left + line >= out_rows || at >= out_row_bytes) continue;
            store_word(out + (left + line) * out_row_bytes, at, out_row_bytes, way,
                       lines[line * LINE + place(line, word / 4) * 4 + word % 4]);
        }
    }
};

// Where a tile of a matrix begins.
struct Corner {
    u32 top;
    u32 left;
};

// Tile number `tile` of a matrix in square tiles: down first, so that tiles that are moved at the same time are
// neighbours where they are written.
template <u32 SIDE>
__device__ __forceinline__ Corner corner_of(u32 tile, u32 rows) {
    u32 down = max(divide_up(rows, SIDE), 1u);
    return Corner{tile % down * SIDE, tile / down * SIDE};
}
