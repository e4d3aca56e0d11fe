// The steps of orthogonalization around its products: f32 divided by its Frobenius norm into bf16, and bf16 into f32.
//
// Laws:
// - The norm is taken in f64, in one written order and without atomics: it neither overflows nor vanishes, and is the
//   same in every run.
// - A quotient is taken in f64, then rounded to f32 and to bf16, to nearest even. Zeros stay zeros; a matrix with a
//   value that is not finite has such values after it.
// - Matrices begin at multiples of 16 bytes; any count will do.

#include "block_sum.cuh"
#include "elements.cuh"

struct OrthogonalizeArguments {
    const float* matrix;
    u16* narrow;
    float* wide;
    double* partial;
    u64 count;
};
static_assert(sizeof(OrthogonalizeArguments) == 40, "kernels::orthogonalize::Arguments");

constexpr u32 VALUES = 8;
constexpr u32 PARTIALS = 512;

struct Eight {
    float of[VALUES];
};

__device__ __forceinline__ u64 first_of_thread() { return (u64(blockIdx.x) * THREADS + threadIdx.x) * VALUES; }

// Eight values of the matrix starting at `first`; zeros after the last.
__device__ __forceinline__ Eight load(const OrthogonalizeArguments& all, u64 first) {
    Eight eight;
    if (first + VALUES <= all.count) {
        const float4* at = reinterpret_cast<const float4*>(all.matrix + first);
        float4 low = __ldg(at), high = __ldg(at + 1);
        return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    }
#pragma unroll
    for (u32 k = 0; k < VALUES; ++k) eight.of[k] = first + k < all.count ? all.matrix[first + k] : 0.0f;
    return eight;
}

// partial[block] = the block's part of the sum of squares. PARTIALS blocks.
extern "C" __global__ void __launch_bounds__(THREADS)
squares(const __grid_constant__ OrthogonalizeArguments all) {
    double own = 0.0;
    for (u64 first = first_of_thread(); first < all.count; first += u64(PARTIALS) * THREADS * VALUES) {
        Eight v = load(all, first);
#pragma unroll
        for (u32 k = 0; k < VALUES; ++k) own += double(v.of[k]) * double(v.of[k]);
    }
    double sum = sum_over_block(own);
    if (threadIdx.x == 0) all.partial[blockIdx.x] = sum;
}

// narrow = matrix / its norm
extern "C" __global__ void __launch_bounds__(THREADS)
normalize(const __grid_constant__ OrthogonalizeArguments all) {
    double own = 0.0;
    for (u32 at = threadIdx.x; at < PARTIALS; at += THREADS) own += all.partial[at];
    double norm = sqrt(sum_over_block(own));
    double factor = norm > 0.0 ? 1.0 / norm : norm;
    u64 first = first_of_thread();
    if (first >= all.count) return;
    Eight v = load(all, first);
#pragma unroll
    for (u32 k = 0; k < VALUES; ++k) v.of[k] = float(double(v.of[k]) * factor);
    if (first + VALUES <= all.count) {
        *reinterpret_cast<uint4*>(all.narrow + first) =
            make_uint4(pack_bf16(v.of[0], v.of[1]), pack_bf16(v.of[2], v.of[3]), pack_bf16(v.of[4], v.of[5]),
                       pack_bf16(v.of[6], v.of[7]));
        return;
    }
    for (u32 k = 0; first + k < all.count && k < VALUES; ++k) {
        all.narrow[first + k] = bf16_bits(round_to_bf16(v.of[k]));
    }
}

// wide = narrow
extern "C" __global__ void __launch_bounds__(THREADS)
widen(const __grid_constant__ OrthogonalizeArguments all) {
    u64 first = first_of_thread();
    if (first >= all.count) return;
    if (first + VALUES <= all.count) {
        uint4 v = *reinterpret_cast<const uint4*>(all.narrow + first);
        const u32 pairs[4] = {v.x, v.y, v.z, v.w};
        float4* to = reinterpret_cast<float4*>(all.wide + first);
#pragma unroll
        for (u32 k = 0; k < 2; ++k) {
            to[k] = make_float4(bf16_value(u16(pairs[2 * k])), bf16_value(u16(pairs[2 * k] >> 16)),
                                bf16_value(u16(pairs[2 * k + 1])), bf16_value(u16(pairs[2 * k + 1] >> 16)));
        }
        return;
    }
    for (u32 k = 0; first + k < all.count && k < VALUES; ++k) all.wide[first + k] = bf16_value(all.narrow[first + k]);
}
