// Adam and AdamW over masters whose amaxes are wanted: of 16x16 tiles and of the tensor, or of the tensor alone.
//
// Laws:
// - The arithmetic is that of adam.cuh, and the amaxes are bit for bit those of amax.cu after it.
// - Blocks without an element get 0.
// - Tiles are taken from the last to the first: a cast after this launch begins with the masters written last.

#include "adam.cuh"
#include "fragment.cuh"

struct AdamAmaxTensor {
    float* master;
    u8* exp_avg;
    u8* exp_avg_sq;
    const float* gradient;
    const Hyperparameters* hyperparameters;
    // Of tiles; null where there are none.
    float* block_amax;
    float* tensor_amax;
    u32 rows;
    u32 cols;
    // Rows of tiles for which there are amaxes: they may reach beyond the matrix.
    u32 grid_rows;
    u32 aligned;
};
static_assert(sizeof(AdamAmaxTensor) == 72, "kernels::adam_amax::TensorArguments");

struct AdamAmaxArguments {
    Tiles tiles;
    const AdamAmaxTensor* tensors;
    Rule rule;
    Pending* pending;
    u32 via_bf16;
    u32 reserved;
    AdamAmaxTensor only;
};
static_assert(sizeof(AdamAmaxArguments) == 144, "kernels::adam_amax::Arguments");

constexpr u32 TILE_ROWS = 16;

// NVFP4 in 16x16 tiles: a warp takes one row of tiles, 128 columns wide. A lane's four columns are all in the matrix or
// none, and of one tile.
template <bool DECOUPLED, class Moment>
__device__ __forceinline__ void adam_amax_of_tiles(const AdamAmaxArguments& all) {
    if (skips(all.rule.vote)) return;
    Place place = place_of_block(all.tiles);
    const AdamAmaxTensor t = tensor_of<AdamAmaxTensor>(all, place);
    Shared shared(all.tiles, all.pending, place, t.tensor_amax);
    const Step& step = scalars(all.rule, t.hyperparameters);
    shared.clear();
    u32 grid_cols = divide_up(t.cols, TILE_ROWS);
    Strip strip = strip_of(place.tile * WARPS + warp(), divide_up(grid_cols, 8), TILE_ROWS);
    u32 column = strip.column + 4 * lane();
    bool is_there = strip.row < t.rows && column < t.cols;
    u32 count = is_there ? min(t.rows - strip.row, TILE_ROWS) : 0;
    u64 at = u64(strip.row) * t.cols + column;
    Found found = {0.0f, true};
    if (t.aligned && count == TILE_ROWS) {
#pragma unroll 2
        for (u32 row = 0; row < TILE_ROWS; ++row, at += t.cols) {
            update_four<DECOUPLED, Moment>(all.rule, t, step, at, found);
        }
    } else {
#pragma unroll 1
        for (u32 row = 0; row < count; ++row, at += t.cols) {
#pragma unroll 1
            for (u32 k = 0; k < 4; ++k) update_one<DECOUPLED, Moment>(all.rule, t, step, at + k, found);
        }
    }
    if (!found.valid) diverge(all.rule);
    float amax = over_lanes<4>(found.largest);
    amax = all.via_bf16 ? round_to_bf16(amax) : amax;
    u32 block_row = strip.row / TILE_ROWS;
    u32 block_column = column / TILE_ROWS;
    if (lane() % 4 == 0 && block_row < t.grid_rows && block_column < grid_cols) {
        t.block_amax[u64(block_row) * grid_cols + block_column] = amax;
    }
    shared.publish(amax);
}

// Elements of a thread block where only the whole tensor counts.
constexpr u32 AMAX_FLAT_TILE = 16384;

template <bool DECOUPLED, class Moment>
__device__ __forceinline__ void adam_amax_of_tensor(const AdamAmaxArguments& all) {
    if (skips(all.rule.vote)) return;
    Place place = place_of_block(all.tiles);
    const AdamAmaxTensor t = tensor_of<AdamAmaxTensor>(all, place);
    Shared shared(all.tiles, all.pending, place, t.tensor_amax);
    const Step& step = scalars(all.rule, t.hyperparameters);
    shared.clear();
    u64 count = u64(t.rows) * t.cols;
    u64 first = u64(place.tile) * AMAX_FLAT_TILE;
    Found found = {0.0f, true};
    if (t.aligned && first + AMAX_FLAT_TILE <= count) {
        u64 own = first + 4 * threadIdx.x;
#pragma unroll 2
        for (u32 i = 0; i < AMAX_FLAT_TILE / (4 * THREADS); ++i) {
            update_four<DECOUPLED, Moment>(all.rule, t, step, own + i * 4 * THREADS, found);
        }
    } else {
        u64 end = min(first + AMAX_FLAT_TILE, count);
#pragma unroll 1
        for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
            update_one<DECOUPLED, Moment>(all.rule, t, step, at, found);
        }
    }
    if (!found.valid) diverge(all.rule);
    shared.publish(all.via_bf16 ? round_to_bf16(found.largest) : found.largest);
}

#define ADAM_AMAX_KERNEL(name, body, decoupled, moment)          \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)     \
    name(const __grid_constant__ AdamAmaxArguments all) {        \
        body<decoupled, moment>(all);                            \
    }

ADAM_AMAX_KERNEL(adamw_amax_tile16_f32, adam_amax_of_tiles, true, MomentF32)
ADAM_AMAX_KERNEL(adamw_amax_tile16_bf16, adam_amax_of_tiles, true, MomentBf16)
ADAM_AMAX_KERNEL(adam_amax_tile16_f32, adam_amax_of_tiles, false, MomentF32)
ADAM_AMAX_KERNEL(adam_amax_tile16_bf16, adam_amax_of_tiles, false, MomentBf16)
ADAM_AMAX_KERNEL(adamw_amax_tensor_f32, adam_amax_of_tensor, true, MomentF32)
ADAM_AMAX_KERNEL(adamw_amax_tensor_bf16, adam_amax_of_tensor, true, MomentBf16)
ADAM_AMAX_KERNEL(adam_amax_tensor_f32, adam_amax_of_tensor, false, MomentF32)
ADAM_AMAX_KERNEL(adam_amax_tensor_bf16, adam_amax_of_tensor, false, MomentBf16)
