// bf16 values one by one, and their sums: what a stack of linear layers computes between its products.
//
// Laws:
// - Arithmetic is f32, and a result is rounded to bf16 once, to nearest even. GELU is that of `gelu.cuh`.
// - Sums have one written order and use no atomics, so they are the same in every run.
// - Vectors begin at multiples of 16 bytes; any count will do.

#include "block_sum.cuh"
#include "elements.cuh"
#include "gelu.cuh"

struct ElementwiseArguments {
    const u16* values;
    u16* out;
    double* partial;
    float* sum;
    u64 count;
    u32 seed;
    float scale;
};
static_assert(sizeof(ElementwiseArguments) == 48, "kernels::elementwise::Arguments");

constexpr u32 VALUES = 8;
constexpr u32 PARTIALS = 512;

struct Eight {
    float of[VALUES];
};

// Eight values starting at `first`; zeros after the last.
__device__ __forceinline__ Eight load(const u16* values, u64 first, u64 count) {
    Eight eight;
    if (first + VALUES <= count) {
        uint4 v = __ldg(reinterpret_cast<const uint4*>(values + first));
        const u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 k = 0; k < VALUES; ++k) eight.of[k] = bf16_value(u16(pairs[k / 2] >> (k % 2 * 16)));
        return eight;
    }
#pragma unroll
    for (u32 k = 0; k < VALUES; ++k) eight.of[k] = first + k < count ? bf16_value(values[first + k]) : 0.0f;
    return eight;
}

__device__ __forceinline__ void store(u16* out, u64 first, u64 count, const Eight& eight) {
    if (first + VALUES <= count) {
        *reinterpret_cast<uint4*>(out + first) =
            make_uint4(pack_bf16(eight.of[0], eight.of[1]), pack_bf16(eight.of[2], eight.of[3]),
                       pack_bf16(eight.of[4], eight.of[5]), pack_bf16(eight.of[6], eight.of[7]));
        return;
    }
    for (u32 k = 0; first + k < count && k < VALUES; ++k) out[first + k] = bf16_bits(round_to_bf16(eight.of[k]));
}

__device__ __forceinline__ u64 first_of_thread() { return (u64(blockIdx.x) * THREADS + threadIdx.x) * VALUES; }

// out = gelu(values)
extern "C" __global__ void __launch_bounds__(THREADS) gelu(const __grid_constant__ ElementwiseArguments all) {
    u64 first = first_of_thread();
    if (first >= all.count) return;
    Eight x = load(all.values, first, all.count);
#pragma unroll
    for (u32 k = 0; k < VALUES; ++k) x.of[k] = gelu_of(x.of[k]);
    store(all.out, first, all.count, x);
}

// out *= gelu'(values)
extern "C" __global__ void __launch_bounds__(THREADS)
gelu_backward(const __grid_constant__ ElementwiseArguments all) {
    u64 first = first_of_thread();
    if (first >= all.count) return;
    Eight x = load(all.values, first, all.count);
    Eight gradient = load(all.out, first, all.count);
#pragma unroll
    for (u32 k = 0; k < VALUES; ++k) gradient.of[k] = gelu_gradient_of(gradient.of[k], x.of[k]);
    store(all.out, first, all.count, gradient);
}

// out = scale
extern "C" __global__ void __launch_bounds__(THREADS) fill(const __grid_constant__ ElementwiseArguments all) {
    u64 first = first_of_thread();
    if (first >= all.count) return;
    Eight same;
#pragma unroll
    for (u32 k = 0; k < VALUES; ++k) same.of[k] = all.scale;
    store(all.out, first, all.count, same);
}

// A number in [-1, 1) of 24 bits; `tool::stack::values` has the same on the host.
__device__ __forceinline__ float uniform_of(u32 seed, u64 index) {
    u64 z = (u64(seed) << 40) + index + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return (float(u32(z >> 40)) - 8388608.0f) * (1.0f / 8388608.0f);
}

// out[i] = scale * uniform_of(seed, i)
extern "C" __global__ void __launch_bounds__(THREADS) uniform(const __grid_constant__ ElementwiseArguments all) {
    u64 first = first_of_thread();
    if (first >= all.count) return;
    Eight drawn;
#pragma unroll
    for (u32 k = 0; k < VALUES; ++k) drawn.of[k] = uniform_of(all.seed, first + k) * all.scale;
    store(all.out, first, all.count, drawn);
}

// partial[block] = the block's part of the sum of the values, or of their squares. PARTIALS blocks.
template <bool SQUARES>
__device__ __forceinline__ void sum_parts(const ElementwiseArguments& all) {
    double own = 0.0;
    for (u64 first = first_of_thread(); first < all.count; first += u64(PARTIALS) * THREADS * VALUES) {
        Eight v = load(all.values, first, all.count);
        float eight = 0.0f;
#pragma unroll
        for (u32 k = 0; k < VALUES; ++k) eight += SQUARES ? v.of[k] * v.of[k] : v.of[k];
        own += double(eight);
    }
    double sum = sum_over_block(own);
    if (threadIdx.x == 0) all.partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_values(const __grid_constant__ ElementwiseArguments all) {
    sum_parts<false>(all);
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_squares(const __grid_constant__ ElementwiseArguments all) {
    sum_parts<true>(all);
}

// sum[0] = the sum of all parts. One block.
extern "C" __global__ void __launch_bounds__(THREADS) sum_of_parts(const __grid_constant__ ElementwiseArguments all) {
    double own = 0.0;
    for (u32 at = threadIdx.x; at < PARTIALS; at += THREADS) own += all.partial[at];
    double sum = sum_over_block(own);
    if (threadIdx.x == 0) all.sum[0] = float(sum);
}
