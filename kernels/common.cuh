// Names shared by all kernels: fixed-width types, the verdict of a step, and the search of a thread block for its tile
// of work.
//
// Laws:
// - A launch covers many tensors. The tensors' tiles are numbered one after the other; `first[t]` is the
//   number of tensor t's first tile, `first[tensors]` the number of all. A block finds its tensor by
//   searching `first`, so a tensor without tiles costs nothing and no tile belongs to two tensors.
// - The descriptor of a launch's only tensor comes with the arguments, as `only`: no block waits for a table
//   before it can request its data. A block copies its descriptor, so that no store may seem to change it.
// - Arithmetic is IEEE binary32: no contraction, no flushing, no approximate division. The compiler gets
//   so (-fmad=false), and every order of operations below is that of the CPU reference. GELU alone is
//   approximate (gelu.cuh).
// - A kernel that carries a vote writes nothing when the vote skips the step; it may have read by then.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static_assert(sizeof(u64) == 8 && sizeof(u32) == 4 && sizeof(void*) == 8, "the layouts shared with the host");

// Threads of a block, in every kernel except those that say otherwise.
constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / 32;

// The verdict over a step, as `op::Vote` lays it out.
struct Vote {
    u32 verdict;
    float clip;
    float norm;
    u32 step;
    u32 fault_rank;
    u32 fault_call;
    float unscale;
    u32 reserved;
};
static_assert(sizeof(Vote) == 32, "op::Vote");

// Whether the vote, if there is one, skips the step.
__device__ __forceinline__ bool skips(const Vote* vote) {
    return vote != nullptr && vote->verdict != 0;
}

// The tiles of a launch.
struct Tiles {
    const u32* first;
    u32 tensors;
    u32 count;
};
static_assert(sizeof(Tiles) == 16, "kernels::tiles::TileArguments");

// The tensor of a tile and the tile's number within it.
struct Place {
    u32 tensor;
    u32 tile;
};

__device__ __forceinline__ u32 lane() { return threadIdx.x % 32; }
__device__ __forceinline__ u32 warp() { return threadIdx.x / 32; }

// The largest t with first[t] <= tile. A warp looks at 128 places at once, four to a lane, so in most
// launches one wait for memory finds the tensor; where there are more tensors, it first finds the part they
// are in. `first` begins at a multiple of 16 bytes and can be read up to the next multiple after its end.
__device__ __forceinline__ Place place_of(const Tiles& tiles, u32 tile) {
    if (tiles.tensors == 1) return Place{0, tile};
    u32 low = 0;
    u32 high = tiles.tensors;
    while (high - low > 128) {
        u32 step = (high - low + 127) / 128 * 4;
        u32 probe = low + lane() * step;
        bool begun = probe < high && __ldg(tiles.first + probe) <= tile;
        u32 begun_lanes = __popc(__ballot_sync(0xFFFFFFFFu, begun));
        low += (begun_lanes - 1) * step;
        high = min(low + step, high);
    }
    u32 own = low + 4 * lane();
    u32 begun = 0;
    u32 last = 0;
    if (own < high) {
        uint4 first = __ldg(reinterpret_cast<const uint4*>(tiles.first + own));
        const u32 of[4] = {first.x, first.y, first.z, first.w};
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            if (own + k < high && of[k] <= tile) {
                begun += 1;
                last = of[k];
            }
        }
    }
    low += __reduce_add_sync(0xFFFFFFFFu, begun) - 1;
    return Place{low, tile - __reduce_max_sync(0xFFFFFFFFu, last)};
}

// The descriptor of a place's tensor.
template <class Tensor, class Arguments>
__device__ __forceinline__ Tensor tensor_of(const Arguments& all, const Place& place) {
    Tensor tensor = all.only;
    if (all.tiles.tensors != 1) tensor = all.tensors[place.tensor];
    return tensor;
}

// Tiles of the tensor.
__device__ __forceinline__ u32 tiles_of(const Tiles& tiles, u32 tensor) {
    if (tiles.tensors == 1) return tiles.count;
    return __ldg(tiles.first + tensor + 1) - __ldg(tiles.first + tensor);
}

__device__ __forceinline__ u32 divide_up(u32 n, u32 by) { return n / by + (n % by != 0); }

// Counts this thread's block at `counter` when it starts, and returns how many of the `blocks` blocks that count
// there started before it. The last one leaves zero. The answer is waited for where it is first read,
// and orders nothing.
__device__ __forceinline__ u32 started_before(u32* counter, u32 blocks) {
    u32 before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(blocks - 1));
    return before;
}

// Counts this thread's block at `counter` and returns how many have come. A block that sees a count also sees what
// the blocks before it wrote, if they passed a barrier between writing and counting.
__device__ __forceinline__ u32 arrive(u32* counter) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before + 1;
}

// Read-only data, 16 bytes at a time.
__device__ __forceinline__ float4 load16(const float* at) { return __ldg(reinterpret_cast<const float4*>(at)); }
__device__ __forceinline__ uint4 load16(const u8* at) { return __ldg(reinterpret_cast<const uint4*>(at)); }

__device__ __forceinline__ float component(const float4& v, u32 k) {
    return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}
