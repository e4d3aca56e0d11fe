//! Mistakes of a user, each reported with the block and the tensor.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{D, Module, Result, Tensor};
use candle_nn::{layer_norm, linear_no_bias, ops, rms_norm};
use warpweft_candle::{Devices, Error, Settings, Sharded, ShardedModel};

use crate::model::{TOKENS, VOCABULARY, WIDTH, batch, embed, rates, sharded, with_middle};

async fn start(builder: Sharded) -> std::result::Result<ShardedModel, Error> {
    let (x, y) = batch(0, 4);
    builder.shard(Devices::cpu(2), (&x, &y)).await
}

async fn refused(builder: Sharded, words: &[&str]) {
    let error = start(builder).await.expect_err("it is refused").to_string();
    for word in words {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
}

/// Its ranks would have other samples of what one group computes, and gradients twice as large.
#[tokio::test]
async fn tensor_parallelism_is_refused() {
    let mut config = Settings::from(rates()).config;
    config.mesh.tp = 2;
    refused(sharded(config), &["mesh.tp = 2", "whole layers", "leave it at 1"]).await;
}

#[tokio::test]
async fn a_name_with_another_shape_is_refused() {
    let builder = with_middle(|vb| {
        let w = vb.get((WIDTH, VOCABULARY), "model.embed.weight")?;
        Ok(move |x: &Tensor| x.broadcast_matmul(&w)?.narrow(D::Minus1, 0, WIDTH))
    });
    refused(builder, &["block `middle`", "`model.embed.weight`", "`embed`", "one name is one weight"]).await;
}

#[tokio::test]
async fn a_norm_without_a_backward_is_refused_with_its_replacement() {
    let builder = with_middle(|vb| {
        let (norm, w) = (rms_norm(WIDTH, 1e-5, vb.pp("norm"))?, linear_no_bias(WIDTH, WIDTH, vb.pp("w"))?);
        Ok(move |x: &Tensor| x + w.forward(&norm.forward(x)?)?)
    });
    refused(builder, &["block `middle`", "`norm.weight`", "RmsNorm::forward", "forward_diff"]).await;
    let builder = with_middle(|vb| {
        let norm = layer_norm(WIDTH, 1e-5, vb.pp("norm"))?;
        Ok(move |x: &Tensor| x + norm.forward(x)?)
    });
    refused(builder, &["block `middle`", "`norm.weight`", "layer_norm_slow"]).await;
}

#[tokio::test]
async fn a_softmax_without_a_backward_is_refused_with_its_replacement() {
    let builder = with_middle(|vb| {
        let (q, v) = (linear_no_bias(WIDTH, WIDTH, vb.pp("q"))?, linear_no_bias(WIDTH, WIDTH, vb.pp("v"))?);
        Ok(move |x: &Tensor| {
            let scores = ops::softmax_last_dim(&q.forward(x)?.matmul(&x.t()?)?)?;
            x + scores.matmul(&v.forward(x)?)?
        })
    });
    refused(
        builder,
        &["block `middle`", "`q.weight`", "softmax_last_dim", "softmax(…, D::Minus1)", "rope_slow"],
    )
    .await;
}

#[tokio::test]
async fn an_input_that_gets_no_gradient_is_refused_unless_it_is_meant() {
    let cut = || {
        with_middle(|vb| {
            let w = linear_no_bias(WIDTH, WIDTH, vb.pp("w"))?;
            Ok(move |x: &Tensor| w.forward(&x.detach()))
        })
    };
    refused(cut(), &["block `middle`", "its input", "no block before it trains"]).await;
    let mut model = start(cut().may_be_unused("middle")).await.unwrap();
    let (x, y) = batch(0, 4);
    model.step((&x, &y)).await.unwrap();
    let gradient = model.gradient("model.embed.weight").await.unwrap();
    assert!(gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().all(|value| *value == 0.0));
}

#[tokio::test]
async fn a_weight_that_no_closure_uses_is_refused_unless_it_is_meant() {
    let unused = || {
        with_middle(|vb| {
            let (w, _) = (linear_no_bias(WIDTH, WIDTH, vb.pp("w"))?, vb.get((3, WIDTH), "spare")?);
            Ok(move |x: &Tensor| x + w.forward(x)?)
        })
    };
    refused(unused(), &["block `middle`", "`spare`", "may_be_unused(\"spare\")"]).await;
    let mut model = start(unused().may_be_unused("spare")).await.unwrap();
    let (x, y) = batch(0, 4);
    model.step((&x, &y)).await.unwrap();
}

#[tokio::test]
async fn a_batch_of_another_form_than_the_samples_is_refused() {
    let mut model = start(sharded(rates())).await.unwrap();
    let (x, y) = batch(0, 4);
    let narrow = x.narrow(1, 0, TOKENS - 1).unwrap();
    let error = model.step((&narrow, &y)).await.unwrap_err();
    assert!(matches!(&error, Error::Batch { what: "input", .. }), "{error}");
    let (more, targets) = batch(0, 5);
    let error = model.step((&more, &targets)).await.unwrap_err();
    assert!(matches!(&error, Error::Batch { what: "input", .. }), "{error}");
    let error = model.step((&x, &targets)).await.unwrap_err();
    assert!(matches!(&error, Error::Batch { what: "targets", .. }), "{error}");
    let as_floats = x.to_dtype(candle_core::DType::F32).unwrap();
    assert!(model.step((&as_floats, &y)).await.is_err());
    model.step((&x, &y)).await.unwrap();
}

/// A middle block that does `harm` in the calls after so many.
fn harmed(after: usize, harm: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Sharded {
    let (calls, harm) = (Arc::new(AtomicUsize::new(0)), Arc::new(harm));
    with_middle(move |vb| {
        let w = linear_no_bias(WIDTH, WIDTH, vb.pp("w"))?;
        let (calls, harm) = (Arc::clone(&calls), Arc::clone(&harm));
        Ok(move |x: &Tensor| {
            let y = (x + w.forward(x)?)?;
            if calls.fetch_add(1, Ordering::SeqCst) == after { harm(&y) } else { Ok(y) }
        })
    })
}

/// Calls of a block before its first step: the sample's, and what is compared with it.
const TRIED: usize = 5;

#[tokio::test]
async fn a_panic_in_a_block_names_it_and_the_model_goes_on() {
    let mut model = start(harmed(TRIED, |_| panic!("no more of this"))).await.unwrap();
    let (x, y) = batch(0, 4);
    let error = model.step((&x, &y)).await.unwrap_err().to_string();
    assert!(error.contains("`middle` panicked: no more of this"), "{error}");
    model.step((&x, &y)).await.unwrap();
}

#[tokio::test]
async fn a_changed_shape_names_the_block_and_both_shapes() {
    let mut model = start(harmed(TRIED, |y| y.narrow(1, 0, TOKENS / 2))).await.unwrap();
    let (x, y) = batch(0, 4);
    let error = model.step((&x, &y)).await.unwrap_err().to_string();
    assert!(error.contains("block `middle` gives [2, 8, 32]") && error.contains("[2, 16, 32]"), "{error}");
    model.step((&x, &y)).await.unwrap();
}

#[tokio::test]
async fn a_loss_that_is_not_a_number_changes_no_weight() {
    let mut model = start(harmed(TRIED, |y| y * f64::NAN)).await.unwrap();
    let before = model.export().await.unwrap();
    let (x, y) = batch(0, 4);
    let error = model.step((&x, &y)).await.unwrap_err().to_string();
    assert!(error.contains("the loss of block `head` is NaN"), "{error}");
    let after = model.export().await.unwrap();
    for (name, tensor) in before {
        let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values(&tensor), values(&after[&name]), "{name}");
    }
    model.step((&x, &y)).await.unwrap();
}

#[tokio::test]
async fn ranks_whose_constructors_disagree_do_not_start() {
    let builds = Arc::new(AtomicUsize::new(0));
    let builder = with_middle(move |vb| {
        // The sample builds twice, and each rank once.
        let last = builds.fetch_add(1, Ordering::SeqCst) == 3;
        let w = linear_no_bias(WIDTH, WIDTH, vb.pp(if last { "v" } else { "w" }))?;
        Ok(move |x: &Tensor| x + w.forward(x)?)
    });
    refused(builder, &["block `middle`", "`v.weight`", "on every rank"]).await;
}

#[tokio::test]
async fn a_rule_for_no_weight_and_a_model_without_a_loss_are_refused() {
    refused(sharded(rates()).freeze("nothing.*"), &["nothing.*"]).await;
    let builder = Sharded::new(rates()).block("embed", |vb| {
        let e = embed(vb)?;
        Ok(move |x: &Tensor| e.forward(x))
    });
    refused(builder, &["no loss"]).await;
}

/// Its input has a gradient by the other way, and nothing of its own trains.
#[tokio::test]
async fn a_frozen_norm_that_cuts_off_what_trains_before_it_is_refused() {
    let cutting = || {
        with_middle(|vb| {
            let (norm, w) =
                (rms_norm(WIDTH, 1e-5, vb.pp("norm"))?, linear_no_bias(WIDTH, WIDTH, vb.pp("w"))?);
            Ok(move |x: &Tensor| x + w.forward(&norm.forward(x)?)?)
        })
        .freeze("norm.weight")
        .freeze("w.weight")
    };
    refused(cutting(), &["block `middle`", "`norm.weight`", "RmsNorm::forward", "forward_diff"]).await;
    // Where nothing before it trains, there is nothing to cut off.
    start(cutting().freeze("model.embed.weight")).await.unwrap();
}

#[tokio::test]
async fn a_pattern_that_matches_nothing_is_refused_with_the_names_there_are() {
    refused(
        sharded(rates()).recompute("block.*"),
        &["recompute(\"block.*\")", "matches nothing", "`blocks.0`"],
    )
    .await;
    refused(sharded(rates()).buffer("rope"), &["buffer(\"rope\")", "`lm_head.weight`"]).await;
    refused(sharded(rates()).micro_batches(0), &["in 0 micro-batches"]).await;
}
