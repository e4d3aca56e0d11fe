//! The router and the experts.
//!
//! Law: a slot is read up to its count. Slots for a rank lie together in the order of its experts, and so do slots from
//! a rank: slot `s` that a rank fills is for expert `s`, and slot `s` that it gets is for its own expert `s % own`.

use std::ops::Range;

use warpweft::prelude::*;

use crate::Context;
use crate::model::{CHOSEN, EXPERTS, HIDDEN, Sizes, WIDTH};
use crate::ops;
use crate::product::{View, ViewMut};

/// The place of a pick for which its slot has no room; then the step is skipped, as the counts say more than the
/// capacity.
const NO_PLACE: u32 = u32::MAX;

/// Where the features of a place are in all slots.
pub(crate) fn row(place: u32) -> Option<Range<usize>> {
    (place != NO_PLACE).then(|| place as usize * WIDTH..(place as usize + 1) * WIDTH)
}

pub(crate) fn route(sizes: Sizes, context: &Context<'_>) -> Result<(), ComputeError> {
    let (x, router) = (context.read_named::<f32>("x")?, context.dense_named("router")?);
    let mut probabilities = context.write_named::<f32>("probabilities")?;
    let mut chosen = context.write_named::<u32>("chosen")?;
    let mut places = context.write_named::<u32>("places")?;
    let mut picks = context.write_named::<f32>("picks")?;
    let mut given = context.write_named::<u32>("given")?;
    let mut sent = context.write_named::<f32>("sent")?;
    picks.fill(0.0);
    given.fill(0);
    for ((x, probabilities), chosen) in x
        .chunks_exact(WIDTH)
        .zip(probabilities.chunks_exact_mut(EXPERTS))
        .zip(chosen.chunks_exact_mut(CHOSEN))
    {
        for (probability, row) in probabilities.iter_mut().zip(router.chunks_exact(WIDTH)) {
            *probability = ops::dot(x, row);
        }
        ops::softmax(probabilities);
        let mut order: Vec<u32> = (0..EXPERTS as u32).collect();
        order.sort_by(|one, other| probabilities[*other as usize].total_cmp(&probabilities[*one as usize]));
        chosen.copy_from_slice(&order[..CHOSEN]);
    }
    for (pick, (place, expert)) in places.iter_mut().zip(chosen.iter()).enumerate() {
        let count = &mut given[*expert as usize];
        let room = (*count as usize) < sizes.capacity;
        *place = if room { *expert * sizes.capacity as u32 + *count } else { NO_PLACE };
        *count += 1;
        picks[*expert as usize] += 1.0;
        if let Some(row) = row(*place) {
            sent[row].copy_from_slice(&x[pick / CHOSEN * WIDTH..][..WIDTH]);
        }
    }
    Ok(())
}

/// The filled rows of each slot: the rank's own expert, and where they are.
fn filled(sizes: Sizes, taken: &[u32]) -> impl Iterator<Item = (usize, Range<usize>)> {
    taken.iter().enumerate().filter(|(_, count)| **count > 0).map(move |(slot, count)| {
        let begin = slot * sizes.capacity * WIDTH;
        (slot % sizes.own_experts(), begin..begin + *count as usize * WIDTH)
    })
}

/// What an expert makes of rows: `down · gelu(up · x)`. Returns what it had before the activation.
fn apply(x: &[f32], [up, down]: [&[f32]; 2], out: &mut [f32]) -> Vec<f32> {
    let rows = x.len() / WIDTH;
    let mut inner = vec![0.0; rows * HIDDEN];
    let up = View::dense(up, HIDDEN, WIDTH).transposed();
    ViewMut::dense(&mut inner, rows, HIDDEN).write(1.0, View::dense(x, rows, WIDTH), up);
    let mut active = vec![0.0; inner.len()];
    ops::gelu(&inner, &mut active);
    let down = View::dense(down, WIDTH, HIDDEN).transposed();
    ViewMut::dense(out, rows, WIDTH).write(1.0, View::dense(&active, rows, HIDDEN), down);
    inner
}

pub(crate) fn forward(sizes: Sizes, context: &Context<'_>) -> Result<(), ComputeError> {
    let (inputs, taken) = (context.read_named::<f32>("inputs")?, context.read_named::<u32>("taken")?);
    let mut made = context.write_named::<f32>("made")?;
    for (expert, rows) in filled(sizes, &taken) {
        let up = context.dense_named(&format!("experts.{expert}.up"))?;
        let down = context.dense_named(&format!("experts.{expert}.down"))?;
        apply(&inputs[rows.clone()], [&up, &down], &mut made[rows]);
    }
    Ok(())
}

/// Gradients of the rank's experts, of all tokens that reached them. An expert without any has zeros.
pub(crate) fn backward(sizes: Sizes, context: &Context<'_>) -> Result<(), ComputeError> {
    let (inputs, taken) = (context.read_named::<f32>("inputs")?, context.read_named::<u32>("taken")?);
    let slopes = context.read_named::<f32>("slopes")?;
    let mut made = context.write_named::<f32>("made slopes")?;
    for expert in 0..sizes.own_experts() {
        let names = ["up", "down"].map(|name| format!("experts.{expert}.{name}"));
        let (up, down) = (context.dense_named(&names[0])?, context.dense_named(&names[1])?);
        let (mut to_up, mut to_down) =
            (context.gradient_named(&names[0])?, context.gradient_named(&names[1])?);
        to_up.fill(0.0);
        to_down.fill(0.0);
        let own = filled(sizes, &taken).filter(|(of, _)| *of == expert);
        for (_, range) in own {
            let (x, slope, rows) = (&inputs[range.clone()], &slopes[range.clone()], range.len() / WIDTH);
            let inner = apply(x, [&up, &down], &mut vec![0.0; range.len()]);
            let (slope, x) = (View::dense(slope, rows, WIDTH), View::dense(x, rows, WIDTH));
            let mut to_inner = vec![0.0; inner.len()];
            ViewMut::dense(&mut to_inner, rows, HIDDEN).write(1.0, slope, View::dense(&down, WIDTH, HIDDEN));
            let mut active = vec![0.0; inner.len()];
            ops::gelu_backward(&inner, &mut active, &mut to_inner);
            let (active, to_inner) =
                (View::dense(&active, rows, HIDDEN), View::dense(&to_inner, rows, HIDDEN));
            ViewMut::dense(&mut to_down, WIDTH, HIDDEN).add(slope.transposed(), active);
            ViewMut::dense(&mut to_up, HIDDEN, WIDTH).add(to_inner.transposed(), x);
            let up = View::dense(&up, HIDDEN, WIDTH);
            ViewMut::dense(&mut made[range], rows, WIDTH).write(1.0, to_inner, up);
        }
    }
    Ok(())
}

/// Back through the softmax of the router, and together what flows back to a token: by the residual stream, by its
/// experts and by the router.
pub(crate) fn route_backward(sizes: Sizes, context: &Context<'_>) -> Result<(), ComputeError> {
    let (x, router) = (context.read_named::<f32>("x")?, context.dense_named("router")?);
    let probabilities = context.read_named::<f32>("probabilities")?;
    let (pulls, places) =
        (context.read_named::<f32>("pulls on probabilities")?, context.read_named::<u32>("places")?);
    let slopes = context.read_named::<f32>("slopes back")?;
    let mut to_x = context.write_named::<f32>("x slope")?;
    to_x.copy_from_slice(&context.read_named::<f32>("slope")?);
    for (pick, place) in places.iter().enumerate() {
        let token = &mut to_x[pick / CHOSEN * WIDTH..][..WIDTH];
        let came = row(*place).map_or(&[][..], |row| &slopes[row]);
        token.iter_mut().zip(came).for_each(|(to, came)| *to += came);
    }
    let mut scores = vec![0.0; probabilities.len()];
    for ((scores, own), pulls) in scores
        .chunks_exact_mut(EXPERTS)
        .zip(probabilities.chunks_exact(EXPERTS))
        .zip(pulls.chunks_exact(EXPERTS))
    {
        let mean = ops::dot(own, pulls);
        scores
            .iter_mut()
            .zip(own.iter().zip(pulls))
            .for_each(|(score, (own, pull))| *score = own * (pull - mean));
    }
    let tokens = sizes.tokens;
    let scores = View::dense(&scores, tokens, EXPERTS);
    ViewMut::dense(&mut to_x, tokens, WIDTH).add(scores, View::dense(&router, EXPERTS, WIDTH));
    let mut to_router = context.gradient_named("router")?;
    let x = View::dense(&x, tokens, WIDTH);
    ViewMut::dense(&mut to_router, EXPERTS, WIDTH).write(1.0, scores.transposed(), x);
    Ok(())
}
