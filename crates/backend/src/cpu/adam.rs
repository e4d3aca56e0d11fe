//! Adam and AdamW, element by element.
//!
//! Laws:
//! - **AD-1** Every value is rounded op by op in f32, in the order written, without fused multiply-add, so
//!   results are the same on every machine. `β1^t` and `β2^t` are raised in f64 from the f32 β, by squaring,
//!   because no two libraries compute powers alike; `1 − β` is formed in f32.
//! - **AD-2** Weight decay uses the old master. Decoupled, it is multiplied by the learning rate;
//!   as L2 it is added to the gradient after clipping and passes through both moments.
//! - **AD-3** Moments stored as bf16 are read exactly, and rounded to nearest even when stored. The
//!   update of their step uses them before that rounding.
//! - **AD-4** What is stored is compared with the largest magnitudes from which training goes on, which what is
//!   no number fails too. It is stored whatever it is.
//!
//! Sources: Kingma and Ba, *Adam* (2015), Algorithm 1; Loshchilov and Hutter, *Decoupled Weight Decay
//! Regularization* (2019), Algorithm 2; the order of operations is that of fused multi-tensor
//! Adam kernels, which subtract update and decay at once.

use bytemuck::Pod;
use half::bf16;

use crate::local::Largest;
use warpweft_format::{join_master, split_master};
use warpweft_plan::layout::OptimizerSettings;
use warpweft_plan::model::Hyperparameters;
use warpweft_plan::policy::AdamMode;

/// The master of one element, wherever it is.
pub(super) trait Master {
    /// Its value.
    fn load(&self) -> f32;
    /// Replaces it, without rounding.
    fn store(self, value: f32);
}

impl Master for &mut f32 {
    #[inline(always)]
    fn load(&self) -> f32 {
        **self
    }

    #[inline(always)]
    fn store(self, value: f32) {
        *self = value;
    }
}

/// bf16 bits of the weight, and the remainder.
impl Master for (&mut u16, &mut i16) {
    #[inline(always)]
    fn load(&self) -> f32 {
        join_master(*self.0, *self.1)
    }

    #[inline(always)]
    fn store(self, value: f32) {
        (*self.0, *self.1) = split_master(value);
    }
}

/// A stored value of a moment.
pub(super) trait Moment: Pod {
    /// Its value.
    fn load(self) -> f32;
    /// The nearest stored value.
    fn store(value: f32) -> Self;
}

impl Moment for f32 {
    #[inline(always)]
    fn load(self) -> f32 {
        self
    }

    #[inline(always)]
    fn store(value: f32) -> Self {
        value
    }
}

impl Moment for bf16 {
    #[inline(always)]
    fn load(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn store(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// `base^exponent`, by squaring: each product rounded once, the same on every machine.
fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut product = 1.0;
    while exponent != 0 {
        if exponent & 1 != 0 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

/// The scalars of one optimizer step.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdamStep {
    mode: AdamMode,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// `1 − β1^t`, or 1 without bias correction.
    correction1: f32,
    /// `1 − β2^t`, or 1 without bias correction.
    correction2: f32,
    epsilon: f32,
    weight_decay: f32,
    /// Clip factor over loss scale.
    factor: f32,
    learning_rate: f32,
    largest: Largest,
}

impl AdamStep {
    /// Step `step`, counted from 1; every gradient is multiplied by `factor` first.
    pub(super) fn new(
        settings: &OptimizerSettings,
        largest: Largest,
        step: u32,
        factor: f32,
        by: Hyperparameters,
    ) -> Self {
        let Hyperparameters { learning_rate, weight_decay, beta1, beta2 } = by;
        let correction = |beta: f32| {
            if settings.bias_correction { (1.0 - power(f64::from(beta), step)) as f32 } else { 1.0 }
        };
        Self {
            mode: settings.mode,
            beta1,
            one_minus_beta1: 1.0 - beta1,
            beta2,
            one_minus_beta2: 1.0 - beta2,
            correction1: correction(beta1),
            correction2: correction(beta2),
            epsilon: settings.epsilon,
            weight_decay,
            factor,
            learning_rate,
            largest,
        }
    }

    /// Updates masters and moments; all have as many elements as the gradients. Returns whether training goes on
    /// from what is there then.
    ///
    /// ```text
    /// g = factor·g                            L2: g = g + λ·p
    /// m = β1·m + (1−β1)·g                     v = β2·v + ((1−β2)·g)·g
    /// u = (m/c1) / (√(v/c2) + ε)              decoupled: u = u + λ·p
    /// p = p − lr·u
    /// ```
    pub(super) fn update<P: Master, M: Moment>(
        &self,
        masters: impl Iterator<Item = P>,
        exp_avg: &mut [M],
        exp_avg_sq: &mut [M],
        gradient: &[f32],
    ) -> bool {
        match self.mode {
            AdamMode::AdamW => self.all::<true, P, M>(masters, exp_avg, exp_avg_sq, gradient),
            AdamMode::Adam => self.all::<false, P, M>(masters, exp_avg, exp_avg_sq, gradient),
        }
    }

    /// [`Self::update`] with the mode known at compile time, so that the loop has no branch.
    fn all<const DECOUPLED: bool, P: Master, M: Moment>(
        &self,
        masters: impl Iterator<Item = P>,
        exp_avg: &mut [M],
        exp_avg_sq: &mut [M],
        gradient: &[f32],
    ) -> bool {
        let moments = exp_avg.iter_mut().zip(exp_avg_sq);
        let Largest { master, moment } = self.largest;
        let mut goes_on = true;
        for ((p, (m, v)), gradient) in masters.zip(moments).zip(gradient) {
            let (new, first, second) = self.element::<DECOUPLED>(p.load(), m.load(), v.load(), *gradient);
            p.store(new);
            (*m, *v) = (M::store(first), M::store(second));
            goes_on &= (new.abs() <= master) & (first.abs() <= moment) & (second.abs() <= moment);
        }
        goes_on
    }

    /// New master, first and second moment of one element.
    #[inline(always)]
    fn element<const DECOUPLED: bool>(&self, p: f32, m: f32, v: f32, gradient: f32) -> (f32, f32, f32) {
        let clipped = gradient * self.factor;
        let g = if DECOUPLED { clipped } else { clipped + self.weight_decay * p };
        let m = self.beta1 * m + self.one_minus_beta1 * g;
        let v = self.beta2 * v + (self.one_minus_beta2 * g) * g;
        let u = (m / self.correction1) / ((v / self.correction2).sqrt() + self.epsilon);
        let u = if DECOUPLED { u + self.weight_decay * p } else { u };
        (p - self.learning_rate * u, m, v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: OptimizerSettings =
        OptimizerSettings { mode: AdamMode::AdamW, epsilon: 1e-8, bias_correction: true, max_norm: 0.0 };

    const BY: Hyperparameters =
        Hyperparameters { learning_rate: 5e-4, weight_decay: 0.0, beta1: 0.9, beta2: 0.999 };

    const ANY: Largest = Largest { master: f32::MAX, moment: f32::MAX };

    /// Values without a pattern, between −1 and 1.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mixed = |at: u32| (at ^ seed.wrapping_mul(0x9E37_79B1)).wrapping_mul(0x85EB_CA6B).rotate_left(15);
        let value = |at: u32| (mixed(mixed(at)) >> 8) as f32 / (1 << 23) as f32 - 1.0;
        (0..u32::try_from(count).unwrap()).map(value).collect()
    }

    /// Seven steps by the papers' formulas in f64, decay as a factor on the old weight.
    fn textbook(settings: &OptimizerSettings, by: Hyperparameters, p: f32, gradients: &[f32]) -> f64 {
        let [lr, b1, b2] = [by.learning_rate, by.beta1, by.beta2].map(f64::from);
        let (decay, epsilon) = (f64::from(by.weight_decay), f64::from(settings.epsilon));
        let (mut p, mut m, mut v) = (f64::from(p), 0.0, 0.0);
        for (step, gradient) in gradients.iter().enumerate() {
            let t = (step + 1) as f64;
            let mut g = f64::from(*gradient);
            match settings.mode {
                AdamMode::AdamW => p *= 1.0 - lr * decay,
                AdamMode::Adam => g += decay * p,
            }
            m = b1 * m + (1.0 - b1) * g;
            v = b2 * v + (1.0 - b2) * g * g;
            p -= lr * (m / (1.0 - b1.powf(t))) / ((v / (1.0 - b2.powf(t))).sqrt() + epsilon);
        }
        p
    }

    /// Seven steps over `count` elements, compared with the textbook by the tolerance of the conformance list.
    fn check_against_textbook(settings: OptimizerSettings, by: Hyperparameters, count: usize) {
        let (start, mut m, mut v) = (noise(count, 1), vec![0.0_f32; count], vec![0.0_f32; count]);
        let mut master = start.clone();
        let gradients: Vec<Vec<f32>> = (1..=7).map(|step| noise(count, step + 1)).collect();
        for (step, gradient) in (1..).zip(&gradients) {
            let step = AdamStep::new(&settings, ANY, step, 1.0, by);
            step.update(master.iter_mut(), &mut m, &mut v, gradient);
        }
        for (at, found) in master.iter().enumerate() {
            let own: Vec<f32> = gradients.iter().map(|gradient| gradient[at]).collect();
            let expected = textbook(&settings, by, start[at], &own);
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= 1e-5 + 1.3e-6 * expected.abs(), "{settings:?}, {by:?}, element {at}: {error:e}");
        }
    }

    /// Conformance H1, with and without weight decay and in both modes.
    #[test]
    fn h1_seven_steps_stay_within_tolerance_of_the_textbook() {
        for (mode, decay) in [(AdamMode::AdamW, 0.1), (AdamMode::Adam, 0.01)] {
            for weight_decay in [0.0, decay] {
                let by = Hyperparameters { weight_decay, ..BY };
                check_against_textbook(OptimizerSettings { mode, ..SETTINGS }, by, 278_011);
            }
        }
    }

    /// Conformance H5: a learning rate of 1 and short memories.
    #[test]
    fn h5_masters_stay_within_tolerance_at_a_learning_rate_of_one() {
        let by = Hyperparameters { learning_rate: 1.0, beta1: 0.1, beta2: 0.25, ..BY };
        check_against_textbook(SETTINGS, by, 4099);
    }

    /// AD-2: the two modes agree without decay and differ with it.
    #[test]
    fn the_modes_differ_by_weight_decay_alone() {
        let gradient = noise(64, 3);
        let after = |mode, weight_decay| {
            let settings = OptimizerSettings { mode, ..SETTINGS };
            let by = Hyperparameters { learning_rate: 1e-2, weight_decay, ..BY };
            let (mut p, mut m, mut v) = (noise(64, 4), vec![0.0_f32; 64], vec![0.0_f32; 64]);
            AdamStep::new(&settings, ANY, 1, 0.5, by).update(p.iter_mut(), &mut m, &mut v, &gradient);
            (p, m)
        };
        assert_eq!(after(AdamMode::AdamW, 0.0), after(AdamMode::Adam, 0.0));
        let (decoupled, plain) = (after(AdamMode::AdamW, 0.1), after(AdamMode::AdamW, 0.0));
        assert_eq!(decoupled.1, plain.1, "decoupled decay stays out of the moments");
        assert_ne!(decoupled.0, plain.0);
        assert_ne!(after(AdamMode::Adam, 0.1).1, plain.1, "L2 decay passes through the moments");
    }

    /// Conformance H6, AD-3.
    #[test]
    fn h6_bf16_moments_stay_within_tolerance_of_f32_moments() {
        let count = 4099;
        for mode in [AdamMode::AdamW, AdamMode::Adam] {
            let settings = OptimizerSettings { mode, ..SETTINGS };
            let by = Hyperparameters { weight_decay: 0.01, ..BY };
            let mut exact = (noise(count, 1), vec![0.0_f32; count], vec![0.0_f32; count]);
            let mut short = (noise(count, 1), vec![bf16::ZERO; count], vec![bf16::ZERO; count]);
            for step in 1..=7 {
                let gradient = noise(count, step + 1);
                let scalars = AdamStep::new(&settings, ANY, step, 1.0, by);
                scalars.update(exact.0.iter_mut(), &mut exact.1, &mut exact.2, &gradient);
                scalars.update(short.0.iter_mut(), &mut short.1, &mut short.2, &gradient);
            }
            let close = |found: f32, expected: f32| (found - expected).abs() <= 2e-3 + 2e-3 * expected.abs();
            assert!(short.0.iter().zip(&exact.0).all(|(found, expected)| close(*found, *expected)));
            assert_ne!(short.0, exact.0, "the moments were rounded");
        }
    }

    /// AD-3: the first step has nothing to read, so its master is that of f32 moments.
    #[test]
    fn an_update_uses_its_moments_before_they_are_rounded() {
        let gradient = noise(512, 8);
        let (mut exact, mut m, mut v) = (noise(512, 9), vec![0.0_f32; 512], vec![0.0_f32; 512]);
        let (mut short, mut low_m, mut low_v) = (exact.clone(), vec![bf16::ZERO; 512], vec![bf16::ZERO; 512]);
        let step = AdamStep::new(&SETTINGS, ANY, 1, 1.0, Hyperparameters { learning_rate: 1e-2, ..BY });
        step.update(exact.iter_mut(), &mut m, &mut v, &gradient);
        step.update(short.iter_mut(), &mut low_m, &mut low_v, &gradient);
        assert_eq!(short, exact);
        for (stored, moment) in low_m.iter().zip(&m).chain(low_v.iter().zip(&v)) {
            assert_eq!(*stored, bf16::from_f32(*moment));
        }
    }

    #[test]
    fn without_bias_correction_the_first_update_is_smaller_by_the_corrections() {
        let settings = OptimizerSettings { bias_correction: false, epsilon: 0.0, ..SETTINGS };
        let (mut p, mut m, mut v) = ([0.0], [0.0_f32], [0.0_f32]);
        let by = Hyperparameters { learning_rate: 1.0, ..BY };
        AdamStep::new(&settings, ANY, 1, 1.0, by).update(p.iter_mut(), &mut m, &mut v, &[1.0]);
        let expected = (1.0 - 0.9_f32) / (1.0 - 0.999_f32).sqrt();
        assert_eq!(p, [-expected]);
    }
}
