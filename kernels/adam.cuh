// One step of Adam or AdamW, element by element.
//
// Laws:
// - g = factor * g              L2: g = g + wd * p
//   m = b1 * m + (1 - b1) * g   v = b2 * v + ((1 - b2) * g) * g
//   u = (m / c1) / (sqrt(v / c2) + eps)      decoupled: u = u + wd * p
//   p = p - lr * u
//   every operation rounded on its own in f32, divisions and root IEEE; c = 1 - b^t in f64, rounded once.
// - Moments stored as bfloat16 are read exactly and rounded to nearest even when stored, after their use.
// - New masters and moments are compared with the largest magnitudes from which training goes on, finite as they are
//   kept and cast: one comparison for each, which NaN fails. They are stored whatever they are. A thread that has one
//   that is too large says so in a word of the host's memory, which is written in no other case and not read here.
// - Hyperparameters of a weight, step and clip factor are read from memory when the launch runs. A vote that skips leaves
//   everything as it is.

#pragma once

#include "amax.cuh"
#include "common.cuh"
#include "elements.cuh"

// What a weight goes by in the step.
struct __align__(16) Hyperparameters {
    float learning_rate;
    float weight_decay;
    float beta1;
    float beta2;
};
static_assert(sizeof(Hyperparameters) == 16, "model::Hyperparameters");

// What a launch goes by, whatever its weights.
struct Rule {
    const Vote* vote;
    // Becomes 1 where training does not go on; may be null.
    u32* diverged;
    float epsilon;
    u32 bias_correction;
    float largest_master;
    float largest_moment;
};
static_assert(sizeof(Rule) == 32, "kernels::adam_operand::RuleArguments");

// The scalars of one step for one weight, in shared memory. What is volatile is read where it is used, for want of
// registers.
struct Decay {
    float beta;
    volatile float one_minus_beta;
    float correction;
};
struct Step {
    // Of both moments.
    Decay m;
    Decay v;
    float epsilon;
    volatile float weight_decay;
    float factor;
    volatile float learning_rate;
};

// Groups of four elements that a thread has in flight at once, by the type of moments: two where these take
// half the bytes.
constexpr u32 GROUPS_F32 = 1;
constexpr u32 GROUPS_BF16 = 2;

// Blocks that share a multiprocessor: as many as leave each the registers its groups take.
constexpr u32 RESIDENT_F32 = 5;
constexpr u32 RESIDENT_BF16 = 4;

struct MomentF32 {
    static constexpr u32 GROUPS = GROUPS_F32;
    static constexpr u32 RESIDENT = RESIDENT_F32;
    static __device__ __forceinline__ float4 load(const u8* moment, u64 at) {
        return *reinterpret_cast<const float4*>(moment + 4 * at);
    }
    static __device__ __forceinline__ void store(u8* moment, u64 at, float4 v) {
        *reinterpret_cast<float4*>(moment + 4 * at) = v;
    }
    static __device__ __forceinline__ float load1(const u8* moment, u64 at) {
        return reinterpret_cast<const float*>(moment)[at];
    }
    static __device__ __forceinline__ void store1(u8* moment, u64 at, float v) {
        reinterpret_cast<float*>(moment)[at] = v;
    }
};

struct MomentBf16 {
    static constexpr u32 GROUPS = GROUPS_BF16;
    static constexpr u32 RESIDENT = RESIDENT_BF16;
    static __device__ __forceinline__ float4 load(const u8* moment, u64 at) {
        uint2 v = *reinterpret_cast<const uint2*>(moment + 2 * at);
        return make_float4(bf16_value(u16(v.x)), bf16_value(u16(v.x >> 16)), bf16_value(u16(v.y)),
                           bf16_value(u16(v.y >> 16)));
    }
    static __device__ __forceinline__ uint2 bits(float4 v) {
        return make_uint2(bf16_bits(round_to_bf16(v.x)) | u32(bf16_bits(round_to_bf16(v.y))) << 16,
                          bf16_bits(round_to_bf16(v.z)) | u32(bf16_bits(round_to_bf16(v.w))) << 16);
    }
    static __device__ __forceinline__ void store(u8* moment, u64 at, float4 v) {
        *reinterpret_cast<uint2*>(moment + 2 * at) = bits(v);
    }
    static __device__ __forceinline__ float load1(const u8* moment, u64 at) {
        return bf16_value(reinterpret_cast<const u16*>(moment)[at]);
    }
    static __device__ __forceinline__ void store1(u8* moment, u64 at, float v) {
        reinterpret_cast<u16*>(moment)[at] = bf16_bits(round_to_bf16(v));
    }
};

// Replaces master and moments of one element by their successors.
template <bool DECOUPLED>
__device__ __forceinline__ void update(const Step& s, float& p, float& m, float& v, float gradient) {
    float clipped = gradient * s.factor;
    float g = DECOUPLED ? clipped : clipped + s.weight_decay * p;
    m = s.m.beta * m + s.m.one_minus_beta * g;
    v = s.v.beta * v + (s.v.one_minus_beta * g) * g;
    float u = (m / s.m.correction) / (sqrtf(v / s.v.correction) + s.epsilon);
    u = DECOUPLED ? u + s.weight_decay * p : u;
    p = p - s.learning_rate * u;
}

// Whether training goes on from one element.
__device__ __forceinline__ bool goes_on(const Rule& rule, float p, float m, float v) {
    return (fabsf(p) <= rule.largest_master) & (fabsf(m) <= rule.largest_moment) & (fabsf(v) <= rule.largest_moment);
}

// Says that it does not.
__device__ __forceinline__ void diverge(const Rule& rule) {
    if (rule.diverged != nullptr) *rule.diverged = 1;
}

// base^exponent by squaring: few multiplications and little code, where pow() costs small launches more than their
// data.
__device__ __forceinline__ double power(double base, u32 exponent) {
    double product = 1.0;
#pragma unroll 1
    for (; exponent != 0; exponent >>= 1, base *= base) product = (exponent & 1) != 0 ? product * base : product;
    return product;
}

// 1 - beta^step, or 1 without bias correction.
__device__ __forceinline__ float correction(const Rule& rule, float beta, u32 step) {
    return rule.bias_correction ? float(1.0 - power(double(beta), step)) : 1.0f;
}

// The scalars of the step, for the weight that goes by `own`. Two threads compute the corrections and two others read
// the rest, while the state of the tile is on its way.
__device__ __forceinline__ const Step& scalars(const Rule& rule, const Hyperparameters* own) {
    __shared__ Step step;
    if (threadIdx.x < 2) {
        Decay& decay = threadIdx.x == 0 ? step.m : step.v;
        float beta = threadIdx.x == 0 ? own->beta1 : own->beta2;
        decay.beta = beta;
        decay.one_minus_beta = 1.0f - beta;
        decay.correction = correction(rule, beta, rule.vote->step);
    }
    if (threadIdx.x == 32) {
        step.factor = rule.vote->clip * rule.vote->unscale;
        step.epsilon = rule.epsilon;
    }
    if (threadIdx.x == 64) {
        step.learning_rate = own->learning_rate;
        step.weight_decay = own->weight_decay;
    }
    __syncthreads();
    return step;
}

// What a thread found of the masters that it made.
struct Found {
    float largest;
    bool valid;
};

// Replaces master and moments of four neighbours, which begin at a multiple of four elements; returns the masters. A
// Tensor says where they are.
template <bool DECOUPLED, class Moment, class Tensor>
__device__ __forceinline__ float4 update_four(const Rule& rule, const Tensor& t, const Step& step, u64 at,
                                              Found& found) {
    float4 g = load16(t.gradient + at);
    float4 p = *reinterpret_cast<const float4*>(t.master + at);
    float4 m = Moment::load(t.exp_avg, at);
    float4 v = Moment::load(t.exp_avg_sq, at);
    update<DECOUPLED>(step, p.x, m.x, v.x, g.x);
    update<DECOUPLED>(step, p.y, m.y, v.y, g.y);
    update<DECOUPLED>(step, p.z, m.z, v.z, g.z);
    update<DECOUPLED>(step, p.w, m.w, v.w, g.w);
    found.valid &= goes_on(rule, p.x, m.x, v.x) & goes_on(rule, p.y, m.y, v.y) & goes_on(rule, p.z, m.z, v.z) &
                   goes_on(rule, p.w, m.w, v.w);
    *reinterpret_cast<float4*>(t.master + at) = p;
    Moment::store(t.exp_avg, at, m);
    Moment::store(t.exp_avg_sq, at, v);
    found.largest = fmaxf(found.largest, largest_of(p));
    return p;
}

// The same of one element, wherever it is.
template <bool DECOUPLED, class Moment, class Tensor>
__device__ __forceinline__ void update_one(const Rule& rule, const Tensor& t, const Step& step, u64 at, Found& found) {
    float p = t.master[at];
    float m = Moment::load1(t.exp_avg, at);
    float v = Moment::load1(t.exp_avg_sq, at);
    update<DECOUPLED>(step, p, m, v, __ldg(t.gradient + at));
    found.valid &= goes_on(rule, p, m, v);
    t.master[at] = p;
    Moment::store1(t.exp_avg, at, m);
    Moment::store1(t.exp_avg_sq, at, v);
    found.largest = fmaxf(found.largest, fabsf(p));
}
