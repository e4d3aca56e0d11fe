//! Batches: short ones, micro-batches, gradient accumulation, weighted sums, evaluation and prediction.

use burn::tensor::{Bool, Int, Tensor};
use warpweft_burn::{Devices, Error, Sharded, ShardedModel};

use crate::model::{
    Alone, BLOCKS, Model, Pair, RATE, TOKENS, adam, apart, apart_of_largest, batch, cross_entropy, device,
    gradients, number, sharded,
};

async fn start(builder: Sharded<Model>, (ranks, samples): (u32, usize)) -> ShardedModel<Model> {
    builder.shard(Devices::cpu(ranks), batch(0, samples)).await.unwrap()
}

#[tokio::test]
async fn a_short_last_batch_and_one_that_does_not_divide_train_like_burn_alone() {
    for (ranks, micro_batches) in [(1, 1), (4, 1), (2, 2), (4, 2)] {
        let builder = sharded(adam(), Model::new(1)).micro_batches(micro_batches);
        let (mut model, mut alone) = (start(builder, (ranks, 10)).await, Alone::new(Model::new(1)));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (step, samples) in [10, 10, 3, 7, 1, 10].into_iter().enumerate() {
            ours.push(model.step(batch(step, samples)).await.unwrap().loss);
            theirs.push(alone.step(batch(step, samples)));
        }
        let difference = apart(&ours, &theirs);
        println!("{ranks} ranks, {micro_batches} micro-batches: {difference:.1e}");
        assert!(difference < 1e-4, "{ours:?} {theirs:?}");
    }
}

#[tokio::test]
async fn several_batches_of_one_step_are_one_batch() {
    let mut model = start(sharded(adam(), Model::new(2)).accumulating(), (2, 8)).await;
    let mut alone = Alone::new(Model::new(2));
    for step in 0..5 {
        let parts: Vec<Pair> = [8, 5, 3].iter().map(|samples| batch(step, *samples)).collect();
        let ours = model.step_over(parts.clone()).await.unwrap().loss;
        let (xs, ys): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let theirs = alone.step((Tensor::cat(xs, 0), Tensor::cat(ys, 0)));
        assert!(apart(&[ours], &[theirs]) < 1e-4, "{step}: {ours} {theirs}");
    }
    let mut plain = start(sharded(adam(), Model::new(2)), (2, 8)).await;
    let refused = plain.step_over([batch(0, 8), batch(1, 8)]).await.unwrap_err();
    assert!(refused.to_string().contains("accumulat"), "{refused}");
}

/// The sum over the tokens that are not padding (0), and how many they are.
fn over_tokens(logits: Tensor<2>, y: Tensor<1, Int>) -> (Tensor<1>, Tensor<1>) {
    let counts = y.clone().not_equal_scalar(0).float();
    let of_target = burn::tensor::activation::log_softmax(logits, 1).gather(1, y.unsqueeze_dim(1));
    ((of_target.squeeze_dim::<1>(1) * counts.clone()).sum().neg(), counts.sum())
}

/// A batch whose samples are padded to different lengths.
fn ragged(step: usize, samples: usize) -> Pair {
    let (x, y) = batch(step, samples);
    let keep = |at: usize| i64::from(at % TOKENS < 2 + (step * 5 + at / TOKENS * 3) % (TOKENS - 2));
    let keep: Vec<i64> = (0..samples * TOKENS).map(keep).collect();
    (x, y * Tensor::from_data(keep.as_slice(), &device()))
}

#[tokio::test]
async fn a_sum_and_its_weight_count_tokens_over_all_ranks_micro_batches_and_batches_of_a_step() {
    let builder = sharded(adam(), Model::new(3)).loss(over_tokens).micro_batches(2).accumulating();
    let mut model = builder.shard(Devices::cpu(2), ragged(0, 8)).await.unwrap();
    let alone = Alone::new(Model::new(3));
    let whole = |(x, y): Pair| over_tokens(alone.model.logits(x), y);
    let ((sum, weight), (more, heavier)) = (whole(ragged(1, 8)), whole(ragged(2, 5)));
    let mean = (sum + more) / (weight + heavier);
    let report = model.step_over([ragged(1, 8), ragged(2, 5)]).await.unwrap();
    let expected = number(mean.clone());
    assert!(apart(&[report.loss], &[expected]) < 1e-5, "{} {expected}", report.loss);
    let all = gradients(&alone.model, mean.backward());
    for name in ["embed.weight", "layers.0.qkv.weight", "map.weight", "norm.gamma"] {
        let ours = model.gradient(name).await.unwrap();
        let apart = apart_of_largest(ours.as_slice().unwrap(), &all[name]);
        assert!(apart <= 1e-5, "{name}: {apart:e}");
    }
}

#[tokio::test]
async fn a_batch_of_which_nothing_counts_is_refused() {
    let mut model = start(sharded(adam(), Model::new(4)).loss(over_tokens), (2, 4)).await;
    let (x, y) = batch(0, 4);
    let padding = || (x.clone(), y.zeros_like());
    let (step, evaluation) = (model.step(padding()).await, model.evaluate(padding()).await);
    for refused in [step.map(|_| ()), evaluation.map(|_| ())] {
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("weight 0") && refused.contains("at least one sample that counts"),
            "{refused}"
        );
    }
    model.step((x, y)).await.unwrap();
}

#[tokio::test]
async fn a_weight_that_follows_from_the_logits_is_refused() {
    let builder = sharded(adam(), Model::new(5)).loss(|logits: Tensor<2>, y: Tensor<1, Int>| {
        let weight = logits.clone().abs().sum() + 1.0;
        (cross_entropy(logits, y), weight)
    });
    let mut model = start(builder, (1, 4)).await;
    let refused = model.step(batch(0, 4)).await.unwrap_err().to_string();
    assert!(refused.contains("follow from the targets alone"), "{refused}");
}

#[tokio::test]
async fn evaluation_and_prediction_have_shapes_of_their_own_and_the_values_of_burn_alone() {
    let (held_x, held_y) = batch(77, 5);
    let one = held_x.clone().narrow(0, 0, 1);
    let builder = sharded(adam(), Model::new(6));
    let builder = builder.evaluation((held_x.clone(), held_y.clone())).prediction(one.clone());
    let mut model = start(builder, (2, 8)).await;
    for step in 0..3 {
        model.step(batch(step, 8)).await.unwrap();
    }
    let alone = Alone::new(model.module().await.unwrap());
    let ours = model.evaluate((held_x.clone(), held_y.clone())).await.unwrap();
    assert!(apart(&[ours], &[number(alone.loss((held_x, held_y)))]) < 1e-5);
    // A fixed window: the next byte is the likeliest after the last of the window.
    let logits: Tensor<2> = model.predict(one.clone()).await.unwrap();
    assert_eq!(logits.into_data().as_slice::<f32>().unwrap(), alone.model.predicted(one.clone()));
    let refused = model.predict::<3>(one.clone()).await.unwrap_err().to_string();
    assert!(refused.contains("of rank 3"), "{refused}");
    let mut plain = start(sharded(adam(), Model::new(6)), (1, 8)).await;
    assert!(matches!(plain.predict::<2>(one).await, Err(Error::Undeclared { .. })));
}

/// What is true of the mask is set to zero in every layer.
fn masked(layer: &crate::model::Layer, x: Tensor<3>, mask: Tensor<2, Bool>) -> Tensor<3> {
    let [samples, tokens, width] = x.dims();
    let mask = mask.unsqueeze_dim::<3>(2).expand([samples, tokens, width]);
    layer.forward(x.mask_fill(mask, 0.0))
}

#[tokio::test]
async fn a_mask_beside_the_input_reaches_every_block_that_takes_it() {
    let with_mask = |step, samples| {
        let (x, y) = batch(step, samples);
        let mask = x.clone().lower_scalar(20);
        ((x, mask), y)
    };
    let builder = Sharded::new(adam(), Model::new(7))
        .learning_rate(RATE)
        .block("embed", |model: &Model, x: Tensor<2, Int>| model.embed.forward(x))
        .blocks(BLOCKS, |at, model, (x, mask): (Tensor<3>, Tensor<2, Bool>)| {
            masked(&model.layers[at], x, mask)
        })
        .block("head", |model, x: Tensor<3>| model.head(x))
        .loss(cross_entropy)
        .micro_batches(2);
    let mut model = builder.shard(Devices::cpu(2), with_mask(0, 9)).await.unwrap();
    let alone = Model::new(7);
    for samples in [9, 4] {
        let ours = model.evaluate(with_mask(3, samples)).await.unwrap();
        let ((x, mask), y) = with_mask(3, samples);
        let layers = &alone.layers;
        let x = layers.iter().fold(alone.embed.forward(x), |x, layer| masked(layer, x, mask.clone()));
        let theirs = number(cross_entropy(alone.head(x), y));
        assert!(apart(&[ours], &[theirs]) < 1e-5, "{ours} {theirs}");
    }
    model.step(with_mask(0, 9)).await.unwrap();
    let refused = model.step(batch(0, 9)).await.unwrap_err().to_string();
    assert!(refused.contains("of 2 tensors") && refused.contains("of 3"), "{refused}");
}
