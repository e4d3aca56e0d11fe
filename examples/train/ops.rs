//! Row-wise and element-wise operations of the model.
//!
//! Law: plain IEEE arithmetic in a written order. No element loop calls the system's math library, so
//! all of them vectorize. A NaN goes in and comes out: nothing here hides a fault from the optimizer's
//! vote.

/// Added to the mean square before the root.
const EPSILON: f32 = 1e-6;

/// Partial results of a reduction, so that it does not wait for each addition.
const LANES: usize = 8;

/// `Σ aᵢ·bᵢ`, the i-th product in lane `i mod 8`, then the lanes in order.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum()
}

/// Reduces a row in lanes, as [`dot`] does.
fn reduce(row: &[f32], start: f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    for chunk in row.chunks(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = join(*lane, x);
        }
    }
    lanes.into_iter().fold(start, join)
}

/// `eˣ` to about two units in the last place; the argument is clamped to ±87, NaN stays NaN.
#[inline]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5·2²³ leaves the nearest integer in the low bits of the significand.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts: the first times a small integer is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 87.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let r = x - power * LN2_HIGH - power * LN2_LOW;
    // Taylor's series on |r| ≤ ln 2 / 2: the first term left out is below 1.3e-7.
    let series = 1.0 / 720.0;
    let series = series * r + 1.0 / 120.0;
    let series = series * r + 1.0 / 24.0;
    let series = series * r + 1.0 / 6.0;
    let series = series * r + 0.5;
    let series = series * r * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    series * f32::from_bits(exponent << 23)
}

/// The logistic gate `s` of GELU's tanh form, `gelu(x) = x·s(x)`, and its derivative `s'(x)`
/// (Hendrycks and Gimpel 2016, with `½(1 + tanh u) = 1 / (1 + e⁻²ᵘ)`).
#[inline]
fn gate(x: f32) -> (f32, f32) {
    const SLOPE: f32 = 1.595_769; // 2·√(2/π)
    const CUBIC: f32 = 0.044_715;
    let gate = 1.0 / (1.0 + exp(-SLOPE * (x + CUBIC * x * x * x)));
    (gate, gate * (1.0 - gate) * SLOPE * (1.0 + 3.0 * CUBIC * x * x))
}

/// `out = gelu(hidden)`.
pub(crate) fn gelu(hidden: &[f32], out: &mut [f32]) {
    for (y, &x) in out.iter_mut().zip(hidden) {
        *y = x * gate(x).0;
    }
}

/// `gradient *= gelu'(hidden)`, and `activated = gelu(hidden)` again, which forward did not keep.
pub(crate) fn gelu_backward(hidden: &[f32], activated: &mut [f32], gradient: &mut [f32]) {
    for ((y, dy), &x) in activated.iter_mut().zip(gradient).zip(hidden) {
        let (gate, slope) = gate(x);
        *y = x * gate;
        *dy *= gate + x * slope;
    }
}

/// Root-mean-square norm of each row (Zhang and Sennrich 2019): `out = gain · x / rms(x)`.
pub(crate) fn normalize(x: &[f32], gain: &[f32], out: &mut [f32]) {
    let width = gain.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let inverse = inverse_rms(x);
        for ((y, x), gain) in out.iter_mut().zip(x).zip(gain) {
            *y = x * inverse * gain;
        }
    }
}

/// Backward of [`normalize`]: adds to `x_gradient`, overwrites `gain_gradient` unless the gain is frozen, uses up
/// `gradient`.
pub(crate) fn normalize_backward(
    x: &[f32],
    gain: &[f32],
    gradient: &mut [f32],
    x_gradient: &mut [f32],
    mut gain_gradient: Option<&mut [f32]>,
) {
    let width = gain.len();
    if let Some(sums) = gain_gradient.as_deref_mut() {
        sums.fill(0.0);
    }
    let rows = x.chunks_exact(width).zip(gradient.chunks_exact_mut(width));
    for ((x, gradient), x_gradient) in rows.zip(x_gradient.chunks_exact_mut(width)) {
        let inverse = inverse_rms(x);
        if let Some(sums) = gain_gradient.as_deref_mut() {
            for ((sum, dy), x) in sums.iter_mut().zip(&*gradient).zip(x) {
                *sum += dy * x * inverse;
            }
        }
        gradient.iter_mut().zip(gain).for_each(|(dy, gain)| *dy *= gain);
        let pull = dot(gradient, x) * inverse * inverse / width as f32;
        for ((dx, dy), x) in x_gradient.iter_mut().zip(&*gradient).zip(x) {
            *dx += inverse * (dy - x * pull);
        }
    }
}

fn inverse_rms(row: &[f32]) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + EPSILON).sqrt()
}

/// Replaces a row by its softmax and returns its log-sum-exp.
pub(crate) fn softmax(row: &mut [f32]) -> f32 {
    let largest = reduce(row, f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
    for x in &mut *row {
        *x = exp(*x - largest);
    }
    let sum = reduce(row, 0.0, |a, b| a + b);
    let inverse = 1.0 / sum;
    for x in &mut *row {
        *x *= inverse;
    }
    largest + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_three_units_in_the_last_place_and_keeps_nan() {
        for step in -870_000..=870_000 {
            let x = step as f32 * 1e-4;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 3.0 * f64::from(f32::EPSILON), "at {x}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(softmax(&mut [0.0, f32::NAN, 1.0]).is_nan());
    }

    #[test]
    fn softmax_sums_to_one_and_returns_the_log_of_the_sum() {
        let mut row = [1.0f32, 2.0, 3.0, 400.0, 399.0];
        let exact = 400.0 + (1.0 + (-1.0f64).exp()).ln();
        assert!((f64::from(softmax(&mut row)) - exact).abs() < 1e-4);
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn gelu_meets_its_published_values() {
        let mut out = [0.0; 3];
        gelu(&[-1.0, 0.0, 2.0], &mut out);
        for (value, exact) in out.iter().zip([-0.158_808, 0.0, 1.954_598]) {
            assert!((value - exact).abs() < 1e-5);
        }
    }

    #[test]
    fn gelu_backward_multiplies_by_the_slope_and_gives_the_activations_again() {
        for x in [-3.0f32, -1.5, -0.3, 0.0, 0.7, 1.5, 3.0] {
            let (mut near, mut activated, mut gradient) = ([0.0; 2], [0.0], [2.0]);
            gelu(&[x - 0.02, x + 0.02], &mut near);
            gelu_backward(&[x], &mut activated, &mut gradient);
            assert!((gradient[0] - 2.0 * (near[1] - near[0]) / 0.04).abs() < 3e-4, "at {x}");
            gelu(&[x], &mut near[..1]);
            assert_eq!(activated[0], near[0]);
        }
    }
}
