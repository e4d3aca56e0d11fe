// A rank's part of a weight, and how a warp reads it.
//
// Laws:
// - A fragment is the elements start .. start + len of a flattened row-major matrix; `master` points at
//   element `start`. A row shard is a matrix of its own whose fragment is all of it.
// - A warp reads patches of 8 rows x 128 columns. Lane l holds the columns 4l .. 4l + 3, so every row of a
//   patch is one coalesced read of 512 bytes, and eight of them are in flight.
// - What lies outside the matrix or the fragment is never read; it counts as +0.
// - Only the path for whole patches is unrolled. Ragged ones go row by row in a loop: kernels stay small, and code
//   that is fetched and not run costs small weights more than their data.

#pragma once

#include "common.cuh"

constexpr u32 PATCH_ROWS = 8;
constexpr u32 PATCH_COLUMNS = 128;

struct Fragment {
    const float* master;
    u64 start;
    u64 len;
    u32 rows;
    u32 cols;
    // Whether rows begin at multiples of four elements and 16 bytes.
    u32 aligned;
    u32 reserved;
};
static_assert(sizeof(Fragment) == 40, "kernels::fragment::FragmentArguments");

// What a warp works on: 128 columns of some rows, starting at element (row, column).
struct Strip {
    u32 row;
    u32 column;
};

// Strip number `item` of a matrix cut into strips of `height` rows, row-major. A matrix without columns counts
// as one strip wide.
__device__ __forceinline__ Strip strip_of(u32 item, u32 strips_across, u32 height) {
    u32 across = max(strips_across, 1u);
    return Strip{item / across * height, item % across * PATCH_COLUMNS};
}

struct Patch {
    float4 row[PATCH_ROWS];
};

// Whether all elements of the 128-column strip `row .. row + height` are in the fragment, and its rows aligned.
// The same for all lanes.
__device__ __forceinline__ bool is_whole(const Fragment& f, u32 row, u32 height, u32 column) {
    if (!f.aligned || column + PATCH_COLUMNS > f.cols || row + height > f.rows) return false;
    u64 first = u64(row) * f.cols + column;
    u64 last = u64(row + height - 1) * f.cols + column + PATCH_COLUMNS;
    return first >= f.start && last <= f.start + f.len;
}

// Whether element (row, column) of the matrix is in the fragment.
__device__ __forceinline__ bool holds(const Fragment& f, u32 row, u32 column) {
    u64 at = u64(row) * f.cols + column;
    return row < f.rows && column < f.cols && at >= f.start && at < f.start + f.len;
}

// Offset of element (row, column) from `master`.
__device__ __forceinline__ u64 offset_of(const Fragment& f, u32 row, u32 column) {
    return u64(row) * f.cols + column - f.start;
}

// Four elements of a row, of which any may be missing.
__device__ __forceinline__ float4 load_some(const Fragment& f, u32 row, u32 column) {
    float v[4];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        v[k] = holds(f, row, column + k) ? __ldg(f.master + offset_of(f, row, column + k)) : 0.0f;
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

// The lane's part of a whole patch whose first row is `row` and whose strip begins at `column`.
__device__ __forceinline__ Patch load_patch(const Fragment& f, u32 row, u32 column) {
    Patch patch;
    const float* at = f.master + offset_of(f, row, column + 4 * lane());
#pragma unroll
    for (u32 r = 0; r < PATCH_ROWS; ++r) patch.row[r] = load16(at + u64(r) * f.cols);
    return patch;
}
