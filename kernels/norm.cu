// The squared norm of a rank's main grads with its fault word, and the verdict over all ranks' records.
//
// Laws:
// - Squares are exact in f64 and added in f64, in an order that follows from the lengths of the gradients
//   alone: elements to threads, threads to a block's partial sum, partial sums in block order. So the result is
//   the same on every device, at every address and in every run.
// - The blocks of a gradient take its stretches in turn, so that they walk through memory side by side. With one long
//   stretch for each, launches took up to 4 % longer (one H100, 2026-11-25).
// - The last block to start adds the partial sums: all others are running or done, so it can wait for
//   them. A partial sum says by itself that it is there, and no block waits for a fence. What is counted and
//   summed is left at zero.
// - Ranks are added in rank order in f64, and the norm is rounded once, when their scale is taken away: every
//   rank computes the same vote from the same records.
// - Gradients whose squares would overflow f32 once they are clipped are faults, like those that are not finite:
//   their second moment would stay infinite. A closure's fault outweighs both, which it may have caused.
// - A square that f32 holds and bf16 rounds to infinity passes, as does everything else that Adam itself lets grow
//   too large; its launch finds that (adam.cu).

#include "common.cuh"

struct NormTensor {
    const float* values;
    u64 count;
    u32 aligned;
    u32 reserved;
};
static_assert(sizeof(NormTensor) == 24, "kernels::norm::TensorArguments");

// What a rank tells the others, as `op::NormRecord` lays it out.
struct NormRecord {
    double squares;
    u32 fault;
    u32 reserved;
};
static_assert(sizeof(NormRecord) == 16, "op::NormRecord");

struct NormArguments {
    Tiles tiles;
    const NormTensor* tensors;
    // Zero between launches.
    u64* partial;
    u32* started;
    const u32* fault;
    NormRecord* record;
    NormTensor only;
};

constexpr u32 UNROLL = 4;
// Elements of a stretch.
constexpr u32 STRIDE = 4 * THREADS * UNROLL;

__device__ __forceinline__ double square_onto(double sum, float value) {
    double wide = value;
    return __fma_rn(wide, wide, sum);
}

// Sum over the block, in thread 0, always in the same order.
__device__ __forceinline__ double over_block(double sum) {
    __shared__ double of_warp[WARPS];
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, distance);
    if (lane() == 0) of_warp[warp()] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 w = 1; w < WARPS; ++w) sum += of_warp[w];
    }
    return sum;
}

// Four neighbours, each onto its own sum.
__device__ __forceinline__ void squares_onto(double (&sums)[4], float4 v) {
    sums[0] = square_onto(sums[0], v.x);
    sums[1] = square_onto(sums[1], v.y);
    sums[2] = square_onto(sums[2], v.z);
    sums[3] = square_onto(sums[3], v.w);
}

// Four neighbours wherever they begin; those past the end count as 0.
__device__ __forceinline__ float4 some_of(const NormTensor& t, u64 at) {
    float v[4];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) v[k] = at + k < t.count ? __ldg(t.values + at + k) : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

// The thread's part of the squares of a block's stretches.
__device__ __forceinline__ double squares_of_tile(const NormArguments& all, u32 tile) {
    Place place = place_of(all.tiles, tile);
    const NormTensor t = tensor_of<NormTensor>(all, place);
    u64 step = u64(tiles_of(all.tiles, place.tensor)) * STRIDE;
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    // Unrolled further, reads would wait for squares.
#pragma unroll 1
    for (u64 first = u64(place.tile) * STRIDE; first < t.count; first += step) {
        u64 own = first + 4 * threadIdx.x;
        if (t.aligned && first + STRIDE <= t.count) {
            float4 v[UNROLL];
#pragma unroll
            for (u32 i = 0; i < UNROLL; ++i) v[i] = load16(t.values + own + i * 4 * THREADS);
#pragma unroll
            for (u32 i = 0; i < UNROLL; ++i) squares_onto(sums, v[i]);
        } else {
#pragma unroll 1
            for (u32 i = 0; i < UNROLL; ++i) squares_onto(sums, some_of(t, own + i * 4 * THREADS));
        }
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// A partial sum as it is in memory: inverted, so that zero means that it is not there yet. The NaN that
// would be zero is stored as another one.
__device__ __forceinline__ void store_partial(u64* to, double sum) {
    u64 word = ~u64(__double_as_longlong(sum));
    if (word == 0) word = ~u64(0x7FF8000000000000);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// The thread's share of the partial sums, which other blocks write in this launch: read many at a time, waited
// for, and cleared.
__device__ __forceinline__ double partial_sums(const NormArguments& all) {
    constexpr u32 AT_A_TIME = 8;
    double sum = 0.0;
    for (u32 first = threadIdx.x; first < gridDim.x; first += AT_A_TIME * THREADS) {
        u64 words[AT_A_TIME];
        bool are_there;
        do {
            are_there = true;
#pragma unroll
            for (u32 i = 0; i < AT_A_TIME; ++i) {
                u32 block = first + i * THREADS;
                // Past the end there is +0.
                words[i] = ~u64(0);
                if (block < gridDim.x) {
                    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                                 : "=l"(words[i])
                                 : "l"(all.partial + block)
                                 : "memory");
                }
            }
#pragma unroll
            for (u32 i = 0; i < AT_A_TIME; ++i) are_there &= words[i] != 0;
        } while (!are_there);
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) {
            u32 block = first + i * THREADS;
            sum += __longlong_as_double(~words[i]);
            if (block < gridDim.x) {
                asm volatile("st.relaxed.gpu.global.u64 [%0], 0;" ::"l"(all.partial + block) : "memory");
            }
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) grad_norm(const __grid_constant__ NormArguments all) {
    __shared__ bool is_last;
    u32 before = 0;
    if (threadIdx.x == 0) before = started_before(all.started, gridDim.x);
    double sum = blockIdx.x < all.tiles.count ? squares_of_tile(all, blockIdx.x) : 0.0;
    if (threadIdx.x == 0) is_last = before == gridDim.x - 1;
    sum = over_block(sum);
    if (threadIdx.x == 0) store_partial(all.partial + blockIdx.x, sum);
    if (!is_last) return;
    // Requested together with the partial sums.
    u32 fault = *all.fault;
    __syncthreads();
    sum = over_block(partial_sums(all));
    if (threadIdx.x == 0) *all.record = NormRecord{sum, fault, 0};
}

struct VoteArguments {
    const NormRecord* records;
    u32* optimizer_step;
    const float* gradient_scale;
    Vote* vote;
    u32 ranks;
    float max_norm;
};

constexpr u32 CLEAN = 0;
constexpr u32 NON_FINITE = 1;
constexpr u32 CLOSURE = 2;

// One thread. Clipping is min(max_norm / (norm + 1e-6), 1); a max_norm of 0 turns it off.
extern "C" __global__ void cast_vote(const __grid_constant__ VoteArguments all) {
    float unscale = 1.0f / *all.gradient_scale;
    double squares = 0.0;
    u32 faulted = all.ranks;
    for (u32 rank = 0; rank < all.ranks; ++rank) {
        squares += all.records[rank].squares;
        if (faulted == all.ranks && all.records[rank].fault != 0) faulted = rank;
    }
    float norm = float(__dsqrt_rn(squares) * double(unscale));
    float clip = all.max_norm > 0.0f ? fminf(all.max_norm / (norm + 1e-6f), 1.0f) : 1.0f;
    float clipped = norm * clip;
    u32 taken = *all.optimizer_step;
    Vote vote = {CLEAN, 1.0f, norm, taken, 0, 0, unscale, 0};
    if (faulted < all.ranks) {
        vote.verdict = CLOSURE;
        vote.fault_rank = faulted;
        vote.fault_call = all.records[faulted].fault - 1;
    } else if (!(clipped * clipped <= __uint_as_float(0x7F7FFFFFu))) {
        vote.verdict = NON_FINITE;
    } else {
        vote.clip = clip;
        vote.step = taken == 0xFFFFFFFFu ? taken : taken + 1;
    }
    *all.optimizer_step = vote.step;
    *all.vote = vote;
}
