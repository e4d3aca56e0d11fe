// Bytes into the memory of peers, between two meetings with them, in one launch.
//
// Laws:
// - PL-8: nothing is written before every partner has said that it may be (ready), and the launch ends only
//   when every partner has said that it has written (done). The words are those that streams meet with, and
//   are used alike: the first half is 1 from the partner's signal until it has been waited for and cleared, and a
//   second half that is set opens the word for good: the world has ended (RL-1).
// - Blocks are counted when they start. The first to be counted meets for all, then the others are let in;
//   the last one to finish says done and waits for the others' done. No block waits for one that has not
//   started, so neither the order in which blocks are started matters, nor how many of them fit beside
//   products at once.
// - What a block wrote is visible to a partner that has seen this rank's done: every block fences system-wide
//   and counts itself in; the last one sees all counts before it signals.
// - The gate is zero before and after a launch, and launches on one gate follow one another.

#include "range.cuh"

// Threads of a block: a few blocks carry everything, so that products keep the other multiprocessors.
constexpr u32 COPIERS = 512;

// The words of two halves shared with one partner.
struct Partner {
    u32* ready_there;
    u32* ready_here;
    u32* done_there;
    u32* done_here;
};
static_assert(sizeof(Partner) == 32, "kernels::exchange::Partner");

struct Gate {
    // Blocks that have started; zero again once all have.
    u32 started;
    // 1 once the others may go in.
    u32 open;
    // Blocks that have copied.
    u32 finished;
};
static_assert(sizeof(Gate) <= 16, "kernels::exchange::GATE");

struct ExchangeArguments {
    Tiles tiles;
    const Range* ranges;
    const Partner* partners;
    Gate* gate;
    // Where the host reads what was done last; null for none.
    u32* progress;
    u32 partner_count;
    u32 number;
};
static_assert(sizeof(ExchangeArguments) <= 64, "kernels::launch::ARGUMENT_WORDS");

// Bytes of a tile: four 16-byte accesses per thread.
constexpr u32 TILE = 32768;
constexpr u32 STEPS = TILE / (16 * COPIERS);

__device__ __forceinline__ void tell(u32* word) {
    asm volatile("st.release.sys.global.u32 [%0], 1;" ::"l"(word) : "memory");
}

__device__ __forceinline__ void await_and_clear(u32* word) {
    u32 signalled;
    u32 open;
    do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(signalled) : "l"(word) : "memory");
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1+4];" : "=r"(open) : "l"(word) : "memory");
    } while ((signalled | open) == 0);
    asm volatile("st.relaxed.sys.global.u32 [%0], 0;" ::"l"(word) : "memory");
}

__device__ __forceinline__ void copy_tile(const Range& range, u64 first) {
    if (range.aligned && first + TILE <= range.bytes) {
        u64 own = first + 16 * threadIdx.x;
        uint4 v[STEPS];
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) v[i] = load16(range.from + own + i * 16 * COPIERS);
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) *reinterpret_cast<uint4*>(range.to + own + i * 16 * COPIERS) = v[i];
        return;
    }
    u64 end = min(first + TILE, range.bytes);
    u64 whole = range.aligned ? first + (end - first) / 16 * 16 : first;
    for (u64 at = first + 16 * threadIdx.x; at < whole; at += 16 * COPIERS) {
        *reinterpret_cast<uint4*>(range.to + at) = load16(range.from + at);
    }
    for (u64 at = whole + threadIdx.x; at < end; at += COPIERS) range.to[at] = __ldg(range.from + at);
}

extern "C" __global__ void __launch_bounds__(COPIERS) exchange(const __grid_constant__ ExchangeArguments all) {
    __shared__ bool is_first;
    __shared__ bool is_last;
    if (threadIdx.x == 0) is_first = started_before(&all.gate->started, gridDim.x) == 0;
    __syncthreads();
    if (is_first) {
        if (threadIdx.x < all.partner_count) {
            tell(all.partners[threadIdx.x].ready_there);
            await_and_clear(all.partners[threadIdx.x].ready_here);
        }
        __syncthreads();
        if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(&all.gate->open) : "memory");
    } else {
        if (threadIdx.x == 0) {
            u32 open;
            do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(open) : "l"(&all.gate->open) : "memory");
            } while (open == 0);
        }
        __syncthreads();
    }
    for (u32 tile = blockIdx.x; tile < all.tiles.count; tile += gridDim.x) {
        Place place = place_of(all.tiles, tile);
        copy_tile(all.ranges[place.tensor], u64(place.tile) * TILE);
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) is_last = arrive(&all.gate->finished) == gridDim.x;
    __syncthreads();
    if (!is_last) return;
    if (threadIdx.x < all.partner_count) {
        tell(all.partners[threadIdx.x].done_there);
        await_and_clear(all.partners[threadIdx.x].done_here);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        all.gate->open = 0;
        all.gate->finished = 0;
        if (all.progress != nullptr) {
            asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(all.progress), "r"(all.number) : "memory");
        }
    }
}
