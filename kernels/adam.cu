// Adam and AdamW over the masters of a bucket: state after state, in memory order.
//
// Laws:
// - The arithmetic is that of adam.cuh.
// - A master in two halves is its bf16 shard and the 16 bits it lacks; joining what was split gives its bits.
// - A master that is cast is rounded as it is stored, and written twice.

#include "adam.cuh"

struct AdamTensor {
    // f32 masters, or the bf16 shard.
    u8* master;
    // The lower halves of split masters, or what masters are cast to.
    u8* second;
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
    Rule rule;
    AdamTensor only;
};
static_assert(sizeof(AdamArguments) == 120, "kernels::adam::Arguments");

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
    static __device__ __forceinline__ u16* second(const AdamTensor& t) { return reinterpret_cast<u16*>(t.second); }

    static __device__ __forceinline__ float4 load(const AdamTensor& t, u64 at) {
        uint2 high = *reinterpret_cast<const uint2*>(t.master + 2 * at);
        uint2 low = *reinterpret_cast<const uint2*>(second(t) + at);
        return make_float4(join(high.x & 0xFFFF, low.x & 0xFFFF), join(high.x >> 16, low.x >> 16),
                           join(high.y & 0xFFFF, low.y & 0xFFFF), join(high.y >> 16, low.y >> 16));
    }
    static __device__ __forceinline__ void store(const AdamTensor& t, u64 at, float4 p) {
        *reinterpret_cast<uint2*>(t.master + 2 * at) =
            make_uint2(high_of(p.x) | high_of(p.y) << 16, high_of(p.z) | high_of(p.w) << 16);
        *reinterpret_cast<uint2*>(second(t) + at) =
            make_uint2(low_of(p.x) | low_of(p.y) << 16, low_of(p.z) | low_of(p.w) << 16);
    }
    static __device__ __forceinline__ float load1(const AdamTensor& t, u64 at) {
        return join(reinterpret_cast<const u16*>(t.master)[at], second(t)[at]);
    }
    static __device__ __forceinline__ void store1(const AdamTensor& t, u64 at, float p) {
        reinterpret_cast<u16*>(t.master)[at] = u16(high_of(p));
        second(t)[at] = u16(low_of(p));
    }
};

// f32, and cast to bfloat16. A NaN keeps its payload, as where it is cast by a launch of its own (cast.cu).
struct MasterToBf16 : WholeMaster {
    static __device__ __forceinline__ void store(const AdamTensor& t, u64 at, float4 p) {
        WholeMaster::store(t, at, p);
        *reinterpret_cast<uint2*>(t.second + 2 * at) = MomentBf16::bits(p);
    }
    static __device__ __forceinline__ void store1(const AdamTensor& t, u64 at, float p) {
        WholeMaster::store1(t, at, p);
        reinterpret_cast<u16*>(t.second)[at] = bf16_bits(round_to_bf16(p));
    }
};

// f32, and copied.
struct MasterToF32 : WholeMaster {
    static __device__ __forceinline__ void store(const AdamTensor& t, u64 at, float4 p) {
        WholeMaster::store(t, at, p);
        *reinterpret_cast<float4*>(t.second + 4 * at) = p;
    }
    static __device__ __forceinline__ void store1(const AdamTensor& t, u64 at, float p) {
        WholeMaster::store1(t, at, p);
        reinterpret_cast<float*>(t.second)[at] = p;
    }
};

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
        if (skips(all.rule.vote)) return;
        // Read again, twice, so that meanwhile registers held only the state.
        const Step& step = scalars(all.rule, tensor_of<AdamTensor>(all, place).hyperparameters);
        const AdamTensor to = tensor_of<AdamTensor>(all, place);
        bool valid = true;
#pragma unroll
        for (u32 i = 0; i < GROUPS; ++i) {
            u64 at = own + i * 4 * THREADS;
            update<DECOUPLED>(step, p[i].x, m[i].x, v[i].x, g[i].x);
            update<DECOUPLED>(step, p[i].y, m[i].y, v[i].y, g[i].y);
            update<DECOUPLED>(step, p[i].z, m[i].z, v[i].z, g[i].z);
            update<DECOUPLED>(step, p[i].w, m[i].w, v[i].w, g[i].w);
            valid &= goes_on(all.rule, p[i].x, m[i].x, v[i].x) & goes_on(all.rule, p[i].y, m[i].y, v[i].y) &
                     goes_on(all.rule, p[i].z, m[i].z, v[i].z) & goes_on(all.rule, p[i].w, m[i].w, v[i].w);
            Master::store(to, at, p[i]);
            Moment::store(to.exp_avg, at, m[i]);
            Moment::store(to.exp_avg_sq, at, v[i]);
        }
        if (!valid) diverge(all.rule);
        return;
    }
    if (skips(all.rule.vote)) return;
    const Step& step = scalars(all.rule, t.hyperparameters);
    u64 end = min(first + TILE<Moment>, t.count);
    for (u64 at = first + threadIdx.x; at < end; at += THREADS) {
        float p = Master::load1(t, at);
        float m = Moment::load1(t.exp_avg, at);
        float v = Moment::load1(t.exp_avg_sq, at);
        update<DECOUPLED>(step, p, m, v, __ldg(t.gradient + at));
        if (!goes_on(all.rule, p, m, v)) diverge(all.rule);
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
ADAM_KERNEL(adamw_to_bf16_f32, true, MasterToBf16, MomentF32)
ADAM_KERNEL(adamw_to_bf16_bf16, true, MasterToBf16, MomentBf16)
ADAM_KERNEL(adamw_to_f32_f32, true, MasterToF32, MomentF32)
ADAM_KERNEL(adamw_to_f32_bf16, true, MasterToF32, MomentBf16)
ADAM_KERNEL(adam_f32_f32, false, WholeMaster, MomentF32)
ADAM_KERNEL(adam_f32_bf16, false, WholeMaster, MomentBf16)
ADAM_KERNEL(adam_split_f32, false, SplitMaster, MomentF32)
ADAM_KERNEL(adam_split_bf16, false, SplitMaster, MomentBf16)
ADAM_KERNEL(adam_to_bf16_f32, false, MasterToBf16, MomentF32)
ADAM_KERNEL(adam_to_bf16_bf16, false, MasterToBf16, MomentBf16)
ADAM_KERNEL(adam_to_f32_f32, false, MasterToF32, MomentF32)
ADAM_KERNEL(adam_to_f32_bf16, false, MasterToF32, MomentBf16)
