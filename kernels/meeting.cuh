// A launch that writes into the memory of peers, between two meetings with them.
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

#pragma once

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
static_assert(sizeof(Partner) == 32, "kernels::meeting::Partner");

struct Gate {
    // Blocks that have started; zero again once all have.
    u32 started;
    // 1 once the others may go in.
    u32 open;
    // Blocks that have copied.
    u32 finished;
};
static_assert(sizeof(Gate) <= 16, "kernels::meeting::GATE");

// Whom a launch meets. It may be nobody.
struct Meetings {
    const Partner* partners;
    Gate* gate;
    // Where the host reads what was done last; null for none.
    u32* progress;
    u32 partner_count;
    u32 number;
};
static_assert(sizeof(Meetings) == 32, "kernels::meeting::MeetingArguments");

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

// Lets a block in once all partners may be written to.
__device__ __forceinline__ void meet_before(const Meetings& all) {
    __shared__ bool is_first;
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
}

// Ends a block; the last one once all partners have written, too.
__device__ __forceinline__ void meet_after(const Meetings& all) {
    __shared__ bool is_last;
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

// Bytes that a block moves at a time: four 16-byte accesses per thread.
constexpr u32 PIECE = 32768;
constexpr u32 STEPS = PIECE / (16 * COPIERS);

// The piece of a range that begins at `first`, a multiple of a piece.
__device__ __forceinline__ void copy_piece(const Range& range, u64 first) {
    if (range.aligned && first + PIECE <= range.bytes) {
        u64 own = first + 16 * threadIdx.x;
        uint4 v[STEPS];
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) v[i] = load16(range.from + own + i * 16 * COPIERS);
#pragma unroll
        for (u32 i = 0; i < STEPS; ++i) *reinterpret_cast<uint4*>(range.to + own + i * 16 * COPIERS) = v[i];
        return;
    }
    u64 end = min(first + PIECE, range.bytes);
    u64 whole = first;
    if (range.aligned) {
        whole += (end - first) / 16 * 16;
        for (u64 at = first + 16 * threadIdx.x; at < whole; at += 16 * COPIERS) {
            *reinterpret_cast<uint4*>(range.to + at) = load16(range.from + at);
        }
    } else if (((u64(range.from) | u64(range.to)) & 3) == 0) {
        whole += (end - first) / 4 * 4;
        for (u64 at = first + 4 * threadIdx.x; at < whole; at += 4 * COPIERS) {
            *reinterpret_cast<u32*>(range.to + at) = __ldg(reinterpret_cast<const u32*>(range.from + at));
        }
    }
    for (u64 at = whole + threadIdx.x; at < end; at += COPIERS) range.to[at] = __ldg(range.from + at);
}
