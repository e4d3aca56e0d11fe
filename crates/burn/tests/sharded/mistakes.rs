//! Mistakes of a user, each reported with the block and the tensor.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{Int, Tensor};
use warpweft_burn::{Devices, Error, Settings, Sharded, ShardedModel};

use crate::model::{Model, RATE, TOKENS, adam, batch, cross_entropy, sharded, values, with_middle};

async fn start(builder: Sharded<Model>) -> Result<ShardedModel<Model>, Error> {
    builder.shard(Devices::cpu(2), batch(0, 4)).await
}

async fn refused(builder: Sharded<Model>, words: &[&str]) {
    let error = start(builder).await.expect_err("it is refused").to_string();
    for word in words {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
}

/// Its ranks would have other samples of what one group computes, and gradients twice as large.
#[tokio::test]
async fn tensor_parallelism_is_refused() {
    let mut config = Settings::from(adam()).config;
    config.mesh.tp = 2;
    refused(sharded(config, Model::new(1)), &["mesh.tp = 2", "whole layers", "leave it at 1"]).await;
}

#[tokio::test]
async fn a_weight_that_no_block_reads_is_refused_unless_it_is_meant() {
    let middle = |model: &Model, x: Tensor<3>| model.layers[0].forward(x);
    let builder = Sharded::new(adam(), Model::new(1))
        .learning_rate(RATE)
        .block("embed", |model: &Model, x: Tensor<2, Int>| model.embed.forward(x))
        .block("middle", middle)
        .block("head", |model, x: Tensor<3>| model.head(x))
        .loss(cross_entropy);
    refused(builder, &["no block reads weight `layers.1.", "may_be_unused"]).await;
    start(with_middle(middle)).await.unwrap().step(batch(0, 4)).await.unwrap();
}

#[tokio::test]
async fn a_weight_whose_gradient_is_cut_off_is_refused_with_the_usual_causes() {
    let builder = with_middle(|model: &Model, x: Tensor<3>| x.clone() + model.layers[0].forward(x).detach());
    refused(builder, &["block `middle`", "weight `layers.0.", "`detach`", "`freeze("]).await;
}

#[tokio::test]
async fn an_input_that_gets_no_gradient_is_refused_unless_it_is_meant() {
    let cut = || with_middle(|model: &Model, x: Tensor<3>| model.layers[0].forward(x.detach()));
    refused(cut(), &["block `middle`", "its input", "no block before it trains"]).await;
    let mut model = start(cut().may_be_unused("middle")).await.unwrap();
    model.step(batch(0, 4)).await.unwrap();
    let gradient = model.gradient("embed.weight").await.unwrap();
    assert!(gradient.as_slice::<f32>().unwrap().iter().all(|value| *value == 0.0));
}

#[tokio::test]
async fn a_closure_of_another_rank_or_kind_is_refused_with_both() {
    let builder = with_middle(|model: &Model, x: Tensor<2>| model.layers[0].forward(x.unsqueeze()));
    refused(builder, &["block `middle`", "an input of rank 2 of floats", "[2, 16, 32] of F32"]).await;
    let middle = |model: &Model, (x, _): (Tensor<3>, Tensor<1>)| model.layers[0].forward(x);
    refused(with_middle(middle), &["block `middle`", "a second tensor of rank 1", "the batch has none"])
        .await;
    let loss = |logits: Tensor<3>, _: Tensor<1, Int>| logits.mean();
    refused(sharded(adam(), Model::new(1)).loss(loss), &["block `loss`", "rank 3", "[32, 64]"]).await;
    let loss = |logits: Tensor<2>, y: Tensor<2, Int>| cross_entropy(logits, y.flatten(0, 1));
    refused(sharded(adam(), Model::new(1)).loss(loss), &["block `loss`", "targets of rank 2"]).await;
}

#[tokio::test]
async fn a_batch_of_another_form_than_the_samples_is_refused() {
    let mut model = start(sharded(adam(), Model::new(1))).await.unwrap();
    let (x, y) = batch(0, 4);
    let narrow = x.clone().narrow(1, 0, TOKENS - 1);
    let error = model.step((narrow, y.clone())).await.unwrap_err();
    assert!(matches!(&error, Error::Batch { what, .. } if what == "input"), "{error}");
    let (more, targets) = batch(0, 5);
    let error = model.step((more, targets.clone())).await.unwrap_err();
    assert!(matches!(&error, Error::Batch { what, .. } if what == "input"), "{error}");
    let error = model.step((x.clone(), targets)).await.unwrap_err();
    assert!(matches!(&error, Error::Batch { what, .. } if what == "targets"), "{error}");
    assert!(model.step((x.clone().float(), y.clone())).await.is_err());
    model.step((x, y)).await.unwrap();
}

/// A middle block that does `harm` in the calls after so many.
fn harmed(harm: impl Fn(&Model, Tensor<3>) -> Tensor<3> + Send + Sync + 'static) -> Sharded<Model> {
    let calls = AtomicUsize::new(0);
    with_middle(move |model: &Model, x: Tensor<3>| {
        let y = model.layers[0].forward(x);
        if calls.fetch_add(1, Ordering::SeqCst) == TRIED { harm(model, y) } else { y }
    })
}

/// Calls of a block before its first step: those of the sample.
const TRIED: usize = 3;

#[tokio::test]
async fn a_panic_in_a_block_names_it_and_the_model_goes_on() {
    let mut model = start(harmed(|_, _| panic!("no more of this"))).await.unwrap();
    let error = model.step(batch(0, 4)).await.unwrap_err().to_string();
    assert!(error.contains("`middle` panicked: no more of this"), "{error}");
    model.step(batch(0, 4)).await.unwrap();
}

#[tokio::test]
async fn a_changed_shape_names_the_block_and_both_shapes() {
    let mut model = start(harmed(|_, y| y.narrow(1, 0, TOKENS / 2))).await.unwrap();
    let error = model.step(batch(0, 4)).await.unwrap_err().to_string();
    assert!(error.contains("block `middle` gives [2, 8, 32]") && error.contains("[2, 16, 32]"), "{error}");
    model.step(batch(0, 4)).await.unwrap();
}

#[tokio::test]
async fn a_weight_that_was_not_read_on_the_sample_is_refused_in_the_step() {
    let mut model = start(harmed(|model, y| model.layers[1].forward(y))).await.unwrap();
    let error = model.step(batch(0, 4)).await.unwrap_err().to_string();
    assert!(error.contains("block `middle` reads weight `layers.1."), "{error}");
    model.step(batch(0, 4)).await.unwrap();
}

#[tokio::test]
async fn a_loss_that_is_not_a_number_changes_no_weight() {
    let mut model = start(harmed(|_, y| y * f64::NAN)).await.unwrap();
    let before = values(&model.module().await.unwrap());
    let error = model.step(batch(0, 4)).await.unwrap_err().to_string();
    assert!(error.contains("the loss of block `head` is NaN"), "{error}");
    assert_eq!(values(&model.module().await.unwrap()), before);
    model.step(batch(0, 4)).await.unwrap();
}

#[tokio::test]
async fn a_rule_for_no_weight_and_a_model_without_a_loss_are_refused() {
    refused(sharded(adam(), Model::new(1)).freeze("nothing.*"), &["nothing.*"]).await;
    let builder = Sharded::new(adam(), Model::new(1)).learning_rate(RATE);
    let builder = builder.block("all", |model: &Model, x: Tensor<2, Int>| model.logits(x));
    refused(builder, &["no loss"]).await;
}

#[tokio::test]
async fn a_pattern_that_matches_nothing_is_refused_with_the_names_there_are() {
    let model = || sharded(adam(), Model::new(1));
    refused(model().recompute("block.*"), &["recompute(\"block.*\")", "matches nothing", "`blocks.0`"]).await;
    refused(model().buffer("rope"), &["buffer(\"rope\")", "`map.weight`"]).await;
    refused(model().micro_batches(0), &["in 0 micro-batches"]).await;
}
