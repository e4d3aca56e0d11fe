// GELU in its tanh form (Hendrycks and Gimpel, 2016), one value at a time, in f32.
//
// Law: every kernel that computes it, alone or on the way to codes, gets the same bits. Exponential and reciprocal
// are approximated by the hardware, to about 2^-21.

#pragma once

#include "common.cuh"

// It is x times a logistic gate of 2 sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float STEEPNESS = 1.5957691216f;
constexpr float CUBIC = 0.044715f;
constexpr float LOG2_E = 1.4426950409f;

// The exponential is added to one and the reciprocal is of one or more, so flushing what is subnormal before
// and after them saves the instructions that keep it.
__device__ __forceinline__ float gelu_gate(float x) {
    float power = -STEEPNESS * (x + CUBIC * x * x * x) * LOG2_E;
    float s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(power));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + s));
    return s;
}

__device__ __forceinline__ float gelu_of(float x) { return x * gelu_gate(x); }

// Turns the gradient of gelu_of(x) into that of x.
__device__ __forceinline__ float gelu_gradient_of(float gradient, float x) {
    float s = gelu_gate(x);
    // Far out s (1 - s) is 0, and so is its product with a square that is kept finite.
    float square = fminf(x * x, 1e30f);
    return gradient * (s + x * s * (1.0f - s) * STEEPNESS * (1.0f + 3.0f * CUBIC * square));
}
