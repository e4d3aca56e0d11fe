//! A weight of the plainest trainer, and all ways in which it is updated.
//!
//! Law: as of [`super::reference`]. A weight is one list of values, whole, and each update is written operation by
//! operation.

/// A weight.
pub(crate) struct Parameter {
    pub(crate) master: Vec<f32>,
    /// What is kept beside it, in which position counts.
    pub(crate) lists: [Vec<f32>; 2],
}

impl Parameter {
    /// AdamW with the defaults of the configuration but for the weight's own group, operation by operation as
    /// the specification writes it.
    pub(crate) fn update(&mut self, gradient: &[f32], step: i32, rate: f32, decay: f32) {
        let (beta1, beta2, epsilon) = (0.9f32, 0.999f32, 1e-8f32);
        let corrected = |beta: f32| (1.0 - f64::from(beta).powi(step)) as f32;
        let (c1, c2) = (corrected(beta1), corrected(beta2));
        let [exp_avg, exp_avg_sq] = &mut self.lists;
        for (at, gradient) in gradient.iter().enumerate() {
            let m = beta1 * exp_avg[at] + (1.0 - beta1) * gradient;
            let v = beta2 * exp_avg_sq[at] + ((1.0 - beta2) * gradient) * gradient;
            let update = (m / c1) / ((v / c2).sqrt() + epsilon);
            self.master[at] -= rate * (update + decay * self.master[at]);
            (exp_avg[at], exp_avg_sq[at]) = (m, v);
        }
    }

    /// Descent with a momentum.
    pub(crate) fn roll(&mut self, gradient: &[f32], rate: f32, decay: f32) {
        for (at, gradient) in gradient.iter().enumerate() {
            let m = 0.9f32 * self.lists[0][at] + gradient;
            self.master[at] -= rate * (m + decay * self.master[at]);
            self.lists[0][at] = m;
        }
    }

    /// Plain descent.
    pub(crate) fn descend(&mut self, gradient: &[f32], rate: f32, decay: f32) {
        for (master, gradient) in self.master.iter_mut().zip(gradient) {
            *master -= rate * (gradient + decay * *master);
        }
    }

    /// What a matrix is made of by a rule with so many lists: the gradient, its momentum, or two moments.
    pub(crate) fn prepare(&mut self, lists: u8, gradient: &[f32], step: i32) -> Vec<f32> {
        let (beta1, beta2) = (0.9f32, 0.999f32);
        let corrected = (1.0 - f64::from(beta1).powi(step)) as f32;
        let [first, second] = &mut self.lists;
        let of = |(at, g): (usize, &f32)| match lists {
            0 => *g,
            1 => {
                first[at] = 0.9f32 * first[at] + g;
                first[at]
            }
            _ => {
                first[at] = beta1 * first[at] + (1.0 - beta1) * g;
                second[at] = beta2 * second[at] + ((1.0 - beta2) * g) * g;
                first[at] / corrected + second[at]
            }
        };
        gradient.iter().enumerate().map(of).collect()
    }

    /// Descent by what became of the matrix, and a little by the gradient.
    pub(crate) fn descend_by(
        &mut self,
        lists: u8,
        (transformed, gradient): (&[f32], &[f32]),
        step: i32,
        rate: f32,
        decay: f32,
    ) {
        let beta2 = 0.999f32;
        let corrected = (1.0 - f64::from(beta2).powi(step)) as f32;
        let [first, second] = &mut self.lists;
        for (at, master) in self.master.iter_mut().enumerate() {
            let mut by = transformed[at] + 0.01 * gradient[at];
            if lists > 0 {
                first[at] += 0.1 * by;
            }
            if lists > 1 {
                second[at] = beta2 * second[at] + ((1.0 - beta2) * by) * by;
                by /= (second[at] / corrected).sqrt() + 1e-8;
            }
            *master -= rate * (by + decay * *master);
        }
    }
}

/// The rows of the matrix and the same from below, over the norm of all, for the weight of this number.
pub(crate) fn transformed(matrix: &[f32], columns: usize, number: usize) -> Vec<f32> {
    let mut squares = 0.0f32;
    matrix.iter().for_each(|value| squares += value * value);
    let norm = squares.sqrt().max(f32::MIN_POSITIVE);
    let from_below: Vec<f32> = matrix.chunks(columns).rev().flatten().copied().collect();
    let often = (number + 1) as f32;
    matrix.iter().zip(&from_below).map(|(value, other)| (often * value + other) / norm).collect()
}
