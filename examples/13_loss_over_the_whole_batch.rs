//! Trains two maps by a contrastive loss over the batch of all ranks, on one rank and on four.
//!
//! `cargo run --example 13_loss_over_the_whole_batch`
//!
//! Every sample has to find its partner among those of the whole batch (InfoNCE; van den Oord et al., 2018). A rank
//! holds a part of the batch, so partners are exchanged between two calls and what flows back to them between two
//! others. Losses are the same however many ranks share the batch, but for the order in which sums are rounded.

#[path = "shared/print.rs"]
mod print;

use warpweft::model::{Collective, CollectiveKind};
use warpweft::prelude::*;

use print::println;

const SIZE: usize = 32;
const BATCH: usize = 32;
const STEPS: usize = 120;

/// Two weights; samples and partners of a rank in, its part of the loss out.
fn declare(ranks: usize) -> Result<StepProgram, DeclareError> {
    let mut model = Model::builder();
    let (ask, answer) = (
        model.sharded("ask", SIZE, SIZE, Format::NVFP4_2D)?,
        model.sharded("answer", SIZE, SIZE, Format::NVFP4_2D)?,
    );
    let mut program = StepProgram::builder("train", &model.build());
    let (own, all) = (SIZE * BATCH / ranks, SIZE * BATCH);
    let [x, y] = [program.input("x", own, ElementType::F32)?, program.input("y", own, ElementType::F32)?];
    let loss = program.output("loss", 1, ElementType::F32)?;
    let requested = program.activation("asked", own)?;
    let answers = program.activation("answers", own)?;
    let all_answers = program.activation("all_answers", all)?;
    let asked_gradient = program.activation("asked_gradient", own)?;
    let gradients_given = program.activation("gradients_given", all)?;
    let gradients_got = program.activation("gradients_got", all)?;

    let maps = program.call("map", Phase::Forward).reads(x).reads(y).writes(requested).writes(answers);
    maps.uses_dense(ask).uses_dense(answer).add()?;
    let gather = Collective::new(CollectiveKind::AllGather, answers, all_answers);
    program.collective("gather answers", Phase::Forward, gather)?;
    let compare = program.call("compare", Phase::Backward).reads(requested).reads(all_answers);
    compare.writes(asked_gradient).writes(gradients_given).writes(loss).add()?;
    // Back through a gather: every rank gets what all ranks found for its answers, and adds it up.
    let give_back = Collective::new(CollectiveKind::AllToAll, gradients_given, gradients_got);
    program.collective("give gradients back", Phase::Backward, give_back)?;
    let learn = program.call("learn", Phase::Backward).reads(x).reads(y);
    learn.reads(asked_gradient).reads(gradients_got).gradient(ask).gradient(answer).add()?;
    program.build_training()
}

/// A row of `rows`.
fn row(rows: &[f32], number: usize) -> &[f32] {
    &rows[SIZE * number..][..SIZE]
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Adds `factor` times `b` to `a`.
fn add(a: &mut [f32], factor: f32, b: &[f32]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += factor * b);
}

/// Runs the closures' calls; collectives need none.
fn run(call: &Call, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    match call.name.as_str() {
        "map" => map(context),
        "compare" => compare(context),
        "learn" => learn(context),
        other => Err(ComputeError::closure(format!("no closure is written for call `{other}`"))),
    }
}

fn map(context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    for (weight, input, output) in [("ask", "x", "asked"), ("answer", "y", "answers")] {
        let w = context.dense_named(weight)?;
        let samples = context.read_named::<f32>(input)?;
        let mut mapped = context.write_named::<f32>(output)?;
        for (mapped, sample) in mapped.chunks_exact_mut(SIZE).zip(samples.chunks_exact(SIZE)) {
            mapped.iter_mut().enumerate().for_each(|(at, value)| *value = dot(row(&w, at), sample));
        }
    }
    Ok(())
}

/// Cross entropy of each own question over all answers, and its gradients.
fn compare(context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let requested = context.read_named::<f32>("asked")?;
    let answers = context.read_named::<f32>("all_answers")?;
    let mut to_asked = context.write_named::<f32>("asked_gradient")?;
    let mut to_answers = context.write_named::<f32>("gradients_given")?;
    to_asked.fill(0.0);
    to_answers.fill(0.0);
    let own = requested.len() / SIZE;
    let mut sum = 0.0;
    for question in 0..own {
        let partner = context.rank().index() * own + question;
        let scores: Vec<f32> =
            (0..BATCH).map(|at| dot(row(&requested, question), row(&answers, at))).collect();
        let highest = scores.iter().copied().fold(f32::MIN, f32::max);
        let total: f32 = scores.iter().map(|score| (score - highest).exp()).sum();
        sum += total.ln() + highest - scores[partner];
        for (at, score) in scores.iter().enumerate() {
            let chance = (score - highest).exp() / total;
            let slope = (chance - f32::from(at == partner)) / own as f32; // of the mean over the rank's samples
            add(&mut to_asked[SIZE * question..][..SIZE], slope, row(&answers, at));
            add(&mut to_answers[SIZE * at..][..SIZE], slope, row(&requested, question));
        }
    }
    context.write_named::<f32>("loss")?[0] = sum / own as f32;
    Ok(())
}

fn learn(context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    for (weight, input, slopes) in [("ask", "x", "asked_gradient"), ("answer", "y", "gradients_got")] {
        let samples = context.read_named::<f32>(input)?;
        let slopes = context.read_named::<f32>(slopes)?;
        let mut gradient = context.gradient_named(weight)?;
        gradient.fill(0.0);
        for (number, slope) in slopes.chunks_exact(SIZE).enumerate() {
            let sample = row(&samples, number % (samples.len() / SIZE)); // those of one rank after another's
            for (gradient, slope) in gradient.chunks_exact_mut(SIZE).zip(slope) {
                add(gradient, *slope, sample);
            }
        }
    }
    Ok(())
}

/// Between -1 and 1.
fn noise(number: usize) -> f32 {
    ((number as f64 + 0.5).sin() * 43_758.547).fract() as f32
}

/// Samples of one step: a partner is its sample with the numbers in reverse order, and noise.
fn batch(step: usize) -> (Vec<f32>, Vec<f32>) {
    let first = 2 * BATCH * SIZE * (step + 1);
    let x: Vec<f32> = (0..BATCH * SIZE).map(|at| noise(first + at)).collect();
    let reversed = x.chunks_exact(SIZE).flat_map(|sample| sample.iter().rev());
    let y = reversed.enumerate().map(|(at, value)| value + 0.3 * noise(first + BATCH * SIZE + at)).collect();
    (x, y)
}

/// The loss of every step.
async fn train(ranks: usize) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let builder = Session::builder(Config::default(), |_| on_cpu(run)).program(declare(ranks)?);
    let builder = builder.initialize(|rows, masters| {
        let first = rows.first_element() + if rows.weight == "ask" { 0 } else { SIZE * SIZE };
        masters.iter_mut().enumerate().for_each(|(at, master)| *master = 0.1 * noise(first + at));
    });
    let mut session = builder.start_cpu(u32::try_from(ranks)?).await?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        session.set_learning_rate(0.02 * (1.0 - step as f32 / STEPS as f32))?;
        let (x, y) = batch(step);
        for rank in 0..ranks {
            let own = SIZE * BATCH / ranks * rank..SIZE * BATCH / ranks * (rank + 1);
            session.write_input("train", RankId::at(rank), "x", &x[own.clone()])?;
            session.write_input("train", RankId::at(rank), "y", &y[own])?;
        }
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
        losses.push(report.mean_output("loss")?);
    }
    session.close().await?;
    Ok(losses)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (one, four) = (train(1).await?, train(4).await?);
    println!("{BATCH} partners to choose from: without learning the loss is {:.3}", (BATCH as f32).ln());
    for step in (0..STEPS).step_by(30).chain([STEPS - 1]) {
        println!("step {step:3}  loss on one rank {:.4}  on four {:.4}", one[step], four[step]);
    }
    let apart = one.iter().zip(&four).map(|(one, four)| (one - four).abs()).fold(0.0, f32::max);
    println!("never further apart than {apart:.1e}");
    Ok(())
}
