//! Trains two matrices by Muon and a bias by momentum, with the matrices on one rank and sharded over two.
//!
//! `cargo run --example 14_muon`
//!
//! Muon (Jordan et al., 2024) turns the momentum of a matrix into one whose singular values are all near 1, for which
//! it needs the matrix whole. Each rank keeps the momentum of its own rows. The library brings the rows of one matrix
//! together on one rank, of the next matrix of that size on another, and brings back what these ranks make of them.

#[path = "shared/print.rs"]
mod print;

use warpweft::prelude::*;
use warpweft::session::initial;

use print::println;

const WIDTH: usize = 32;
const HIDDEN: usize = 64;
const BATCH: usize = 32;
const STEPS: usize = 120;
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
        let found = newton_schulz(&Matrix { columns: weight.columns, values: matrix.to_vec() });
        context.transformed()?.copy_from_slice(&found.values);
        Ok(())
    }

    /// The rank's rows again: of matrices by what came back, of everything else by momentum alone.
    fn update(&mut self, context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        let factor = context.vote()?[0].factor();
        let rate = context.learning_rate()?[0] * context.learning_rate_scale();
        for weight in context.weights() {
            let mut master = context.master(weight.id)?;
            if weight.whole_matrix {
                // So that an element moves as far as AdamW would move it, whatever the shape (Liu et al., 2025).
                let reach = 0.2 * (weight.shape.rows.max(weight.shape.cols) as f32).sqrt();
                let rows = context.transformed(weight.id)?;
                for (p, step) in master.iter_mut().zip(rows.iter()) {
                    *p -= rate * (reach * step + context.weight_decay() * *p);
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

/// Row-major.
#[derive(Clone)]
struct Matrix {
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.columns)
    }

    fn transposed(&self) -> Self {
        let rows = self.values.len() / self.columns;
        let values = (0..self.columns).flat_map(|col| self.rows().map(move |row| row[col])).collect();
        Self { columns: rows, values }
    }

    /// `self · other`.
    fn times(&self, other: &Self) -> Self {
        let mut values = vec![0.0; self.values.len() / self.columns * other.columns];
        for (to, row) in values.chunks_exact_mut(other.columns).zip(self.rows()) {
            for (factor, line) in row.iter().zip(other.rows()) {
                add(to, *factor, line);
            }
        }
        Self { columns: other.columns, values }
    }

    fn scaled(mut self, factor: f32) -> Self {
        self.values.iter_mut().for_each(|value| *value *= factor);
        self
    }
}

/// Adds `factor` times `b` to `a`.
fn add(a: &mut [f32], factor: f32, b: &[f32]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += factor * b);
}

/// U Vᵀ of the matrix U S Vᵀ, roughly: five turns of X ← aX + b(XXᵀ)X + c(XXᵀ)²X take every singular value of a matrix
/// of norm 1 to between 0.7 and 1.2, unless it is tiny (Jordan et al., 2024).
fn newton_schulz(matrix: &Matrix) -> Matrix {
    let [a, b, c] = [3.4445, -4.775, 2.0315];
    let norm = matrix.values.iter().map(|value| value * value).sum::<f32>().sqrt();
    let is_tall = matrix.values.len() > matrix.columns * matrix.columns;
    let mut x = if is_tall { matrix.transposed() } else { matrix.clone() }.scaled(1.0 / (norm + 1e-7));
    for _ in 0..5 {
        let square = x.times(&x.transposed());
        let mut turn = square.times(&square).scaled(c);
        add(&mut turn.values, b, &square.values);
        let mut next = turn.times(&x);
        add(&mut next.values, a, &x.values);
        x = next;
    }
    if is_tall { x.transposed() } else { x }
}

/// Two matrices and a bias; a batch in, its loss out.
fn declare(config: &Config, ranks: usize) -> Result<StepProgram, Box<dyn std::error::Error>> {
    let mut model = Model::builder();
    let up = model.sharded("up", HIDDEN, WIDTH, Format::NVFP4_2D)?;
    let down = model.sharded("down", WIDTH, HIDDEN, Format::NVFP4_2D)?;
    let bias = model.replicated("bias", 1, HIDDEN)?;
    let model = config.apply_weight_rules(&model.build())?;
    let mut program = StepProgram::builder("train", &model);
    let x = program.input("x", BATCH / ranks * WIDTH, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let mut call = program.call("fit", Phase::Backward);
    for weight in [up, down, bias] {
        call = call.uses(weight, Orientation::Rowwise, Form::Dense).gradient(weight);
    }
    call.reads(x).writes(loss).add()?;
    Ok(program.build_training()?)
}

/// What is to be learned: every element of a sample is to be that of the sample read backwards, bent.
fn wanted(sample: &[f32]) -> impl Iterator<Item = f32> + '_ {
    sample.iter().rev().map(|value| value.tanh())
}

/// Loss ½|down · relu(up · x + bias) − wanted|² and its gradients, means over the rank's samples.
fn fit(context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let [up, down, bias] = ["up", "down", "bias"].map(|name| context.weight_named(name));
    let (up, down, bias) = (up?, down?, bias?);
    let dense = |weight| context.dense(weight, Orientation::Rowwise);
    let (u, d, b) = (dense(up)?, dense(down)?, dense(bias)?);
    let x = context.read::<f32>(context.buffer_named("x")?)?;
    let (mut du, mut dd, mut db) = (context.gradient(up)?, context.gradient(down)?, context.gradient(bias)?);
    [&mut du, &mut dd, &mut db].into_iter().for_each(|gradient| gradient.fill(0.0));
    let samples = x.len() / WIDTH;
    let mut sum = 0.0;
    for sample in x.chunks_exact(WIDTH) {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let lines = u.chunks_exact(WIDTH).zip(b.iter());
        let hidden: Vec<f32> = lines.map(|(row, bias)| (dot(row, sample) + bias).max(0.0)).collect();
        let mut back = vec![0.0; HIDDEN];
        for ((row, wanted), gradient) in
            d.chunks_exact(HIDDEN).zip(wanted(sample)).zip(dd.chunks_exact_mut(HIDDEN))
        {
            let error = dot(row, &hidden) - wanted;
            sum += 0.5 * error * error;
            add(gradient, error / samples as f32, &hidden);
            add(&mut back, error / samples as f32, row);
        }
        for (at, slope) in back.into_iter().enumerate().filter(|(at, _)| hidden[*at] > 0.0) {
            add(&mut du[WIDTH * at..][..WIDTH], slope, sample);
            db[at] += slope;
        }
    }
    context.write::<f32>(context.buffer_named("loss")?)?[0] = sum / samples as f32;
    Ok(())
}

/// Trains at a rate that falls to 0, and returns the last loss.
async fn train(ranks: usize) -> Result<f32, Box<dyn std::error::Error>> {
    /// The bias is no matrix.
    const RULES: &str = "[[weights]]\nmatch = \"*\"\nwhole_matrix = true\n\
                         [[weights]]\nmatch = \"bias\"\nwhole_matrix = false";
    let config = Config::from_toml_str(RULES, "rules.toml")?;
    let program = declare(&config, ranks)?;
    let closure = on_cpu(|_, context| fit(context));
    let builder = Session::builder(config, move |_| closure).optimizer(Muon).program(program);
    let builder = builder.initialize(initial::normal(1, 0.1));
    let mut session = builder.start_cpu(ranks as u32).await?;
    let mut loss = 0.0;
    for step in 0..STEPS {
        session.set_learning_rate(0.02 * (1.0 - step as f32 / STEPS as f32))?;
        let seed = |at: usize| ((step * BATCH * WIDTH + at) as f32 * 12.9898).sin() * 43758.547;
        let batch: Vec<f32> = (0..BATCH * WIDTH).map(|at| 2.0 * seed(at).rem_euclid(1.0) - 1.0).collect();
        for (rank, part) in batch.chunks_exact(batch.len() / ranks).enumerate() {
            session.write_input("train", RankId::at(rank), "x", part)?;
        }
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
        loss = report.mean_output("loss")?;
        if step % 40 == 0 || step + 1 == STEPS {
            println!("ranks {ranks}, step {step:3}  loss {loss:.5}");
        }
    }
    session.close().await?;
    Ok(loss)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [alone, together] = [train(1).await?, train(2).await?];
    println!("the loss is {alone:.3} on one rank and {together:.3} on two");
    Ok(())
}
