// Adam and AdamW over the masters of a bucket.
//
// Laws:
// - g = factor * g              L2: g = g + wd * p
//   m = b1 * m + (1 - b1) * g   v = b2 * v + ((1 - b2) * g) * g
//   u = (m / c1) / (sqrt(v / c2) + eps)      decoupled: u = u + wd * p
//   p = p - lr * u
//   every operation rounded on its own in f32, divisions and root IEEE; c = 1 - b^t in f64, rounded once.
// - Moments stored as bfloat16 are read exactly and rounded to nearest even when stored, after their use.
// - A master in two halves is its bf16 shard and the 16 bits it lacks; joining what was split gives its bits.
// - New masters and moments are compared with the largest magnitudes from which training goes on, finite as they are
//   kept and cast: one comparison for each, which NaN fails. They are stored whatever they are. A thread that has one
//   that is too large says so in a word of the host's memory, which is written in no other case and not read here.
// - Hyperparameters of a weight, step and clip factor are read from memory when the launch runs. A vote that skips leaves
//   everything as it is.

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

struct AdamTensor {
    // f32 masters, or the bf16 shard.
    u8* master;
    // The lower halves of split masters.
    u16* remainder;
    u8* exp_avg;
    u8* exp_avg_sq;
    const float* gradient;
    const Hyperparameters* hyperparameters;
    u64 count;
    u32 aligned;
    u32 reserved;
};
static_assert(sizeof(AdamTensor) == 64, "kernels::adam::TensorArguments");

struct AdamArguments {
    Tiles tiles;
    const AdamTensor* tensors;
    const Vote* vote;
    // Becomes 1 where training does not go on; may be null.
    u32* diverged;
    float epsilon;
    u32 bias_correction;
    float largest_master;
    float largest_moment;
    AdamTensor only;
};
static_assert(sizeof(AdamArguments) == 120, "kernels::adam::Arguments");

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

// Elements of a tile.
template <class Moment>
constexpr u32 TILE = Moment::GROUPS * 4 * THREADS;

struct WholeMaster {
    static __device__ __forceinline__ float4 load(const AdamTensor& t, u64 at) {
        return *reinterpret_cast<const float4*>(t.master + 4 * at);
    }
    static __device__ __forceinline__ void store(const AdamTensor& t, u64 at, float4 p) {
        *reinterpret_cast<float4*>(t.master + 4 * at) = p;
    }
    static __device__ __forceinline__ float load1(const AdamTensor& t, u64 at) {
        return reinterpret_cast<const float*>(t.master)[at];
    }
    static __device__ __forceinline__ void store1(const AdamTensor& t, u64 at, float p) {
        reinterpret_cast<float*>(t.master)[at] = p;
    }
};

struct SplitMaster {
    // A remainder with its top bit set is negative: the upper half was rounded up.
    static __device__ __forceinline__ float join(u32 high, u32 low) {
        return __uint_as_float(((high - (low >> 15)) << 16) | low);
    }
    static __device__ __forceinline__ u32 high_of(float p) {
        u32 bits = __float_as_uint(p);
        return ((bits >> 16) + ((bits >> 15) & 1)) & 0xFFFF;
    }
    static __device__ __forceinline__ u32 low_of(float p) { return __float_as_uint(p) & 0xFFFF; }

    static __device__ __forceinline__ float4 load(const AdamTensor& t, u64 at) {
        uint2 high = *reinterpret_cast<const uint2*>(t.master + 2 * at);
        uint2 low = *reinterpret_cast<const uint2*>(t.remainder + at);
        return make_float4(join(high.x & 0xFFFF, low.x & 0xFFFF), join(high.x >> 16, low.x >> 16),
                           join(high.y & 0xFFFF, low.y & 0xFFFF), join(high.y >> 16, low.y >> 16));
    }
    static __device__ __forceinline__ void store(const AdamTensor& t, u64 at, float4 p) {
        *reinterpret_cast<uint2*>(t.master + 2 * at) =
            make_uint2(high_of(p.x) | high_of(p.y) << 16, high_of(p.z) | high_of(p.w) << 16);
        *reinterpret_cast<uint2*>(t.remainder + at) =
            make_uint2(low_of(p.x) | low_of(p.y) << 16, low_of(p.z) | low_of(p.w) << 16);
    }
    static __device__ __forceinline__ float load1(const AdamTensor& t, u64 at) {
        return join(reinterpret_cast<const u16*>(t.master)[at], t.remainder[at]);
    }
    static __device__ __forceinline__ void store1(const AdamTensor& t, u64 at, float p) {
        reinterpret_cast<u16*>(t.master)[at] = u16(high_of(p));
        t.remainder[at] = u16(low_of(p));
    }
};

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
    static __device__ __forceinline__ void store(u8* moment, u64 at, float4 v) {
        *reinterpret_cast<uint2*>(moment + 2 * at) =
            make_uint2(bf16_bits(round_to_bf16(v.x)) | u32(bf16_bits(round_to_bf16(v.y))) << 16,
                       bf16_bits(round_to_bf16(v.z)) | u32(bf16_bits(round_to_bf16(v.w))) << 16);
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
__device__ __forceinline__ bool goes_on(const AdamArguments& all, float p, float m, float v) {
    return (fabsf(p) <= all.largest_master) & (fabsf(m) <= all.largest_moment) & (fabsf(v) <= all.largest_moment);
}

// Says that it does not.
__device__ __forceinline__ void diverge(const AdamArguments& all) {
    if (all.diverged != nullptr) *all.diverged = 1;
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
__device__ __forceinline__ float correction(const AdamArguments& all, float beta, u32 step) {
    return all.bias_correction ? float(1.0 - power(double(beta), step)) : 1.0f;
}

// The scalars of the step, for the weight that goes by `own`. Two threads compute the corrections and two others read
// the rest, while the state of the tile is on its way.
__device__ __forceinline__ const Step& scalars(const AdamArguments& all, const Hyperparameters* own) {
    __shared__ Step step;
    if (threadIdx.x < 2) {
        Decay& decay = threadIdx.x == 0 ? step.m : step.v;
        float beta = threadIdx.x == 0 ? own->beta1 : own->beta2;
        decay.beta = beta;
        decay.one_minus_beta = 1.0f - beta;
        decay.correction = correction(all, beta, all.vote->step);
    }
    if (threadIdx.x == 32) {
        step.factor = all.vote->clip * all.vote->unscale;
        step.epsilon = all.epsilon;
    }
    if (threadIdx.x == 64) {
        step.learning_rate = own->learning_rate;
        step.weight_decay = own->weight_decay;
    }
    __syncthreads();
    return step;
}

template <bool DECOUPLED, class Master, class Moment>
__device__ __forceinline__ void adam(const AdamArguments& all) {
    Place place = place_of(all.tiles, blockIdx.x);
    const AdamTensor t = tensor_of<AdamTensor>(all, place);
    constexpr u32 GROUPS = Moment::GROUPS;
    u64 first = u64(place.tile) * TILE<Moment>;
    if (t.aligned && first + TILE<Moment> <= t.count) {
        float4 p[GROUPS], m[GROUPS], v[GROUPS], g[GROUPS];
        u64 own = first + 4 * threadIdx.x;
#pragma unroll
        for (u32 i = 0; i < GROUPS; ++i) {
            u64 at = own + i * 4 * THREADS;
            g[i] = load16(t.gradient + at);
            p[i] = Master::load(t, at);
            m[i] = Moment::load(t.exp_avg, at);
            v[i] = Moment::load(t.exp_avg_sq, at);
        }
        // Requested after the state, which is on its way meanwhile.
        if (skips(all.vote)) return;
        // Read again, twice, so that meanwhile registers held only the state.
        const Step& step = scalars(all, tensor_of<AdamTensor>(all, place).hyperparameters);
        const AdamTensor to = tensor_of<AdamTensor>(all, place);
        bool valid = true;
#pragma unroll
        for (u32 i = 0; i < GROUPS; ++i) {
            u64 at = own + i * 4 * THREADS;
            update<DECOUPLED>(step, p[i].x, m[i].x, v[i].x, g[i].x);
            update<DECOUPLED>(step, p[i].y, m[i].y, v[i].y, g[i].y);
            update<DECOUPLED>(step, p[i].z, m[i].z, v[i].z, g[i].z);
            update<DECOUPLED>(step, p[i].w, m[i].w, v[i].w, g[i].w);
            valid &= goes_on(all, p[i].x, m[i].x, v[i].x) & goes_on(all, p[i].y, m[i].y, v[i].y) &
                     goes_on(all, p[i].z, m[i].z, v[i].z) & goes_on(all, p[i].w, m[i].w, v[i].w);
            Master::store(to, at, p[i]);
            Moment::store(to.exp_avg, at, m[i]);
            Moment::store(to.exp_avg_sq, at, v[i]);
        }
        if (!valid) diverge(all);
        return;
    }
    if (skips(all.vote)) return;
    const Step& step = scalars(all, t.hyperparameters);
    u64 end = min(first + TILE<Moment>, t.count);
    for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
        float p = Master::load1(t, at);
        float m = Moment::load1(t.exp_avg, at);
        float v = Moment::load1(t.exp_avg_sq, at);
        update<DECOUPLED>(step, p, m, v, __ldg(t.gradient + at));
        if (!goes_on(all, p, m, v)) diverge(all);
        Master::store1(t, at, p);
        Moment::store1(t.exp_avg, at, m);
        Moment::store1(t.exp_avg_sq, at, v);
    }
}

#define ADAM_KERNEL(name, decoupled, master, moment)                        \
    extern "C" __global__ void __launch_bounds__(THREADS, moment::RESIDENT) \
    name(const __grid_constant__ AdamArguments all) {                       \
        adam<decoupled, master, moment>(all);                               \
    }

ADAM_KERNEL(adamw_f32_f32, true, WholeMaster, MomentF32)
ADAM_KERNEL(adamw_f32_bf16, true, WholeMaster, MomentBf16)
ADAM_KERNEL(adamw_split_f32, true, SplitMaster, MomentF32)
ADAM_KERNEL(adamw_split_bf16, true, SplitMaster, MomentBf16)
ADAM_KERNEL(adam_f32_f32, false, WholeMaster, MomentF32)
ADAM_KERNEL(adam_f32_bf16, false, WholeMaster, MomentBf16)
ADAM_KERNEL(adam_split_f32, false, SplitMaster, MomentF32)
ADAM_KERNEL(adam_split_bf16, false, SplitMaster, MomentBf16)
