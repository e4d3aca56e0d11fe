//! The closures of the calls: plain arithmetic on the parts of weights that a rank has.
//!
//! Law: shapes follow from [`Sizes`] and from what tensor parallelism leaves of a weight. Nothing here knows which part
//! a rank has, or how many ranks there are beside those of its group. Slopes are gradients of the mean over the tokens
//! of the group.

use warpweft::prelude::*;

use crate::attention;
use crate::model::{HALVES, Sizes, VOCABULARY};
use crate::ops;
use crate::product::{View, ViewMut};

type Context<'a> = ComputeContext<'a, CpuSurface>;

/// Runs one call.
pub(crate) fn run(sizes: Sizes, call: &Call, context: &Context<'_>) -> Result<(), ComputeError> {
    let other = || ComputeError::closure(format!("no closure is written for call `{}`", call.name));
    match call.name.as_str() {
        "embed" => return embed(sizes, context),
        "embed slopes" => return embed_slopes(sizes, context),
        "head" => return head(sizes, context),
        _ => {}
    }
    let (layer, name) = call.name.split_once('.').ok_or_else(other)?;
    let (half, part) = name.split_once('.').ok_or_else(other)?;
    let layer: usize = layer.parse().map_err(|_| other())?;
    let number = 2 * layer + usize::from(half == HALVES[1].0);
    match (half, part) {
        (_, "join") => join(sizes, number, &format!("{layer}.{half}"), context),
        (_, "join slopes") => join_slopes(sizes, number, &format!("{layer}.{half}"), context),
        ("attention", "forward") => attention::forward(sizes, layer, context),
        ("attention", "dgrad") => attention::dgrad(sizes, layer, context),
        ("attention", "wgrad") => attention::wgrad(sizes, layer, context),
        ("mlp", "forward") => mlp_forward(sizes, layer, context),
        ("mlp", "dgrad") => mlp_dgrad(sizes, layer, context),
        ("mlp", "wgrad") => mlp_wgrad(sizes, layer, context),
        _ => Err(other()),
    }
}

/// `out = x · weightᵀ`, for `weight[outputs, inputs]`.
pub(crate) fn linear(x: &[f32], weight: &[f32], (outputs, inputs): (usize, usize), out: &mut [f32]) {
    let tokens = x.len() / inputs;
    let x = View::dense(x, tokens, inputs);
    ViewMut::dense(out, tokens, outputs).write(1.0, x, View::dense(weight, outputs, inputs).transposed());
}

/// `out += slopes · weight`: the gradient of what went into a linear layer.
pub(crate) fn linear_dgrad(
    slopes: &[f32],
    weight: &[f32],
    (outputs, inputs): (usize, usize),
    out: &mut [f32],
) {
    let tokens = slopes.len() / outputs;
    let slopes = View::dense(slopes, tokens, outputs);
    ViewMut::dense(out, tokens, inputs).add(slopes, View::dense(weight, outputs, inputs));
}

/// `out = slopesᵀ · x`: the gradient of its weight.
pub(crate) fn linear_wgrad(slopes: &[f32], x: &[f32], (outputs, inputs): (usize, usize), out: &mut [f32]) {
    let tokens = x.len() / inputs;
    let slopes = View::dense(slopes, tokens, outputs).transposed();
    ViewMut::dense(out, outputs, inputs).write(1.0, slopes, View::dense(x, tokens, inputs));
}

fn embed(sizes: Sizes, context: &Context<'_>) -> Result<(), ComputeError> {
    let table = context.dense_named("embedding")?;
    let tokens = context.read_named::<u32>("tokens")?;
    let mut x = context.write_named::<f32>("x.0")?;
    for (row, token) in x.chunks_exact_mut(sizes.width).zip(tokens.iter()) {
        row.copy_from_slice(&table[*token as usize * sizes.width..][..sizes.width]);
    }
    ops::normalize(&x, &vec![1.0; sizes.width], &mut context.write_named::<f32>("normed.0")?);
    Ok(())
}

fn embed_slopes(sizes: Sizes, context: &Context<'_>) -> Result<(), ComputeError> {
    let (first, ..) = HALVES[0];
    let slopes = context.read_named::<f32>(&format!("0.{first}.slope"))?;
    let tokens = context.read_named::<u32>("tokens")?;
    let mut gradient = context.gradient_named("embedding")?;
    gradient.fill(0.0);
    for (slope, token) in slopes.chunks_exact(sizes.width).zip(tokens.iter()) {
        let row = &mut gradient[*token as usize * sizes.width..][..sizes.width];
        row.iter_mut().zip(slope).for_each(|(row, slope)| *row += slope);
    }
    Ok(())
}

/// Adds to the residual stream the sum of what all ranks had for this rank's tokens.
fn join(sizes: Sizes, number: usize, name: &str, context: &Context<'_>) -> Result<(), ComputeError> {
    let before = context.read_named::<f32>(&format!("x.{number}"))?;
    let got = context.read_named::<f32>(&format!("{name}.got"))?;
    let mut x = context.write_named::<f32>(&format!("x.{}", number + 1))?;
    x.iter_mut().zip(before.iter().zip(got.iter())).for_each(|(x, (before, got))| *x = before + got);
    if number + 1 < HALVES.len() * sizes.layers {
        let mut normed = context.write_named::<f32>(&format!("normed.{}", number + 1))?;
        ops::normalize(&x, &vec![1.0; sizes.width], &mut normed);
    }
    Ok(())
}

/// The same of gradients, back through the norm.
fn join_slopes(sizes: Sizes, number: usize, name: &str, context: &Context<'_>) -> Result<(), ComputeError> {
    let before = context.read_named::<f32>(&format!("x.{number}"))?;
    let after = match number + 1 == 2 * sizes.layers {
        true => context.read_named::<f32>("slope.head")?,
        false => {
            let (half, ..) = HALVES[(number + 1) % 2];
            context.read_named::<f32>(&format!("{}.{half}.slope", number.div_ceil(2)))?
        }
    };
    let got = context.read_named::<f32>(&format!("{name}.slopes got"))?;
    let mut sum = got.to_vec();
    let mut slope = context.write_named::<f32>(&format!("{name}.slope"))?;
    slope.copy_from_slice(&after);
    ops::normalize_backward(&before, &vec![1.0; sizes.width], &mut sum, &mut slope, None);
    Ok(())
}

fn mlp_forward(sizes: Sizes, layer: usize, context: &Context<'_>) -> Result<(), ComputeError> {
    let (hidden, width) = (sizes.own_hidden(), sizes.width);
    let x = context.read_named::<f32>(&format!("{layer}.mlp.input"))?;
    let mut inner = vec![0.0; sizes.tokens() * hidden];
    linear(&x, &context.dense_named(&format!("{layer}.up"))?, (hidden, width), &mut inner);
    let mut active = vec![0.0; inner.len()];
    ops::gelu(&inner, &mut active);
    let down = context.dense_named(&format!("{layer}.down"))?;
    linear(&active, &down, (width, hidden), &mut context.write_named::<f32>(&format!("{layer}.mlp.parts"))?);
    Ok(())
}

fn mlp_dgrad(sizes: Sizes, layer: usize, context: &Context<'_>) -> Result<(), ComputeError> {
    let (hidden, width) = (sizes.own_hidden(), sizes.width);
    let x = context.read_named::<f32>(&format!("{layer}.mlp.input"))?;
    let slopes = context.read_named::<f32>(&format!("{layer}.mlp.slopes"))?;
    let up = context.dense_named(&format!("{layer}.up"))?;
    let mut inner = vec![0.0; sizes.tokens() * hidden];
    linear(&x, &up, (hidden, width), &mut inner);
    let mut kept = context.write_named::<f32>(&format!("{layer}.mlp.kept"))?;
    let (active, inner_slopes) = kept.split_at_mut(sizes.tokens() * hidden);
    inner_slopes.fill(0.0);
    linear_dgrad(&slopes, &context.dense_named(&format!("{layer}.down"))?, (width, hidden), inner_slopes);
    ops::gelu_backward(&inner, active, inner_slopes);
    let mut parts = context.write_named::<f32>(&format!("{layer}.mlp.slope parts"))?;
    parts.fill(0.0);
    linear_dgrad(inner_slopes, &up, (hidden, width), &mut parts);
    Ok(())
}

fn mlp_wgrad(sizes: Sizes, layer: usize, context: &Context<'_>) -> Result<(), ComputeError> {
    let (hidden, width) = (sizes.own_hidden(), sizes.width);
    let x = context.read_named::<f32>(&format!("{layer}.mlp.input"))?;
    let slopes = context.read_named::<f32>(&format!("{layer}.mlp.slopes"))?;
    let kept = context.read_named::<f32>(&format!("{layer}.mlp.kept"))?;
    let (active, inner_slopes) = kept.split_at(sizes.tokens() * hidden);
    let mut up = context.gradient_named(&format!("{layer}.up"))?;
    linear_wgrad(inner_slopes, &x, (hidden, width), &mut up);
    let mut down = context.gradient_named(&format!("{layer}.down"))?;
    linear_wgrad(&slopes, active, (width, hidden), &mut down);
    Ok(())
}

/// Cross-entropy of the rank's own tokens, and its gradients.
fn head(sizes: Sizes, context: &Context<'_>) -> Result<(), ComputeError> {
    let width = sizes.width;
    let (weight, gain) = (context.dense_named("head")?, context.dense_named("gain")?);
    let x = context.read_named::<f32>(&format!("x.{}", 2 * sizes.layers))?;
    let targets = context.read_named::<u32>("targets")?;
    let mut normed = vec![0.0; x.len()];
    ops::normalize(&x, &gain, &mut normed);
    let mut logits = vec![0.0; targets.len() * VOCABULARY];
    linear(&normed, &weight, (VOCABULARY, width), &mut logits);
    let mut sum = 0.0;
    for (row, target) in logits.chunks_exact_mut(VOCABULARY).zip(targets.iter()) {
        let right = row[*target as usize];
        sum += ops::softmax(row) - right;
        row[*target as usize] -= 1.0;
        row.iter_mut().for_each(|slope| *slope /= sizes.tokens() as f32);
    }
    context.write_named::<f32>("loss")?[0] = sum / targets.len() as f32;
    linear_wgrad(&logits, &normed, (VOCABULARY, width), &mut context.gradient_named("head")?);
    let mut slopes = vec![0.0; x.len()];
    linear_dgrad(&logits, &weight, (VOCABULARY, width), &mut slopes);
    let mut out = context.write_named::<f32>("slope.head")?;
    out.fill(0.0);
    let mut gradient = context.gradient_named("gain")?;
    ops::normalize_backward(&x, &gain, &mut slopes, &mut out, Some(&mut gradient));
    Ok(())
}
