// Bytes and where they go, for kernels that move them.
//
// Law: whether 16 bytes may be moved at a time is known before a launch, and holds for the whole range.

#pragma once

#include "common.cuh"

struct Range {
    // Null: the target is zeroed.
    const u8* from;
    u8* to;
    u64 bytes;
    u32 aligned;
    u32 reserved;
};
static_assert(sizeof(Range) == 32, "kernels::memory::RangeArguments");
