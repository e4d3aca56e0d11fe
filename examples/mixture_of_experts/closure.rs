//! The closures of the calls: embedding, head and losses here, router and experts in `experts`.
//!
//! Law: slopes are gradients of the mean over the rank's own tokens; the library takes the mean over the ranks.

use warpweft::prelude::*;

use crate::Context;
use crate::experts;
use crate::model::{CHOSEN, EXPERTS, Sizes, VOCABULARY, WIDTH};
use crate::ops;
use crate::product::{View, ViewMut};

/// How much of the loss it is that all experts are as busy.
pub(crate) const BALANCE: f32 = 0.01;

/// Runs one call.
pub(crate) fn run(sizes: Sizes, call: &Call, context: &Context<'_>) -> Result<(), ComputeError> {
    match call.name.as_str() {
        "embed" => embed(context),
        "route" => experts::route(sizes, context),
        "experts" => experts::forward(sizes, context),
        "head" => head(sizes, context),
        "experts backward" => experts::backward(sizes, context),
        "route backward" => experts::route_backward(sizes, context),
        "embed backward" => embed_backward(context),
        other => Err(ComputeError::closure(format!("no closure is written for call `{other}`"))),
    }
}

fn embed(context: &Context<'_>) -> Result<(), ComputeError> {
    let (table, tokens) = (context.dense_named("embedding")?, context.read_named::<u8>("tokens")?);
    let mut x = context.write_named::<f32>("x")?;
    for (row, token) in x.chunks_exact_mut(WIDTH).zip(tokens.iter()) {
        row.copy_from_slice(&table[*token as usize * WIDTH..][..WIDTH]);
    }
    Ok(())
}

fn embed_backward(context: &Context<'_>) -> Result<(), ComputeError> {
    let (slopes, tokens) = (context.read_named::<f32>("x slope")?, context.read_named::<u8>("tokens")?);
    let mut gradient = context.gradient_named("embedding")?;
    gradient.fill(0.0);
    for (slope, token) in slopes.chunks_exact(WIDTH).zip(tokens.iter()) {
        let row = &mut gradient[*token as usize * WIDTH..][..WIDTH];
        row.iter_mut().zip(slope).for_each(|(row, slope)| *row += slope);
    }
    Ok(())
}

/// Adds to each token what its experts made of it, each times its probability; the losses and their gradients.
fn head(sizes: Sizes, context: &Context<'_>) -> Result<(), ComputeError> {
    let (x, back) = (context.read_named::<f32>("x")?, context.read_named::<f32>("back")?);
    let (probabilities, chosen) =
        (context.read_named::<f32>("probabilities")?, context.read_named::<u32>("chosen")?);
    let places = context.read_named::<u32>("places")?;
    let made = |pick: usize| experts::row(places[pick]).map_or(&[0.0; WIDTH][..], |row| &back[row]);
    let by = |pick: usize| pick / CHOSEN * EXPERTS + chosen[pick] as usize;
    let mut y = x.to_vec();
    for pick in 0..chosen.len() {
        let token = &mut y[pick / CHOSEN * WIDTH..][..WIDTH];
        let probability = probabilities[by(pick)];
        token.iter_mut().zip(made(pick)).for_each(|(y, made)| *y += probability * made);
    }
    let mut slope = context.write_named::<f32>("slope")?;
    let loss = cross_entropy(sizes, &y, context, &mut slope)?;
    let mut pulls = context.write_named::<f32>("pulls on probabilities")?;
    let mut sent = context.write_named::<f32>("sent slopes")?;
    let balance = balance(sizes, &probabilities, context, &mut pulls)?;
    for (pick, place) in places.iter().enumerate() {
        let token = &slope[pick / CHOSEN * WIDTH..][..WIDTH];
        pulls[by(pick)] += ops::dot(token, made(pick));
        if let Some(row) = experts::row(*place) {
            let probability = probabilities[by(pick)];
            sent[row].iter_mut().zip(token).for_each(|(sent, slope)| *sent = probability * slope);
        }
    }
    context.write_named::<f32>("loss")?[0] = loss + balance;
    context.write_named::<f32>("balance")?[0] = balance;
    Ok(())
}

/// The mean over the rank's tokens, and its gradients.
fn cross_entropy(
    sizes: Sizes,
    y: &[f32],
    context: &Context<'_>,
    slope: &mut [f32],
) -> Result<f32, ComputeError> {
    let (head, targets) = (context.dense_named("head")?, context.read_named::<u8>("targets")?);
    let tokens = sizes.tokens;
    let (y, head) = (View::dense(y, tokens, WIDTH), View::dense(&head, VOCABULARY, WIDTH));
    let mut logits = vec![0.0; tokens * VOCABULARY];
    ViewMut::dense(&mut logits, tokens, VOCABULARY).write(1.0, y, head.transposed());
    let mut loss = 0.0;
    for (logits, target) in logits.chunks_exact_mut(VOCABULARY).zip(targets.iter()) {
        let target = *target as usize;
        let score = logits[target];
        loss += (ops::softmax(logits) - score) / tokens as f32;
        logits[target] -= 1.0;
        logits.iter_mut().for_each(|slope| *slope /= tokens as f32);
    }
    let logits = View::dense(&logits, tokens, VOCABULARY);
    ViewMut::dense(slope, tokens, WIDTH).write(1.0, logits, head);
    let mut gradient = context.gradient_named("head")?;
    ViewMut::dense(&mut gradient, VOCABULARY, WIDTH).write(1.0, logits.transposed(), y);
    Ok(loss)
}

/// The load-balance loss (Fedus, Zoph, Shazeer, JMLR 23, 2022, §2.2): experts × Σ share of picks × mean probability.
/// Shares are those of all ranks, so the mean of this over the ranks is the loss of the whole batch.
fn balance(
    sizes: Sizes,
    probabilities: &[f32],
    context: &Context<'_>,
    pulls: &mut [f32],
) -> Result<f32, ComputeError> {
    let load = context.read_named::<f32>("load")?;
    let all: f32 = load.iter().sum();
    let weight = |expert: usize| BALANCE * EXPERTS as f32 * load[expert] / all / sizes.tokens as f32;
    let mut loss = 0.0;
    for (at, (probability, pull)) in probabilities.iter().zip(pulls).enumerate() {
        *pull = weight(at % EXPERTS);
        loss += *pull * probability;
    }
    Ok(loss)
}
