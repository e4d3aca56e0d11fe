// Largest magnitudes of the blocks of many masters, and of each master.
//
// Laws:
// - NaN never raises an amax; infinity does. Blocks without an element get 0.
// - Rounding to bfloat16 is monotone, so an amax is rounded once instead of every element.
// - A master is read once, whatever the format needs: MXFP8's rows and columns come from one pass.
// - A block makes `passes` passes before it raises its tensor's amax. So small launches spread over the
//   device, and large ones start and end blocks seldom.
// - A maximum does not depend on the order it is taken in, so atomics on the bits of non-negative floats are
//   exact and the same in every run.
// - Tiles are taken from the last to the first: the optimizer, which goes the other way, left the last ones in the
//   cache, and a cast after this launch begins with those that it read last.

#include "amax.cuh"
#include "common.cuh"
#include "elements.cuh"
#include "fragment.cuh"

struct AmaxTensor {
    Fragment fragment;
    // Block amaxes; a null orientation is not wanted.
    float* rowwise;
    float* columnwise;
    float* tensor_amax;
    // Rows and columns of the block grid, of rowwise blocks and of columnwise ones. They may reach beyond
    // the fragment's matrix: those blocks get 0.
    u32 grid_rows;
    u32 grid_cols;
    u32 columnwise_rows;
    u32 columnwise_cols;
};
static_assert(sizeof(AmaxTensor) == 80, "kernels::amax::TensorArguments");

// Passes of a block: more made no launch faster, and those over rows slower by 1 % (one H100, 2026-11-25).
constexpr u32 MOST_PASSES = 2;

// Blocks that share a multiprocessor. On Ampere a fifth would spill registers to memory.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr u32 RESIDENT = 4;
#else
constexpr u32 RESIDENT = 5;
#endif

struct AmaxArguments {
    Tiles tiles;
    const AmaxTensor* tensors;
    Pending* pending;
    const Vote* vote;
    u32 via_bf16;
    // A power of two, at most MOST_PASSES.
    u32 passes;
    AmaxTensor only;
};

__device__ __forceinline__ float4 raise(float4 amax, float4 v) {
    return make_float4(fmaxf(amax.x, fabsf(v.x)), fmaxf(amax.y, fabsf(v.y)), fmaxf(amax.z, fabsf(v.z)),
                       fmaxf(amax.w, fabsf(v.w)));
}

// Maxima over GROUP neighbouring lanes of GROUP values each; lane l of the group gets that of value l.
template <u32 GROUP>
__device__ __forceinline__ float each_over_lanes(float (&values)[GROUP]) {
#pragma unroll
    for (u32 half = GROUP / 2; half > 0; half /= 2) {
        bool upper = (lane() & half) != 0;
#pragma unroll
        for (u32 i = 0; i < half; ++i) {
            float sent = upper ? values[i] : values[i + half];
            float kept = upper ? values[i + half] : values[i];
            values[i] = fmaxf(kept, __shfl_xor_sync(0xFFFFFFFFu, sent, half));
        }
    }
    return values[0];
}

// The lane's largest magnitude of 16 rows of a strip.
__device__ __forceinline__ float over_rows(const Fragment& f, u32 row, u32 column, Shared& shared) {
    float largest = 0.0f;
    if (is_whole(f, row, 16, column)) {
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            Patch patch = load_patch(f, row + part * PATCH_ROWS, column);
            if (part == 0) shared.clear();
#pragma unroll
            for (u32 r = 0; r < PATCH_ROWS; ++r) largest = fmaxf(largest, largest_of(patch.row[r]));
        }
    } else {
#pragma unroll 1
        for (u32 r = 0; r < 16; ++r) largest = fmaxf(largest, largest_of(load_some(f, row + r, column + 4 * lane())));
    }
    return largest;
}

// NVFP4 in 16x16 tiles: a warp takes one row of tiles in a pass, 128 columns wide; the next pass takes the row below.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) amax_tile16(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    Place place = place_of_block(all.tiles);
    const AmaxTensor t = tensor_of<AmaxTensor>(all, place);
    Shared shared(all.tiles, all.pending, place, t.tensor_amax);
    u32 item = place.tile * WARPS + warp();
    Strip strip = strip_of(item, divide_up(t.grid_cols, 8), 16 * all.passes);
    u32 block_column = strip.column / 16 + lane() / 4;
    float largest = 0.0f;
#pragma unroll 1
    for (u32 pass = 0; pass < all.passes; ++pass) {
        u32 block_row = strip.row / 16 + pass;
        if (block_row >= t.grid_rows) break;
        float amax = over_lanes<4>(over_rows(t.fragment, block_row * 16, strip.column, shared));
        amax = all.via_bf16 ? round_to_bf16(amax) : amax;
        largest = fmaxf(largest, amax);
        if (lane() % 4 == 0 && block_column < t.grid_cols) {
            t.rowwise[u64(block_row) * t.grid_cols + block_column] = amax;
        }
    }
    shared.publish(largest);
}

// FP8 in 128x128 tiles: a block takes one tile in a pass, a warp 16 of its rows.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) amax_tile128(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    __shared__ float of_warp[MOST_PASSES][WARPS];
    Place place = place_of_block(all.tiles);
    const AmaxTensor t = tensor_of<AmaxTensor>(all, place);
    Shared shared(all.tiles, all.pending, place, t.tensor_amax);
    u32 blocks = t.grid_rows * t.grid_cols;
    u32 first = place.tile * all.passes;
    u32 passes = min(all.passes, blocks - min(first, blocks));
    float largest = 0.0f;
#pragma unroll 1
    for (u32 pass = 0; pass < passes; ++pass) {
        u32 row = (first + pass) / t.grid_cols * 128 + warp() * 16;
        u32 column = (first + pass) % t.grid_cols * 128;
        float amax = over_warp(over_rows(t.fragment, row, column, shared));
        amax = all.via_bf16 ? round_to_bf16(amax) : amax;
        largest = fmaxf(largest, amax);
        if (lane() == 0) of_warp[pass][warp()] = amax;
    }
    __syncthreads();
    if (threadIdx.x < passes) {
        float of_block = 0.0f;
        for (u32 w = 0; w < WARPS; ++w) of_block = fmaxf(of_block, of_warp[threadIdx.x][w]);
        t.rowwise[first + threadIdx.x] = of_block;
    }
    shared.publish(largest);
}

// Blocks of 1 x WIDTH: a warp takes 8 rows of 128 columns in a pass; the next pass takes the 8 rows below. The
// warps that together make 32 rows, the height of a columnwise block, are a team.
template <u32 WIDTH, bool COLUMNS>
__device__ __forceinline__ void amax_rows(const AmaxArguments& all) {
    constexpr u32 LANES = WIDTH / 4;
    constexpr u32 HEIGHT = 32;
    constexpr u32 GROUP = LANES < PATCH_ROWS ? LANES : PATCH_ROWS;
    Place place = place_of_block(all.tiles);
    const AmaxTensor t = tensor_of<AmaxTensor>(all, place);
    Shared shared(all.tiles, all.pending, place, t.tensor_amax);
    const Fragment& f = t.fragment;
    u32 rows_of_warp = PATCH_ROWS * all.passes;
    u32 strips = WARPS * rows_of_warp / HEIGHT;
    u32 across = divide_up(t.grid_cols, PATCH_COLUMNS / WIDTH);
    Strip strip = strip_of(place.tile * strips + warp() * rows_of_warp / HEIGHT, across, HEIGHT);
    u32 top = strip.row + warp() * rows_of_warp % HEIGHT;
    u32 block_column = strip.column / WIDTH + lane() / LANES;
    float largest = 0.0f;
    float4 columns = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    auto put = [&](u32 row, float amax) {
        if (row < t.grid_rows && block_column < t.grid_cols && t.rowwise != nullptr) {
            t.rowwise[u64(row) * t.grid_cols + block_column] = amax;
        }
    };
#pragma unroll 1
    for (u32 pass = 0; pass < all.passes; ++pass) {
        u32 row = top + pass * PATCH_ROWS;
        if (is_whole(f, row, PATCH_ROWS, strip.column)) {
            Patch patch = load_patch(f, row, strip.column);
            shared.clear();
            // Rows go to the lanes of a block in groups; what a group's lanes hold is its rows' amaxes.
#pragma unroll
            for (u32 first = 0; first < PATCH_ROWS; first += GROUP) {
                float rows[GROUP];
#pragma unroll
                for (u32 r = 0; r < GROUP; ++r) {
                    rows[r] = largest_of(patch.row[first + r]);
                    if (COLUMNS) columns = raise(columns, patch.row[first + r]);
                }
                float amax = each_over_lanes<GROUP>(rows);
                // Where the block is wider than the group, its other lanes hold the rest of the columns.
#pragma unroll
                for (u32 distance = GROUP; distance < LANES; distance *= 2) {
                    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, distance));
                }
                amax = all.via_bf16 ? round_to_bf16(amax) : amax;
                largest = fmaxf(largest, amax);
                if (lane() % LANES < GROUP) put(row + first + lane() % GROUP, amax);
            }
        } else {
#pragma unroll 1
            for (u32 r = 0; r < PATCH_ROWS; ++r) {
                float4 v = load_some(f, row + r, strip.column + 4 * lane());
                if (COLUMNS) columns = raise(columns, v);
                float amax = over_lanes<LANES>(largest_of(v));
                amax = all.via_bf16 ? round_to_bf16(amax) : amax;
                largest = fmaxf(largest, amax);
                if (lane() % LANES == 0) put(row + r, amax);
            }
        }
    }
    if (COLUMNS) {
        __shared__ float4 of_warp[WARPS][32];
        of_warp[warp()][lane()] = columns;
        __syncthreads();
        // Threads go on as columns of the block's strips, of one after the other.
        u32 team = HEIGHT / rows_of_warp;
        for (u32 at = threadIdx.x; at < strips * PATCH_COLUMNS; at += THREADS) {
            u32 number = at / PATCH_COLUMNS;
            const float* own = &of_warp[number * team][0].x + at % PATCH_COLUMNS;
            float amax = 0.0f;
            for (u32 w = 0; w < team; ++w) amax = fmaxf(amax, own[w * PATCH_COLUMNS]);
            amax = all.via_bf16 ? round_to_bf16(amax) : amax;
            Strip whose = strip_of(place.tile * strips + number, across, HEIGHT);
            u32 block_row = whose.row / HEIGHT;
            u32 column = whose.column + at % PATCH_COLUMNS;
            if (block_row < t.columnwise_rows && column < t.columnwise_cols && t.columnwise != nullptr) {
                t.columnwise[u64(block_row) * t.columnwise_cols + column] = amax;
            }
        }
    }
    shared.publish(largest);
}

// NVFP4 in blocks of 1x16.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) amax_row16(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    amax_rows<16, false>(all);
}

// FP8 in blocks of 1x128.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) amax_row128(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    amax_rows<128, false>(all);
}

// MXFP8: blocks of 1x32 and of 32x1.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) amax_mxfp8(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    amax_rows<32, true>(all);
}

// Elements of a pass where only the whole tensor counts.
constexpr u32 FLAT_PASS = 16384;

// One amax per tensor.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) amax_tensor(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    Place place = place_of_block(all.tiles);
    const AmaxTensor t = tensor_of<AmaxTensor>(all, place);
    Shared shared(all.tiles, all.pending, place, t.tensor_amax);
    const Fragment& f = t.fragment;
    float largest = 0.0f;
#pragma unroll 1
    for (u32 pass = 0; pass < all.passes; ++pass) {
        u64 first = (u64(place.tile) * all.passes + pass) * FLAT_PASS;
        if (f.aligned && first + FLAT_PASS <= f.len) {
            const float* at = f.master + first + 4 * threadIdx.x;
#pragma unroll
            for (u32 part = 0; part < 2; ++part) {
                float4 v[8];
#pragma unroll
                for (u32 i = 0; i < 8; ++i) v[i] = load16(at + (part * 8 + i) * 4 * THREADS);
                if (part == 0) shared.clear();
#pragma unroll
                for (u32 i = 0; i < 8; ++i) largest = fmaxf(largest, largest_of(v[i]));
            }
        } else {
            u64 end = min(first + FLAT_PASS, f.len);
            for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
                largest = fmaxf(largest, fabsf(__ldg(f.master + at)));
            }
        }
    }
    shared.publish(all.via_bf16 ? round_to_bf16(largest) : largest);
}
