// Numbers and their codes. Bit for bit what `format` defines: round to nearest, ties to even, saturating at
// the largest finite value, subnormals kept, NaN to one code without sign.
//
// Where the hardware converts, it is used: E4M3 and E5M2 from compute capability 8.9 on, E2M1 from 10.0 (in
// code for one family of chips, such as sm_100a).
// Elsewhere the same result comes from one addition. Adding a power of two whose unit in the last place is
// the distance between neighbouring codes makes the adder round, ties to even.

#pragma once

#include "common.cuh"

#define LARGEST_F32 __uint_as_float(0x7F7FFFFFu)

// `value` rounded to the nearest bfloat16, ties to even, as an f32. A NaN stays NaN, with its sign and payload.
__device__ __forceinline__ float round_to_bf16(float value) {
    u32 bits = __float_as_uint(value);
    u32 rounded = bits + 0x7FFFu + ((bits >> 16) & 1);
    bits = value != value ? bits | 0x00400000u : rounded;
    return __uint_as_float(bits & 0xFFFF0000u);
}

// Two values rounded at once, by one instruction, the first in the lower half; NaN becomes the canonical NaN.
__device__ __forceinline__ u32 pack_bf16(float a, float b) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
    return pair;
}

// The same, each as an f32.
__device__ __forceinline__ void round_both_to_bf16(float& a, float& b) {
    u32 pair = pack_bf16(a, b);
    a = __uint_as_float(pair << 16);
    b = __uint_as_float(pair & 0xFFFF0000u);
}

// The upper half of an f32 that is a bfloat16.
__device__ __forceinline__ u16 bf16_bits(float value) { return u16(__float_as_uint(value) >> 16); }
__device__ __forceinline__ float bf16_value(u16 bits) { return __uint_as_float(u32(bits) << 16); }

// Two binary16, each as an f32.
__device__ __forceinline__ float2 both_of(u32 halves) {
    float2 both;
    asm("{\n\t"
        ".reg .f16 low, high;\n\t"
        "mov.b32 {low, high}, %2;\n\t"
        "cvt.f32.f16 %0, low;\n\t"
        "cvt.f32.f16 %1, high;\n\t"
        "}"
        : "=f"(both.x), "=f"(both.y)
        : "r"(halves));
    return both;
}

// A sign-magnitude element with MANTISSA bits of mantissa, by software.
template <u32 MANTISSA, u32 BIAS, u32 BITS, u32 NAN_CODE>
__device__ __forceinline__ u32 encode(float value, float largest) {
    u32 bits = __float_as_uint(value);
    // fminf turns NaN into the largest.
    float clamped = fminf(fabsf(value), largest);
    // Below the smallest normal all codes share its step.
    float normal = fmaxf(clamped, __uint_as_float((128 - BIAS) << 23));
    u32 binade = __float_as_uint(normal) & 0x7F800000u;
    u32 addend = binade + ((23 - MANTISSA) << 23);
    u32 steps = __float_as_uint(clamped + __uint_as_float(addend)) - addend;
    // Codes count steps, and every binade above the smallest has 2^MANTISSA more below it.
    u32 below = (binade >> (23 - MANTISSA)) - ((128 - BIAS) << MANTISSA);
    u32 sign = (bits >> 31) << (BITS - 1);
    return value != value ? NAN_CODE : (steps + below) | sign;
}

// FP8 with 4 exponent bits; 0x7F and 0xFF are NaN.
struct E4m3 {
    static __device__ __forceinline__ float largest() { return 448.0f; }

    // Codes of a and b in bits 0-7 and 8-15.
    static __device__ __forceinline__ u32 encode2(float a, float b) {
#if __CUDA_ARCH__ >= 890
        u16 codes;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
        return codes;
#else
        return encode<3, 7, 8, 0x7F>(a, 448.0f) | encode<3, 7, 8, 0x7F>(b, 448.0f) << 8;
#endif
    }

    static __device__ __forceinline__ u32 encode1(float a) { return encode2(a, 0.0f) & 0xFF; }

    static __device__ __forceinline__ float decode(u32 code) {
        // The code's exponent and mantissa in an f32's places are the value, 2^120 times too small.
        float magnitude = __uint_as_float((code & 0x7F) << 20) * __uint_as_float(0x7B800000u);
        magnitude = (code & 0x7F) == 0x7F ? __uint_as_float(0x7FC00000u) : magnitude;
        return __uint_as_float(__float_as_uint(magnitude) | (code & 0x80) << 24);
    }

    // Values of the codes in bits 0-7 and 8-15. Every one is a binary16; a NaN may lose its sign.
    static __device__ __forceinline__ float2 decode2(u32 codes) {
#if __CUDA_ARCH__ >= 890
        u32 halves;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(u16(codes)));
        return both_of(halves);
#else
        return make_float2(decode(codes & 0xFF), decode(codes >> 8 & 0xFF));
#endif
    }
};

// FP8 with 5 exponent bits, IEEE-like: the upper byte of a binary16.
struct E5m2 {
    static __device__ __forceinline__ float largest() { return 57344.0f; }

    static __device__ __forceinline__ u32 encode2(float a, float b) {
#if __CUDA_ARCH__ >= 890
        u16 codes;
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
        return codes;
#else
        return encode<2, 15, 8, 0x7F>(a, 57344.0f) | encode<2, 15, 8, 0x7F>(b, 57344.0f) << 8;
#endif
    }

    static __device__ __forceinline__ u32 encode1(float a) { return encode2(a, 0.0f) & 0xFF; }

    static __device__ __forceinline__ float decode(u32 code) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(u16(code << 8)));
        return value;
    }

    // Values of the codes in bits 0-7 and 8-15.
    static __device__ __forceinline__ float2 decode2(u32 codes) { return both_of(__byte_perm(codes, 0, 0x1404)); }
};

// Four codes of one byte each, the first in the lowest.
template <class Element>
__device__ __forceinline__ u32 encode4(float4 v) {
    return Element::encode2(v.x, v.y) | Element::encode2(v.z, v.w) << 16;
}

// FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
struct E2m1 {
    // One code, by software.
    static __device__ __forceinline__ u32 encode1(float value) {
        // NaN becomes 6, and so 7; its sign is dropped because a product's NaN has none.
        float clamped = fminf(fabsf(value), 6.0f);
        // 1, 2 or 4: twice the distance between the codes around the value.
        float binade = __uint_as_float(__float_as_uint(fmaxf(clamped, 1.0f)) & 0x7F800000u);
        // The sum's last place is half a binade, so its low bits count codes from 0. The 3 binades added
        // in addition to 2^22 are 6 steps; with the 2 · (exponent + 22) that `t >> 22` yields they make 0 modulo 8.
        u32 t = __float_as_uint(__fmaf_rn(binade, 4194307.0f, clamped));
        return ((t + (t >> 22)) & 7) | ((__float_as_uint(value) >> 28) & 8);
    }

    // Four codes in bits 0-15, the first in the lowest. No argument may be a NaN with its sign set.
    static __device__ __forceinline__ u32 encode4(float4 v) {
#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH__ >= 1000
        u32 codes;
        asm("{\n\t"
            ".reg .b8 low, high, none;\n\t"
            "cvt.rn.satfinite.e2m1x2.f32 low, %2, %1;\n\t"
            "cvt.rn.satfinite.e2m1x2.f32 high, %4, %3;\n\t"
            "mov.b32 %0, {low, high, 0, 0};\n\t"
            "}"
            : "=r"(codes)
            : "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w));
        return codes;
#else
        return encode1(v.x) | encode1(v.y) << 4 | encode1(v.z) << 8 | encode1(v.w) << 12;
#endif
    }

    // The value of the low four bits.
    static __device__ __forceinline__ float decode(u32 code) {
        // As for E4M3: the bits in an f32's places are the value, 2^126 times too small.
        float magnitude = __uint_as_float((code & 7) << 22) * __uint_as_float(0x7E800000u);
        return __uint_as_float(__float_as_uint(magnitude) | (code & 8) << 28);
    }

    // Whether all products of a code and `factor` are zero or normal and far from overflow, also as bfloat16.
    static __device__ __forceinline__ bool is_plain(float factor) {
        u32 exponent = __float_as_uint(factor) >> 23 & 0xFF;
        return exponent - 8 < 240;
    }

    // Eight codes times a plain factor, rounded to f32 and then to bfloat16. A magnitude is a power of two,
    // or that and a half: both products are rounded once, the others are steps of the exponent. A table of
    // the eight bfloat16s, lower and upper bytes apart, is then read by byte permutations, whose selectors
    // are the codes.
    static __device__ __forceinline__ uint4 times_bf16(u32 codes, float factor) {
        u32 pair = pack_bf16(factor, 1.5f * factor);
        u32 first = ((pair << 16) - 0x00800000u) | (pair & 0x8000u);
        u32 third = pair + 0x00800080u;
        u32 fourth = pair + 0x01000100u;
        u32 lower[2] = {__byte_perm(first, pair, 0x6420), __byte_perm(third, fourth, 0x6420)};
        u32 upper[2] = {__byte_perm(first, pair, 0x7531), __byte_perm(third, fourth, 0x7531)};
        u32 magnitudes = codes & 0x77777777u;
        u32 even_signs = (codes << 4) & 0x80808080u;
        u32 odd_signs = codes & 0x80808080u;
        u32 low = __byte_perm(lower[0], lower[1], magnitudes);
        u32 high = __byte_perm(upper[0], upper[1], magnitudes) ^ __byte_perm(even_signs, odd_signs, 0x5140);
        u32 low2 = __byte_perm(lower[0], lower[1], magnitudes >> 16);
        u32 high2 = __byte_perm(upper[0], upper[1], magnitudes >> 16) ^ __byte_perm(even_signs, odd_signs, 0x7362);
        return make_uint4(__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362),
                          __byte_perm(low2, high2, 0x5140), __byte_perm(low2, high2, 0x7362));
    }
};

// A power of two in one byte. Code 0 is 2^-127, 255 is NaN.
struct E8m0 {
    // The smallest power of two that is not below `value`, which is not negative.
    static __device__ __forceinline__ u32 encode(float value) {
        if (value != value) return 255;
        u32 bits = __float_as_uint(value);
        u32 exponent = bits >> 23;
        u32 mantissa = bits & 0x007FFFFFu;
        if (exponent == 255) return 254;
        bool exact_or_largest =
            mantissa == 0 || exponent == 254 || (exponent == 0 && mantissa <= 0x00400000u);
        return exponent + (exact_or_largest ? 0 : 1);
    }

    static __device__ __forceinline__ float decode(u32 code) {
        u32 bits = code == 0 ? 0x00400000u : code == 255 ? 0x7FC00000u : code << 23;
        return __uint_as_float(bits);
    }

    // One over the value, exactly.
    static __device__ __forceinline__ float reciprocal(u32 code) {
        u32 bits = code == 255 ? 0x7FC00000u : code == 254 ? 0x00400000u : (254 - code) << 23;
        return __uint_as_float(bits);
    }
};

// The scale of an amax for FP8 whose largest code is `largest`: largest / amax, at most FMAX, as a power of two if
// requested; 1 for an amax without a scale.
__device__ __forceinline__ float fp8_scale(float amax, float epsilon, float largest, bool power_of_two) {
    amax = amax < epsilon ? epsilon : amax;
    if (amax == 0.0f || !(fabsf(amax) <= LARGEST_F32)) return 1.0f;
    float scale = fminf(largest / amax, LARGEST_F32);
    return power_of_two ? __uint_as_float(__float_as_uint(scale) & 0xFF800000u) : scale;
}
