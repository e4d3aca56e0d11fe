//! Trains two matrices by Muon and a bias by momentum, with the matrices on one rank and sharded over two.
//!
//! `cargo run --example 14_muon`
//!
//! Muon (Jordan et al., 2024) turns the momentum of a matrix into one whose singular values are all near 1, for which
//! it needs the matrix whole. Each rank keeps the momentum of its own rows. The library brings the rows of one matrix
//! together on one rank, of the next matrix of that size on another, and brings back what these ranks make of them.

#[path = "shared/print.rs"]
mod print;
#[path = "shared/two_layers.rs"]
mod two_layers;

use ndarray::{Array2, ArrayView2};
use warpweft::compute::{PrepareContext, TransformContext};
use warpweft::prelude::*;

use print::println;
use two_layers::{declare, fit, train};

const KEEPS: f32 = 0.95;

#[derive(Clone)]
struct Muon;

impl Optimizer<CpuSurface> for Muon {
    fn name(&self) -> &'static str {
        "Muon"
    }

    fn states(&self) -> &'static [&'static str] {
        &["momentum"]
    }

    fn takes_whole_matrices(&self) -> bool {
        true
    }

    /// The rank's rows of what the matrix is made of: momentum, looked ahead by a step (Nesterov).
    fn prepare(&mut self, context: &PrepareContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        let factor = context.vote()?[0].factor(); // unscales and clips
        for weight in context.weights() {
            let (gradient, mut rows) = (context.main_grad(weight.id)?, context.prepared(weight.id)?);
            let mut momentum = context.state(weight.id, "momentum")?;
            for ((row, m), g) in rows.iter_mut().zip(momentum.iter_mut()).zip(gradient.iter()) {
                let g = factor * g;
                *m = KEEPS * *m + g;
                *row = g + KEEPS * *m;
            }
        }
        Ok(())
    }

    /// The matrix, on the one rank that has it whole.
    fn transform(&mut self, context: &TransformContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        let (weight, matrix) = (context.weight(), context.matrix()?);
        let matrix = ArrayView2::from_shape((weight.rows, weight.columns), &matrix[..]);
        let found = newton_schulz(matrix.map_err(ComputeError::closure)?);
        context.transformed()?.iter_mut().zip(&found).for_each(|(to, value)| *to = *value);
        Ok(())
    }

    /// The rank's rows again: of matrices by what came back, of everything else by momentum alone.
    fn update(&mut self, context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        let factor = context.vote()?[0].factor();
        for weight in context.weights() {
            let Hyperparameters { learning_rate: rate, weight_decay, .. } =
                context.hyperparameters(weight.id)?[0];
            let mut master = context.master(weight.id)?;
            if weight.whole_matrix {
                // So that an element moves as far as AdamW would move it, whatever the shape (Liu et al., 2025).
                let reach = 0.2 * (weight.shape.rows.max(weight.shape.cols) as f32).sqrt();
                let rows = context.transformed(weight.id)?;
                for (p, step) in master.iter_mut().zip(rows.iter()) {
                    *p -= rate * (reach * step + weight_decay * *p);
                }
            } else {
                let (gradient, mut momentum) =
                    (context.main_grad(weight.id)?, context.state(weight.id, "momentum")?);
                for ((p, m), g) in master.iter_mut().zip(momentum.iter_mut()).zip(gradient.iter()) {
                    *m = KEEPS * *m + factor * g;
                    *p -= rate * *m;
                }
            }
        }
        Ok(())
    }
}

/// U Vᵀ of the matrix U S Vᵀ, roughly: five turns of X ← aX + b(XXᵀ)X + c(XXᵀ)²X take every singular value of a matrix
/// of norm 1 to between 0.7 and 1.2, unless it is tiny (Jordan et al., 2024).
fn newton_schulz(matrix: ArrayView2<'_, f32>) -> Array2<f32> {
    let [a, b, c] = [3.4445, -4.775, 2.0315];
    let norm = matrix.iter().map(|value| value * value).sum::<f32>().sqrt();
    let is_tall = matrix.nrows() > matrix.ncols();
    let mut x = if is_tall { matrix.reversed_axes() } else { matrix }.to_owned() / (norm + 1e-7);
    for _ in 0..5 {
        let square = x.dot(&x.t());
        x = a * &x + (b * &square + c * square.dot(&square)).dot(&x);
    }
    if is_tall { x.reversed_axes() } else { x }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// The bias is no matrix.
    const RULES: &str = "[[weights]]\nmatch = \"*\"\nwhole_matrix = true\n\
                         [[weights]]\nmatch = \"bias\"\nwhole_matrix = false";
    let mut losses = Vec::new();
    for ranks in [1, 2] {
        let config = Config::from_toml_str(RULES, "rules.toml")?;
        let program = declare(&config, ranks)?;
        let builder = Session::builder(config, |_| on_cpu(|_, context| fit(context))).optimizer(Muon);
        losses.push(train(builder.program(program), ranks).await?);
    }
    println!("the loss is {:.3} on one rank and {:.3} on two", losses[0], losses[1]);
    Ok(())
}
