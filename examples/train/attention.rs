//! `y = x + output(attention(qkv(norm(x))))`: causal, multi-head, rotary positions.
//!
//! Law: position `t` sees positions `0..=t` of its own text and nothing else. Forward keeps queries,
//! keys and values (already rotated), each row's log-sum-exp and the mixed values; backward computes
//! the norm and the probabilities again.

use crate::model::{Config, Scratch};
use crate::ops::{dot, exp, normalize, normalize_backward, softmax};
use crate::product::{View, ViewMut};

/// The weights of the call, or their gradients: full and in the same shapes.
///
/// Backward takes the matrices transposed, but writes gradients that are not. A frozen weight has none.
#[derive(Clone, Copy)]
pub(crate) struct Weights<T> {
    /// `[width]`.
    pub(crate) gain: T,
    /// `[3 · width, width]`: the rows of queries, of keys, of values, head by head in each.
    pub(crate) qkv: T,
    /// `[width, width]`.
    pub(crate) output: T,
}

/// What forward keeps for backward.
#[derive(Clone, Copy)]
pub(crate) struct Kept<T> {
    /// `[tokens, 3 · width]`: queries and keys, rotated, then values.
    pub(crate) rotated: T,
    /// `[batch, heads, sequence]`: of each row of scores.
    pub(crate) logsumexp: T,
    /// `[tokens, width]`: the heads' outputs side by side.
    pub(crate) mixed: T,
}

/// Reads `x`, writes `y` and `keep`; both streams are `[tokens, width]`.
pub(crate) fn forward(
    config: &Config,
    x: &[f32],
    weights: Weights<&[f32]>,
    keep: Kept<&mut [f32]>,
    y: &mut [f32],
    scratch: &mut Scratch,
) {
    let (tokens, width) = (config.tokens(), config.width);
    normalize(x, weights.gain, &mut scratch.normalized);
    ViewMut::dense(keep.rotated, tokens, 3 * width).write(
        1.0,
        View::dense(&scratch.normalized, tokens, width),
        View::dense(weights.qkv, 3 * width, width).transposed(),
    );
    rotate(config, &scratch.rotations, keep.rotated, 1.0);
    for (head, logsumexp) in heads(config).zip(keep.logsumexp.chunks_exact_mut(config.sequence)) {
        head.scores(keep.rotated, &mut scratch.probabilities);
        let rows = scratch.probabilities.chunks_exact_mut(config.sequence);
        for (position, (row, logsumexp)) in rows.zip(logsumexp).enumerate() {
            let (seen, hidden) = row.split_at_mut(position + 1);
            *logsumexp = softmax(seen);
            hidden.fill(0.0);
        }
        let probabilities = View::dense(&scratch.probabilities, config.sequence, config.sequence);
        head.mixed_mut(keep.mixed).write(1.0, probabilities, head.part(keep.rotated, VALUE));
    }
    y.copy_from_slice(x);
    ViewMut::dense(y, tokens, width)
        .add(View::dense(keep.mixed, tokens, width), View::dense(weights.output, width, width).transposed());
}

/// `residual` holds the gradient of `y` and becomes the gradient of `x`; `weights` are transposed.
pub(crate) fn backward(
    config: &Config,
    x: &[f32],
    weights: Weights<&[f32]>,
    kept: Kept<&[f32]>,
    gradients: Weights<Option<&mut [f32]>>,
    residual: &mut [f32],
    scratch: &mut Scratch,
) {
    let (tokens, width, sequence) = (config.tokens(), config.width, config.sequence);
    let dy = View::dense(residual, tokens, width);
    if let Some(gradient) = gradients.output {
        let mixed = View::dense(kept.mixed, tokens, width);
        ViewMut::dense(gradient, width, width).write(1.0, dy.transposed(), mixed);
    }
    let output = View::dense(weights.output, width, width).transposed();
    ViewMut::dense(&mut scratch.gradient, tokens, width).write(1.0, dy, output);

    let Scratch { probabilities, probability_gradient, qkv_gradient, .. } = scratch;
    for (head, logsumexp) in heads(config).zip(kept.logsumexp.chunks_exact(sequence)) {
        let mixed_gradient = head.mixed(&scratch.gradient);
        head.scores(kept.rotated, probabilities);
        ViewMut::dense(probability_gradient, sequence, sequence).write(
            1.0,
            mixed_gradient,
            head.part(kept.rotated, VALUE).transposed(),
        );
        let rows =
            probabilities.chunks_exact_mut(sequence).zip(probability_gradient.chunks_exact_mut(sequence));
        for (position, ((row, gradient), logsumexp)) in rows.zip(logsumexp).enumerate() {
            let (seen, hidden) = row.split_at_mut(position + 1);
            seen.iter_mut().for_each(|score| *score = exp(*score - logsumexp));
            hidden.fill(0.0);
            // Softmax backward: dS = P ∘ (dP - Σ P ∘ dP).
            let (seen_gradient, hidden_gradient) = gradient.split_at_mut(position + 1);
            let mean = dot(seen, seen_gradient);
            for (gradient, probability) in seen_gradient.iter_mut().zip(seen) {
                *gradient = *probability * (*gradient - mean);
            }
            hidden_gradient.fill(0.0);
        }
        let probabilities = View::dense(probabilities, sequence, sequence);
        let score_gradient = View::dense(probability_gradient, sequence, sequence);
        head.part_mut(qkv_gradient, QUERY).write(head.scale(), score_gradient, head.part(kept.rotated, KEY));
        head.part_mut(qkv_gradient, KEY).write(
            head.scale(),
            score_gradient.transposed(),
            head.part(kept.rotated, QUERY),
        );
        head.part_mut(qkv_gradient, VALUE).write(1.0, probabilities.transposed(), mixed_gradient);
    }
    rotate(config, &scratch.rotations, &mut scratch.qkv_gradient, -1.0);

    let qkv_gradient = View::dense(&scratch.qkv_gradient, tokens, 3 * width);
    if let Some(gradient) = gradients.qkv {
        normalize(x, weights.gain, &mut scratch.normalized);
        let normalized = View::dense(&scratch.normalized, tokens, width);
        ViewMut::dense(gradient, 3 * width, width).write(1.0, qkv_gradient.transposed(), normalized);
    }
    let qkv = View::dense(weights.qkv, width, 3 * width).transposed();
    ViewMut::dense(&mut scratch.gradient, tokens, width).write(1.0, qkv_gradient, qkv);
    normalize_backward(x, weights.gain, &mut scratch.gradient, residual, gradients.gain);
}

/// The parts of a row of `qkv`.
const QUERY: usize = 0;
const KEY: usize = 1;
const VALUE: usize = 2;

/// One head of one text: where its parts lie in the shared buffers.
#[derive(Clone, Copy)]
struct Head {
    sequence: usize,
    width: usize,
    head_width: usize,
    first_token: usize,
    first_feature: usize,
}

/// All heads, text by text: the order of the log-sum-exp buffer.
fn heads(config: &Config) -> impl Iterator<Item = Head> {
    let &Config { width, sequence, batch, heads, .. } = config;
    let head_width = config.head_width();
    (0..batch * heads).map(move |index| Head {
        sequence,
        width,
        head_width,
        first_token: index / heads * sequence,
        first_feature: index % heads * head_width,
    })
}

impl Head {
    fn scale(self) -> f32 {
        1.0 / (self.head_width as f32).sqrt()
    }

    /// This head's rows of `part`, one of [`QUERY`], [`KEY`], [`VALUE`].
    fn part(self, qkv: &[f32], part: usize) -> View<'_> {
        let start = self.first_token * 3 * self.width + part * self.width + self.first_feature;
        View::strided(&qkv[start..], self.sequence, self.head_width, 3 * self.width)
    }

    fn part_mut(self, qkv: &mut [f32], part: usize) -> ViewMut<'_> {
        let start = self.first_token * 3 * self.width + part * self.width + self.first_feature;
        ViewMut::strided(&mut qkv[start..], self.sequence, self.head_width, 3 * self.width)
    }

    fn mixed(self, mixed: &[f32]) -> View<'_> {
        let start = self.first_token * self.width + self.first_feature;
        View::strided(&mixed[start..], self.sequence, self.head_width, self.width)
    }

    fn mixed_mut(self, mixed: &mut [f32]) -> ViewMut<'_> {
        let start = self.first_token * self.width + self.first_feature;
        ViewMut::strided(&mut mixed[start..], self.sequence, self.head_width, self.width)
    }

    /// `scores = query · keyᵀ / √head_width`, also where the mask will hide them.
    fn scores(self, qkv: &[f32], scores: &mut [f32]) {
        let (query, key) = (self.part(qkv, QUERY), self.part(qkv, KEY).transposed());
        ViewMut::dense(scores, self.sequence, self.sequence).write(self.scale(), query, key);
    }
}

/// (cosine, sine) of `position · 10000^(-2i / head_width)` for each position and pair `i` (Su et al. 2021).
pub(crate) fn rotations(sequence: usize, head_width: usize) -> Vec<(f32, f32)> {
    let pairs = head_width / 2;
    let angle =
        |position: usize, pair: usize| position as f64 * 10_000f64.powf(-(pair as f64) / pairs as f64);
    (0..sequence * pairs)
        .map(|index| angle(index / pairs, index % pairs).sin_cos())
        .map(|(sine, cosine)| (cosine as f32, sine as f32))
        .collect()
}

/// Rotates queries and keys in place by their positions; `sense` -1 turns back, which is also the
/// backward. Pair `i` of a head is its features `i` and `i + head_width / 2`.
fn rotate(config: &Config, rotations: &[(f32, f32)], qkv: &mut [f32], sense: f32) {
    let pairs = config.head_width() / 2;
    for (token, row) in qkv.chunks_exact_mut(3 * config.width).enumerate() {
        let rotations = &rotations[token % config.sequence * pairs..][..pairs];
        for head in row[..2 * config.width].chunks_exact_mut(2 * pairs) {
            let (first, second) = head.split_at_mut(pairs);
            for ((a, b), &(cosine, sine)) in first.iter_mut().zip(second).zip(rotations) {
                let sine = sine * sense;
                (*a, *b) = (*a * cosine - *b * sine, *a * sine + *b * cosine);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::Stream;

    #[test]
    fn a_score_depends_on_the_distance_of_two_positions_and_rotation_turns_back() {
        let config = Config { width: 16, layers: 1, heads: 2, hidden: 16, sequence: 9, batch: 2 };
        let mut stream = Stream::keyed(1, []);
        let row: Vec<f32> = (0..3 * config.width).map(|_| stream.symmetric()).collect();
        let rotations = rotations(config.sequence, config.head_width());
        let mut qkv = row.repeat(config.tokens());
        rotate(&config, &rotations, &mut qkv, 1.0);
        let mut scores = vec![0.0; config.sequence * config.sequence];
        for head in heads(&config) {
            head.scores(&qkv, &mut scores);
            let score = |query: usize, key: usize| scores[query * config.sequence + key];
            for query in 1..config.sequence {
                for key in 1..config.sequence {
                    assert!((score(query, key) - score(query - 1, key - 1)).abs() < 1e-5);
                }
                assert!((score(query, 0) - score(query - 1, 0)).abs() > 1e-4, "distances differ");
            }
        }
        rotate(&config, &rotations, &mut qkv, -1.0);
        for (turned, original) in qkv.iter().zip(row.iter().cycle()) {
            assert!((turned - original).abs() < 1e-6);
        }
    }
}
