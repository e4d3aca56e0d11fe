// The squared norm of a rank's main grads with its fault word, and the verdict over all ranks' records.
//
// Laws:
// - Squares are added as squares.cuh says. Here, the blocks of a main grad, SQUARED_TOGETHER elements each, are put in
//   groups of 8 that are as far from each other as there are groups, and groups are added by the threads of one block.
//   Of a main grad whose squares a sum took, these are read in place of its elements.
// - So blocks of a group walk through memory side by side with others. With one long stretch for each, launches took up
//   to 4 % longer (one H100, 2026-11-25).
// - The last block to start adds the groups: all others are running or done, so it can wait for
//   them. A group's sum says by itself that it is there, and no block waits for a fence. What is counted and
//   summed is left at zero.
// - Ranks are added in rank order in f64, and the norm is rounded once, when their scale is taken away: every
//   rank computes the same vote from the same records.
// - Gradients whose squares would overflow f32 once they are clipped are faults, like those that are not finite:
//   their second moment would stay infinite. A closure's fault outweighs both, which it may have caused.
// - A square that f32 holds and bf16 rounds to infinity passes, as does everything else that Adam itself lets grow
//   too large; its launch finds that (adam.cu).

#include "common.cuh"
#include "squares.cuh"

// Blocks of a group.
constexpr u32 GROUP = 8;
// Groups of which one block of threads reads the squares.
constexpr u32 GROUPS_OF_SQUARES = THREADS / GROUP;

struct NormTensor {
    // Or nothing, where a sum took the squares.
    const float* values;
    const double* squares;
    u64 count;
    // How many groups it has, and how many all tensors before it.
    u32 groups;
    u32 first_group;
    u32 aligned;
    u32 reserved;
};
static_assert(sizeof(NormTensor) == 40, "kernels::norm::TensorArguments");

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
    u32 groups;
    u32 reserved;
    NormTensor only;
};

constexpr u32 UNROLL = SQUARED_TOGETHER / (4 * THREADS);

// Four neighbours wherever they begin; those past the end count as 0.
__device__ __forceinline__ float4 some_of(const NormTensor& t, u64 at) {
    float v[4];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) v[k] = at + k < t.count ? __ldg(t.values + at + k) : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

// The sum of a group's squares, in thread 0.
__device__ __forceinline__ double squares_of_values(const NormTensor& t, u32 group) {
    __shared__ double of_warps[GROUP][WARPS];
    // Unrolled further, reads would wait for squares.
#pragma unroll 1
    for (u32 block = 0; block < GROUP; ++block) {
        u64 first = (u64(block) * t.groups + group) * SQUARED_TOGETHER;
        u64 own = first + 4 * threadIdx.x;
        Squares squares;
        if (t.aligned && first + SQUARED_TOGETHER <= t.count) {
            float4 v[UNROLL];
#pragma unroll
            for (u32 i = 0; i < UNROLL; ++i) v[i] = load16(t.values + own + i * 4 * THREADS);
#pragma unroll
            for (u32 i = 0; i < UNROLL; ++i) squares.add(v[i]);
        } else if (first < t.count) {
#pragma unroll 1
            for (u32 i = 0; i < UNROLL; ++i) squares.add(some_of(t, own + i * 4 * THREADS));
        }
        double sum = halved<32>(squares.of_thread());
        if (lane() == 0) of_warps[block][warp()] = sum;
    }
    __syncthreads();
    double sum = 0.0;
    if (warp() == 0) {
        if (lane() < GROUP) {
            sum = of_warps[lane()][0];
            for (u32 w = 1; w < WARPS; ++w) sum += of_warps[lane()][w];
        }
        sum = halved<GROUP>(sum);
    }
    return sum;
}

// The squares of a block, of as many threads as a group has blocks each.
__device__ __forceinline__ double squares_taken(const NormTensor& t, u32 group) {
    u64 block = u64(threadIdx.x % GROUP) * t.groups + group;
    bool is_there = group < t.groups && block * SQUARED_TOGETHER < t.count;
    return halved<GROUP>(is_there ? t.squares[block] : 0.0);
}

// A partial sum as it is in memory: inverted, so that zero means that it is not there yet. The NaN that
// would be zero is stored as another one.
__device__ __forceinline__ void store_partial(u64* to, double sum) {
    u64 word = ~u64(__double_as_longlong(sum));
    if (word == 0) word = ~u64(0x7FF8000000000000);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// Writes the sums of the groups of a tile.
__device__ __forceinline__ void store_groups(const NormArguments& all, u32 tile) {
    Place place = place_of(all.tiles, tile);
    const NormTensor t = tensor_of<NormTensor>(all, place);
    u64* partial = all.partial + t.first_group;
    if (t.values != nullptr) {
        double sum = squares_of_values(t, place.tile);
        if (threadIdx.x == 0) store_partial(partial + place.tile, sum);
    } else {
        u32 group = place.tile * GROUPS_OF_SQUARES + threadIdx.x / GROUP;
        double sum = squares_taken(t, group);
        if (threadIdx.x % GROUP == 0 && group < t.groups) store_partial(partial + group, sum);
    }
}

// The thread's share of the groups' sums, which other blocks write in this launch: read many at a time, waited
// for, and cleared.
__device__ __forceinline__ double partial_sums(const NormArguments& all) {
    constexpr u32 AT_A_TIME = 8;
    double sum = 0.0;
    for (u32 first = threadIdx.x; first < all.groups; first += AT_A_TIME * THREADS) {
        u64 words[AT_A_TIME];
        bool are_there;
        do {
            are_there = true;
#pragma unroll
            for (u32 i = 0; i < AT_A_TIME; ++i) {
                u32 group = first + i * THREADS;
                // Past the end there is +0.
                words[i] = ~u64(0);
                if (group < all.groups) {
                    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                                 : "=l"(words[i])
                                 : "l"(all.partial + group)
                                 : "memory");
                }
            }
#pragma unroll
            for (u32 i = 0; i < AT_A_TIME; ++i) are_there &= words[i] != 0;
        } while (!are_there);
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) {
            u32 group = first + i * THREADS;
            sum += __longlong_as_double(~words[i]);
            if (group < all.groups) {
                asm volatile("st.relaxed.gpu.global.u64 [%0], 0;" ::"l"(all.partial + group) : "memory");
            }
        }
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) grad_norm(const __grid_constant__ NormArguments all) {
    __shared__ bool is_last;
    u32 before = 0;
    if (threadIdx.x == 0) before = started_before(all.started, gridDim.x);
    if (blockIdx.x < all.tiles.count) store_groups(all, blockIdx.x);
    if (threadIdx.x == 0) is_last = before == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    // Requested together with the groups.
    u32 fault = *all.fault;
    double sum = over_block(partial_sums(all));
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
