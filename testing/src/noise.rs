//! Values without a pattern, between −1 and 1: seeded, and the same on every machine.

/// The first values of a seed. Each follows from the one before.
pub fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = u64::from(seed) * 2 + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// The value of one element of a seed, without a list of them.
pub fn value(element: usize, seed: usize) -> f32 {
    let mixed = (element as u64 ^ (seed as u64) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Those of the first elements.
pub fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|element| value(element, seed)).collect()
}
