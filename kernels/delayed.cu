// Delayed scaling: scales from the amaxes of earlier steps, and amaxes into the history.
//
// Laws:
// - One thread serves one weight of a bucket; what it writes belongs to that weight alone, and so does what it reads,
//   but for the histories of the weights that share its scale.
// - The order of comparisons is the reference's: a maximum over the history ignores NaN and begins at 0.

#include "common.cuh"
#include "elements.cuh"

struct DelayedScaleArguments {
    // f32 [weights, length], the latest first; null: the factors stay.
    const float* history;
    float* scale;
    float* tensor_scale;
    const Vote* vote;
    // For each weight the first and the number of those that share its scale; null: each has its own.
    const uint2* groups;
    u32 weights;
    u32 length;
    // The latest amax counts instead of the largest.
    u32 latest;
    u32 power_of_two;
    // The largest code's value, and the lower bound of an amax.
    float largest;
    float epsilon;
};
static_assert(sizeof(DelayedScaleArguments) == 64, "kernels::delayed::ScaleArguments");

struct RecordAmaxArguments {
    const float* tensor_amax;
    float* history;
    const Vote* vote;
    u32 weights;
    u32 length;
};
static_assert(sizeof(RecordAmaxArguments) == 32, "kernels::delayed::RecordArguments");

extern "C" __global__ void __launch_bounds__(THREADS)
delayed_scale(const __grid_constant__ DelayedScaleArguments all) {
    if (skips(all.vote)) return;
    u32 weight = blockIdx.x * THREADS + threadIdx.x;
    if (weight >= all.weights) return;
    float encode = all.scale[weight];
    if (all.history != nullptr) {
        uint2 group = all.groups != nullptr ? all.groups[weight] : make_uint2(weight, 1);
        const float* history = all.history + u64(group.x) * all.length;
        u32 counting = all.latest ? 1 : all.length;
        float amax = 0.0f;
        for (u32 member = 0; member < group.y; ++member, history += all.length) {
            for (u32 k = 0; k < counting; ++k) amax = fmaxf(amax, history[k]);
        }
        if (amax > 0.0f && amax <= LARGEST_F32) {
            encode = fp8_scale(amax, all.epsilon, all.largest, all.power_of_two != 0);
        }
        all.scale[weight] = encode;
    }
    all.tensor_scale[weight] = 1.0f / encode;
}

extern "C" __global__ void __launch_bounds__(THREADS)
record_amax(const __grid_constant__ RecordAmaxArguments all) {
    if (skips(all.vote)) return;
    u32 weight = blockIdx.x * THREADS + threadIdx.x;
    if (weight >= all.weights) return;
    float* history = all.history + u64(weight) * all.length;
    for (u32 k = all.length - 1; k > 0; --k) history[k] = history[k - 1];
    history[0] = all.tensor_amax[weight];
}
