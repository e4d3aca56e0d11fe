// Largest magnitudes of the blocks of many masters, and of each master.
//
// Laws:
// - NaN never raises an amax; infinity does. Blocks without an element get 0.
// - Rounding to bfloat16 is monotone, so an amax is rounded once instead of every element.
// - A master is read once, whatever the format needs: MXFP8's rows and columns come from one pass.
// - A maximum does not depend on the order it is taken in, so atomics on the bits of non-negative floats are
//   exact and the same in every run.
// - The last block of a tensor to arrive publishes the tensor's amax and leaves `Pending` as it found it:
//   zero. So the stage is one launch and needs no clearing launch before it.

#include "common.cuh"
#include "elements.cuh"
#include "fragment.cuh"

// What the blocks of a tensor know together while they run. Zero between launches.
struct Pending {
    u32 largest;
    u32 arrived;
};

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

struct AmaxArguments {
    Tiles tiles;
    const AmaxTensor* tensors;
    Pending* pending;
    const Vote* vote;
    u32 via_bf16;
    u32 reserved;
};

__device__ __forceinline__ float largest_of(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

__device__ __forceinline__ float4 raise(float4 amax, float4 v) {
    return make_float4(fmaxf(amax.x, fabsf(v.x)), fmaxf(amax.y, fabsf(v.y)), fmaxf(amax.z, fabsf(v.z)),
                       fmaxf(amax.w, fabsf(v.w)));
}

// Maximum over the GROUP neighbouring lanes, in all of them.
template <u32 GROUP>
__device__ __forceinline__ float over_lanes(float value) {
#pragma unroll
    for (u32 distance = GROUP / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
    }
    return value;
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

// Combines the warps' amaxes of one tensor, and with the other blocks'.
__device__ __forceinline__ void publish(const AmaxArguments& all, const Place& place, float largest) {
    __shared__ float of_warp[WARPS];
    if (lane() == 0) of_warp[warp()] = largest;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 w = 1; w < WARPS; ++w) largest = fmaxf(largest, of_warp[w]);
    Pending* pending = all.pending + place.tensor;
    atomicMax(&pending->largest, __float_as_uint(largest));
    if (arrive(&pending->arrived) == tiles_of(all.tiles, place.tensor)) {
        u32 bits = atomicExch(&pending->largest, 0);
        pending->arrived = 0;
        *all.tensors[place.tensor].tensor_amax = __uint_as_float(bits);
    }
}

// NVFP4 in 16x16 tiles: a warp takes one row of tiles, 128 columns.
extern "C" __global__ void __launch_bounds__(THREADS) amax_tile16(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    Place place = place_of(all.tiles, blockIdx.x);
    const AmaxTensor& t = all.tensors[place.tensor];
    u32 item = place.tile * WARPS + warp();
    Strip strip = strip_of(item, divide_up(t.grid_cols, 8), 16);
    u32 block_row = strip.row / 16;
    float largest = 0.0f;
    if (block_row < t.grid_rows) {
        bool whole = is_whole(t.fragment, strip.row, 16, strip.column);
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            Patch patch = load_patch(t.fragment, whole, strip.row + part * PATCH_ROWS, strip.column);
#pragma unroll
            for (u32 r = 0; r < PATCH_ROWS; ++r) largest = fmaxf(largest, largest_of(patch.row[r]));
        }
        largest = over_lanes<4>(largest);
        largest = all.via_bf16 ? round_to_bf16(largest) : largest;
        u32 block_column = strip.column / 16 + lane() / 4;
        if (lane() % 4 == 0 && block_column < t.grid_cols) {
            t.rowwise[u64(block_row) * t.grid_cols + block_column] = largest;
        }
    }
    publish(all, place, over_lanes<32>(largest));
}

// FP8 in 128x128 tiles: a block takes one tile, a warp 16 of its rows.
extern "C" __global__ void __launch_bounds__(THREADS) amax_tile128(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    __shared__ float of_warp[WARPS];
    Place place = place_of(all.tiles, blockIdx.x);
    const AmaxTensor& t = all.tensors[place.tensor];
    u32 block_row = t.grid_cols == 0 ? 0 : place.tile / t.grid_cols;
    u32 block_column = t.grid_cols == 0 ? 0 : place.tile % t.grid_cols;
    u32 row = block_row * 128 + warp() * 16;
    u32 column = block_column * 128;
    float largest = 0.0f;
    bool whole = is_whole(t.fragment, row, 16, column);
#pragma unroll
    for (u32 part = 0; part < 2; ++part) {
        Patch patch = load_patch(t.fragment, whole, row + part * PATCH_ROWS, column);
#pragma unroll
        for (u32 r = 0; r < PATCH_ROWS; ++r) largest = fmaxf(largest, largest_of(patch.row[r]));
    }
    largest = over_lanes<32>(largest);
    largest = all.via_bf16 ? round_to_bf16(largest) : largest;
    if (lane() == 0) of_warp[warp()] = largest;
    __syncthreads();
    if (threadIdx.x == 0 && block_row < t.grid_rows) {
        float of_block = 0.0f;
        for (u32 w = 0; w < WARPS; ++w) of_block = fmaxf(of_block, of_warp[w]);
        t.rowwise[place.tile] = of_block;
    }
    publish(all, place, largest);
}

// Blocks of 1 x WIDTH: a warp takes 32 rows, 128 columns.
template <u32 WIDTH, bool COLUMNS>
__device__ __forceinline__ void amax_rows(const AmaxArguments& all) {
    constexpr u32 LANES = WIDTH / 4;
    constexpr u32 HEIGHT = 32;
    constexpr u32 GROUP = LANES < PATCH_ROWS ? LANES : PATCH_ROWS;
    Place place = place_of(all.tiles, blockIdx.x);
    const AmaxTensor& t = all.tensors[place.tensor];
    u32 item = place.tile * WARPS + warp();
    Strip strip = strip_of(item, divide_up(t.grid_cols, PATCH_COLUMNS / WIDTH), HEIGHT);
    float largest = 0.0f;
    if (strip.row < t.grid_rows) {
        bool whole = is_whole(t.fragment, strip.row, HEIGHT, strip.column);
        float4 columns = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        u32 block_column = strip.column / WIDTH + lane() / LANES;
        for (u32 part = 0; part < HEIGHT / PATCH_ROWS; ++part) {
            u32 row = strip.row + part * PATCH_ROWS;
            Patch patch = load_patch(t.fragment, whole, row, strip.column);
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
                if (LANES > GROUP) {
                    // The block is wider than the group: its other lanes hold the rest of the columns.
#pragma unroll
                    for (u32 distance = GROUP; distance < LANES; distance *= 2) {
                        amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, distance));
                    }
                }
                amax = all.via_bf16 ? round_to_bf16(amax) : amax;
                largest = fmaxf(largest, amax);
                u32 own_row = row + first + lane() % GROUP;
                bool is_mine = lane() % LANES < GROUP && own_row < t.grid_rows && block_column < t.grid_cols;
                if (is_mine && t.rowwise != nullptr) {
                    t.rowwise[u64(own_row) * t.grid_cols + block_column] = amax;
                }
            }
        }
        if (COLUMNS) {
            u32 block_row = strip.row / HEIGHT;
            if (block_row < t.columnwise_rows && t.columnwise != nullptr) {
                float* to = t.columnwise + u64(block_row) * t.columnwise_cols;
#pragma unroll
                for (u32 k = 0; k < 4; ++k) {
                    u32 column = strip.column + 4 * lane() + k;
                    float amax = component(columns, k);
                    amax = all.via_bf16 ? round_to_bf16(amax) : amax;
                    if (column < t.columnwise_cols) to[column] = amax;
                }
            }
        }
    }
    publish(all, place, over_lanes<32>(largest));
}

// NVFP4 in blocks of 1x16.
extern "C" __global__ void __launch_bounds__(THREADS) amax_row16(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    amax_rows<16, false>(all);
}

// FP8 in blocks of 1x128.
extern "C" __global__ void __launch_bounds__(THREADS) amax_row128(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    amax_rows<128, false>(all);
}

// MXFP8: blocks of 1x32 and of 32x1.
extern "C" __global__ void __launch_bounds__(THREADS) amax_mxfp8(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    amax_rows<32, true>(all);
}

// Elements of a tile where only the whole tensor counts.
constexpr u32 FLAT_TILE = 16384;

// One amax per tensor.
extern "C" __global__ void __launch_bounds__(THREADS) amax_tensor(const __grid_constant__ AmaxArguments all) {
    if (skips(all.vote)) return;
    Place place = place_of(all.tiles, blockIdx.x);
    const AmaxTensor& t = all.tensors[place.tensor];
    const Fragment& f = t.fragment;
    u64 first = u64(place.tile) * FLAT_TILE;
    float largest = 0.0f;
    if (f.aligned && first + FLAT_TILE <= f.len) {
        const float* at = f.master + first + 4 * threadIdx.x;
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            float4 v[8];
#pragma unroll
            for (u32 i = 0; i < 8; ++i) v[i] = load16(at + (part * 8 + i) * 4 * THREADS);
#pragma unroll
            for (u32 i = 0; i < 8; ++i) largest = fmaxf(largest, largest_of(v[i]));
        }
    } else {
        u64 end = min(first + FLAT_TILE, f.len);
        for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
            largest = fmaxf(largest, fabsf(__ldg(f.master + at)));
        }
    }
    largest = over_lanes<32>(largest);
    publish(all, place, all.via_bf16 ? round_to_bf16(largest) : largest);
}
