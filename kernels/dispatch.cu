// Rows that ranks have for each other, up to the counts that lie beside them; and the check of these counts.
//
// Laws:
// - Of a slot its filled rows are moved and never more than there is room for, whatever its count is. What lies
//   after them is neither read nor written, but where a check has it spoiled.
// - Counts are read on the device alone, so a launch that was captured goes by those of its step. They are this
//   rank's own, and stand still while it runs.
// - Blocks divide what is filled among them: a slot that is empty costs a look at its count.
// - A count above the capacity leaves the number of its call in the fault word, if no fault is there, and what a report
//   names in words of the host's memory. It is then lowered to the capacity: what reads it in a step that will be
//   skipped stays within the slot.

#include "meeting.cuh"

// What this rank has for one that takes.
struct Given {
    // Its first slot.
    const u8* from;
    // Where that goes.
    u8* to;
    // How many rows of each slot.
    const u32* counts;
    // Where the taker reads these; null if it knows them.
    u32* taken;
};
static_assert(sizeof(Given) == 32, "kernels::dispatch::GivenOperand");

struct DispatchArguments {
    Tiles tiles;
    const Given* given;
    Meetings meetings;
    // Bytes of a row.
    u64 row;
    // For each that takes.
    u32 slots;
    u32 capacity;
};
static_assert(sizeof(DispatchArguments) == 72, "kernels::dispatch::Arguments");

// The sum of what threads up to this one give, itself among them.
__device__ __forceinline__ u32 sum_up_to(u32 value) {
    __shared__ u32 of_warps[COPIERS / 32];
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        u32 before = __shfl_up_sync(0xFFFFFFFFu, value, step);
        if (lane() >= step) value += before;
    }
    if (lane() == 31) of_warps[warp()] = value;
    __syncthreads();
    for (u32 before = 0; before < warp(); ++before) value += of_warps[before];
    return value;
}

extern "C" __global__ void __launch_bounds__(COPIERS) dispatch(const __grid_constant__ DispatchArguments all) {
    // Of each slot the pieces of those before it, and its filled bytes.
    __shared__ u32 begins[COPIERS + 1];
    __shared__ u64 filled[COPIERS];
    meet_before(all.meetings);
    u32 places = all.tiles.tensors * all.slots;
    u64 slot_bytes = all.row * all.capacity;
    for (u32 first = 0; first < places; first += COPIERS) {
        u32 here = min(COPIERS, places - first);
        u64 bytes = 0;
        if (threadIdx.x < here) {
            const Given& given = all.given[(first + threadIdx.x) / all.slots];
            u32 slot = (first + threadIdx.x) % all.slots;
            u32 rows = min(given.counts[slot], all.capacity);
            if (blockIdx.x == 0 && given.taken != nullptr) given.taken[slot] = rows;
            bytes = all.row * rows;
        }
        filled[threadIdx.x] = bytes;
        begins[threadIdx.x + 1] = sum_up_to(u32((bytes + PIECE - 1) / PIECE));
        if (threadIdx.x == 0) begins[0] = 0;
        __syncthreads();
        u32 pieces = begins[here];
        for (u32 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
            // The last slot that begins at or before it: those that are empty begin where the next one does.
            u32 low = 0;
            u32 high = here;
            while (high - low > 1) {
                u32 middle = (low + high) / 2;
                if (begins[middle] <= piece) {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            const Given& given = all.given[(first + low) / all.slots];
            u64 at = slot_bytes * ((first + low) % all.slots);
            Range range{given.from + at, given.to + at, filled[low], 0, 0};
            range.aligned = ((u64(range.from) | u64(range.to)) & 15) == 0;
            copy_piece(range, u64(piece - begins[low]) * PIECE);
        }
        // Before the next slots' counts take the place of these.
        __syncthreads();
    }
    meet_after(all.meetings);
}

// Counts that a call wrote.
struct Written {
    u32* counts;
    u32 slots;
    u32 capacity;
    // By which the host knows them, from 1.
    u32 number;
    u32 reserved;
};
static_assert(sizeof(Written) == 24, "kernels::dispatch::WrittenArguments");

// What the host is told of a count that is too large.
struct Overflow {
    u32 number;
    u32 slot;
    u32 count;
};

struct CountCheckArguments {
    const Written* written;
    u32* fault;
    Overflow* overflow;
    u32 many;
    // What the fault word gets.
    u32 call;
};
static_assert(sizeof(CountCheckArguments) == 32, "kernels::dispatch::CheckArguments");

extern "C" __global__ void __launch_bounds__(THREADS) count_check(const __grid_constant__ CountCheckArguments all) {
    __shared__ u32 first;
    for (u32 k = 0; k < all.many; ++k) {
        const Written written = all.written[k];
        if (threadIdx.x == 0) first = written.slots;
        __syncthreads();
        for (u32 slot = threadIdx.x; slot < written.slots; slot += THREADS) {
            if (written.counts[slot] > written.capacity) atomicMin(&first, slot);
        }
        __syncthreads();
        if (threadIdx.x == 0 && first < written.slots && *all.fault == 0) {
            *all.fault = all.call;
            *all.overflow = Overflow{written.number, first, written.counts[first]};
        }
        __syncthreads();
        for (u32 slot = threadIdx.x; slot < written.slots; slot += THREADS) {
            written.counts[slot] = min(written.counts[slot], written.capacity);
        }
        __syncthreads();
    }
}

struct LowerArguments {
    u32* counts;
    u32 slots;
    u32 capacity;
};
static_assert(sizeof(LowerArguments) == 16, "kernels::dispatch::LowerArguments");

// Counts that came as they were. A rank whose call failed may have left any number there.
extern "C" __global__ void __launch_bounds__(THREADS) lower_counts(const __grid_constant__ LowerArguments all) {
    for (u32 slot = threadIdx.x; slot < all.slots; slot += THREADS) {
        all.counts[slot] = min(all.counts[slot], all.capacity);
    }
}

struct SpoilArguments {
    u8* slots;
    const u32* counts;
    // Bytes of a row.
    u64 row;
    u32 many;
    u32 capacity;
    // With what what is undefined is filled.
    u32 byte;
    u32 reserved;
};
static_assert(sizeof(SpoilArguments) == 40, "kernels::dispatch::SpoilArguments");

// What lies after the filled rows of each slot.
extern "C" __global__ void __launch_bounds__(THREADS) spoil_rest(const __grid_constant__ SpoilArguments all) {
    u64 slot_bytes = all.row * all.capacity;
    for (u32 slot = blockIdx.x; slot < all.many; slot += gridDim.x) {
        u64 filled = all.row * min(all.counts[slot], all.capacity);
        for (u64 at = filled + threadIdx.x; at < slot_bytes; at += THREADS) {
            all.slots[slot_bytes * slot + at] = u8(all.byte);
        }
    }
}
