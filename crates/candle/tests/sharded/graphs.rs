//! Kept graphs and recomputed blocks, blocks that must be built anew, and dropout.

use candle_core::{Module, Tensor};
use candle_nn::{linear_no_bias, loss};
use warpweft_candle::{Devices, Dropout, Error, Sharded, ShardedModel};

use crate::model::{VOCABULARY, WIDTH, batch, rates, sharded, with_middle};

async fn train(model: &mut ShardedModel) -> Vec<f32> {
    let mut losses = Vec::new();
    for step in 0..10 {
        let (x, y) = batch(step, 8);
        losses.push(model.step((&x, &y)).await.unwrap().loss);
    }
    losses
}

async fn start(builder: Sharded) -> ShardedModel {
    let (x, y) = batch(0, 8);
    builder.shard(Devices::cpu(2), (&x, &y)).await.unwrap()
}

#[tokio::test]
async fn computing_again_gives_the_bits_of_a_graph_that_was_kept_and_reads_no_more_than_the_input() {
    let mut kept = start(sharded(rates())).await;
    let mut again = start(sharded(rates()).recompute("blocks.*").recompute("embed")).await;
    assert!(kept.blocks().iter().all(|block| !block.recomputes && !block.rebuilt && block.derived == 0));
    assert_eq!(again.blocks().iter().filter(|block| block.recomputes).count(), 3);
    assert_eq!(train(&mut kept).await, train(&mut again).await);
    assert_eq!(bits(kept.export().await.unwrap()), bits(again.export().await.unwrap()));
}

fn bits(tensors: std::collections::HashMap<String, Tensor>) -> std::collections::BTreeMap<String, Vec<u32>> {
    let bits = |tensor: Tensor| -> Vec<u32> {
        tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    };
    tensors.into_iter().map(|(name, tensor)| (name, bits(tensor))).collect()
}

#[tokio::test]
async fn a_constructor_that_computes_with_weights_is_built_anew_for_every_call_and_trains_the_same() {
    let mut in_closure = start(with_middle(|vb| {
        let w = vb.get_with_hints((WIDTH, WIDTH), "w", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
        Ok(move |x: &Tensor| x + x.broadcast_matmul(&(w.t()? * 2.0)?)?)
    }))
    .await;
    let mut in_constructor = start(with_middle(|vb| {
        let w = vb.get_with_hints((WIDTH, WIDTH), "w", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
        let doubled = (w.t()? * 2.0)?;
        Ok(move |x: &Tensor| x + x.broadcast_matmul(&doubled)?)
    }))
    .await;
    let middle = &in_closure.blocks()[1];
    // w.t() * 2 is a copy that a kept graph holds.
    assert!(
        !middle.rebuilt && middle.derived >= 1 && middle.derived_bytes >= 4 * WIDTH * WIDTH,
        "{middle:?}"
    );
    assert!(in_constructor.blocks()[1].rebuilt);
    assert_eq!(train(&mut in_closure).await, train(&mut in_constructor).await);
    let (x, y) = batch(0, 8);
    assert_eq!(in_constructor.step((&x, &y)).await.unwrap().rebuilt, ["middle"]);
}

#[tokio::test]
async fn dropout_of_candle_keeps_its_graph_and_ours_may_be_computed_again() {
    let of_candle = || {
        with_middle(|vb| {
            let (w, dropout) = (linear_no_bias(WIDTH, WIDTH, vb.pp("w"))?, candle_nn::Dropout::new(0.2));
            Ok(move |x: &Tensor| x + dropout.forward(&w.forward(x)?, true)?)
        })
    };
    let mut model = start(of_candle()).await;
    assert!(model.blocks()[1].rebuilt);
    train(&mut model).await;
    let (x, y) = batch(0, 8);
    let refused = of_candle().recompute("middle").shard(Devices::cpu(2), (&x, &y)).await.unwrap_err();
    assert!(matches!(&refused, Error::Random { block } if block == "middle"), "{refused}");

    let of_ours = || {
        with_middle(|vb| {
            let (w, dropout) =
                (linear_no_bias(WIDTH, WIDTH, vb.pp("w"))?, Dropout::new(0.2, &vb.pp("dropout"))?);
            Ok(move |x: &Tensor| x + dropout.forward(&w.forward(x)?)?)
        })
    };
    let mut kept = start(of_ours()).await;
    let mut again = start(of_ours().recompute("middle")).await;
    let mut other = start(of_ours().seed(1)).await;
    assert!(!kept.blocks()[1].rebuilt);
    let losses = train(&mut kept).await;
    assert_eq!(losses, train(&mut again).await);
    assert_ne!(losses, train(&mut other).await);
    // Two evaluations of one batch are the same: nothing is dropped.
    let (one, other) = (kept.evaluate((&x, &y)).await.unwrap(), kept.evaluate((&x, &y)).await.unwrap());
    assert_eq!(one, other);
    assert_eq!(kept.tensors().iter().filter(|entry| entry.name.contains("dropout")).count(), 1);
}

/// LoRA begins with a product of zero, whatever its other factor is.
#[tokio::test]
async fn a_constructor_that_computes_with_weights_of_zeros_is_found_too() {
    let kaiming = candle_nn::init::DEFAULT_KAIMING_NORMAL;
    let mut in_constructor = start(with_middle(move |vb| {
        let (a, b) = (vb.get_with_hints((2, WIDTH), "a", kaiming)?, vb.get((WIDTH, 2), "b")?);
        let product = b.matmul(&a)?.t()?;
        Ok(move |x: &Tensor| x + x.broadcast_matmul(&product)?)
    }))
    .await;
    let mut in_closure = start(with_middle(move |vb| {
        let (a, b) = (vb.get_with_hints((2, WIDTH), "a", kaiming)?, vb.get((WIDTH, 2), "b")?);
        Ok(move |x: &Tensor| x + x.broadcast_matmul(&b.matmul(&a)?.t()?)?)
    }))
    .await;
    assert!(in_constructor.blocks()[1].rebuilt && !in_closure.blocks()[1].rebuilt);
    assert_eq!(train(&mut in_constructor).await, train(&mut in_closure).await);
}

#[tokio::test]
async fn a_constructor_that_draws_may_not_be_computed_again() {
    let drawing = || {
        with_middle(|vb| {
            let w = linear_no_bias(WIDTH, WIDTH, vb.pp("w"))?;
            let mask = Tensor::randn(0f32, 1., WIDTH, vb.device())?;
            Ok(move |x: &Tensor| x + w.forward(x)?.broadcast_mul(&mask)?)
        })
    };
    let (x, y) = batch(0, 8);
    let refused = drawing().recompute("middle").shard(Devices::cpu(2), (&x, &y)).await.unwrap_err();
    assert!(matches!(&refused, Error::Random { block } if block == "middle"), "{refused}");
    assert!(start(drawing()).await.blocks()[1].rebuilt);
}

/// Nothing of a weight is read after its memory was taken out.
#[tokio::test]
async fn a_block_whose_output_is_a_view_of_a_weight_trains() {
    let mut model = start(
        Sharded::new(rates())
            .block("embed", |vb| {
                let table =
                    vb.get_with_hints((8, WIDTH), "table", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
                Ok(move |x: &Tensor| table.narrow(0, 0, x.dim(0)?))
            })
            .block("head", |vb| {
                let h = linear_no_bias(WIDTH, VOCABULARY, vb.pp("head"))?;
                Ok(move |x: &Tensor| h.forward(x))
            })
            .loss(|logits: &Tensor, y: &Tensor| {
                let first = y.reshape((logits.dim(0)?, ()))?.narrow(1, 0, 1)?.flatten_all()?;
                loss::cross_entropy(logits, &first)
            }),
    )
    .await;
    let losses = train(&mut model).await;
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
}
