//! Causal self-attention over a rank's own heads.
//!
//! Law: heads never meet, so a rank of a tensor-parallel group has all that its heads need. What forward computed is
//! computed again in backward.

use warpweft::prelude::*;

use crate::closure::{linear, linear_dgrad, linear_wgrad};
use crate::model::Sizes;
use crate::ops;

type Context<'a> = ComputeContext<'a, CpuSurface>;

/// Query, key and value of all tokens, each `[tokens, own width]`.
const QKV: [&str; 3] = ["query", "key", "value"];

fn project(sizes: Sizes, layer: usize, context: &Context<'_>) -> Result<[Vec<f32>; 3], ComputeError> {
    let (own, width) = (sizes.own_heads_width(), sizes.width);
    let x = context.read_named::<f32>(&format!("{layer}.attention.input"))?;
    let mut all = [const { Vec::new() }; 3];
    for (name, out) in QKV.iter().zip(&mut all) {
        out.resize(sizes.tokens() * own, 0.0);
        linear(&x, &context.dense_named(&format!("{layer}.{name}"))?, (own, width), out);
    }
    Ok(all)
}

/// One head of one text: the tokens of the text, and where its features are in a token's.
fn heads(sizes: Sizes) -> impl Iterator<Item = (usize, usize)> {
    let each = sizes.width / sizes.heads;
    (0..sizes.texts).flat_map(move |text| {
        (0..sizes.own_heads_width() / each).map(move |head| (text * sizes.sequence, head * each))
    })
}

/// The weights with which token `at` of a head looks at those up to itself.
fn looks(sizes: Sizes, qkv: &[Vec<f32>; 3], (first, feature): (usize, usize), at: usize) -> Vec<f32> {
    let (each, own) = (sizes.width / sizes.heads, sizes.own_heads_width());
    let of = |values: &[f32], token: usize| -> std::ops::Range<usize> {
        let begin = (first + token) * own + feature;
        debug_assert!(begin + each <= values.len());
        begin..begin + each
    };
    let query = &qkv[0][of(&qkv[0], at)];
    let scale = 1.0 / (each as f32).sqrt();
    let score = |token: usize| scale * ops::dot(query, &qkv[1][of(&qkv[1], token)]);
    let mut scores: Vec<f32> = (0..=at).map(score).collect();
    ops::softmax(&mut scores);
    scores
}

/// What the heads mixed of the values, `[tokens, own width]`.
fn mix(sizes: Sizes, qkv: &[Vec<f32>; 3], mixed: &mut [f32]) {
    let (each, own) = (sizes.width / sizes.heads, sizes.own_heads_width());
    mixed.fill(0.0);
    for head in heads(sizes) {
        for at in 0..sizes.sequence {
            let to = (head.0 + at) * own + head.1;
            for (token, weight) in looks(sizes, qkv, head, at).into_iter().enumerate() {
                let from = (head.0 + token) * own + head.1;
                let value = &qkv[2][from..from + each];
                mixed[to..to + each]
                    .iter_mut()
                    .zip(value)
                    .for_each(|(mixed, value)| *mixed += weight * value);
            }
        }
    }
}

pub(crate) fn forward(sizes: Sizes, layer: usize, context: &Context<'_>) -> Result<(), ComputeError> {
    let own = sizes.own_heads_width();
    let qkv = project(sizes, layer, context)?;
    let mut mixed = vec![0.0; sizes.tokens() * own];
    mix(sizes, &qkv, &mut mixed);
    let out = context.dense_named(&format!("{layer}.out"))?;
    let mut parts = context.write_named::<f32>(&format!("{layer}.attention.parts"))?;
    linear(&mixed, &out, (sizes.width, own), &mut parts);
    Ok(())
}

/// Keeps what the heads mixed, and the slopes of query, key and value.
pub(crate) fn dgrad(sizes: Sizes, layer: usize, context: &Context<'_>) -> Result<(), ComputeError> {
    let (own, width, each) = (sizes.own_heads_width(), sizes.width, sizes.width / sizes.heads);
    let slopes = context.read_named::<f32>(&format!("{layer}.attention.slopes"))?;
    let qkv = project(sizes, layer, context)?;
    let mut kept = context.write_named::<f32>(&format!("{layer}.attention.kept"))?;
    let (mixed, to_qkv) = kept.split_at_mut(sizes.tokens() * own);
    mix(sizes, &qkv, mixed);
    let mut to_mixed = vec![0.0; sizes.tokens() * own];
    linear_dgrad(&slopes, &context.dense_named(&format!("{layer}.out"))?, (width, own), &mut to_mixed);
    to_qkv.fill(0.0);
    let (to_query, rest) = to_qkv.split_at_mut(sizes.tokens() * own);
    let (to_key, to_value) = rest.split_at_mut(sizes.tokens() * own);
    let scale = 1.0 / (each as f32).sqrt();
    for head in heads(sizes) {
        let of = |token: usize| (head.0 + token) * own + head.1..(head.0 + token) * own + head.1 + each;
        for at in 0..sizes.sequence {
            let weights = looks(sizes, &qkv, head, at);
            let slope = &to_mixed[of(at)];
            let pulls: Vec<f32> = (0..=at).map(|token| ops::dot(slope, &qkv[2][of(token)])).collect();
            let mean = ops::dot(&weights, &pulls);
            for (token, (weight, pull)) in weights.iter().zip(&pulls).enumerate() {
                let score = scale * weight * (pull - mean);
                let add = |to: &mut [f32], factor: f32, values: &[f32]| {
                    to.iter_mut().zip(values).for_each(|(to, value)| *to += factor * value);
                };
                add(&mut to_value[of(token)], *weight, slope);
                add(&mut to_query[of(at)], score, &qkv[1][of(token)]);
                add(&mut to_key[of(token)], score, &qkv[0][of(at)]);
            }
        }
    }
    let mut parts = context.write_named::<f32>(&format!("{layer}.attention.slope parts"))?;
    parts.fill(0.0);
    for (name, slopes) in QKV.iter().zip([&*to_query, &*to_key, &*to_value]) {
        linear_dgrad(slopes, &context.dense_named(&format!("{layer}.{name}"))?, (own, width), &mut parts);
    }
    Ok(())
}

pub(crate) fn wgrad(sizes: Sizes, layer: usize, context: &Context<'_>) -> Result<(), ComputeError> {
    let (own, width) = (sizes.own_heads_width(), sizes.width);
    let x = context.read_named::<f32>(&format!("{layer}.attention.input"))?;
    let slopes = context.read_named::<f32>(&format!("{layer}.attention.slopes"))?;
    let kept = context.read_named::<f32>(&format!("{layer}.attention.kept"))?;
    let mut of_qkv = kept.chunks_exact(sizes.tokens() * own);
    let mixed = of_qkv.next().unwrap_or_default();
    linear_wgrad(&slopes, mixed, (width, own), &mut context.gradient_named(&format!("{layer}.out"))?);
    for (name, slopes) in QKV.iter().zip(of_qkv) {
        linear_wgrad(slopes, &x, (own, width), &mut context.gradient_named(&format!("{layer}.{name}"))?);
    }
    Ok(())
}
