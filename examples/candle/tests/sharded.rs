//! Sharded, every weight of both models has a gradient in the first step, and it is candle's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_example::{llama, model, text};
use candle_nn::{ParamsAdamW, VarBuilder, VarMap, loss};
use warpweft_candle::{Devices, Sharded};

type Done = std::result::Result<(), Box<dyn std::error::Error>>;

fn cross_entropy(logits: &Tensor, y: &Tensor) -> Result<Tensor> {
    loss::cross_entropy(&logits.flatten_to(logits.rank() - 2)?, &y.flatten_all()?)
}

/// Takes a step sharded, and the same by candle alone with the weights that it began with.
async fn compare(
    sharded: Sharded,
    batch: (&Tensor, &Tensor),
    alone: impl FnOnce(VarBuilder<'_>, &Tensor) -> Result<Tensor>,
) -> Done {
    let mut sharded = sharded.loss(cross_entropy).shard(Devices::cpu(2), batch).await?;
    let weights = VarMap::new();
    sharded.export_into(&weights).await?;
    let report = sharded.step(batch).await?;
    assert!(report.rebuilt.is_empty(), "{report:?}");

    let logits = alone(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu), batch.0)?;
    let gradients = cross_entropy(&logits, batch.1)?.backward()?;
    let weights = weights.data().lock().unwrap().clone();
    assert_eq!(weights.len(), sharded.tensors().len());
    for (name, weight) in &weights {
        let (theirs, ours) = (gradients.get(weight).unwrap(), sharded.gradient(name).await?);
        let largest = ours.abs()?.max_all()?.to_scalar::<f32>()?;
        let apart = (ours - theirs)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(largest > 0.0 && apart < 1e-4 * largest, "{name}: {largest}, {apart} apart");
    }
    sharded.close().await?;
    Ok(())
}

#[tokio::test]
async fn every_weight_of_a_few_layers_has_candles_gradient_in_the_first_step() -> Done {
    let (x, y) = text::next_bytes(0, 16, model::WINDOW)?;
    let sharded = Sharded::new(ParamsAdamW::default())
        .block("embed", |vb| {
            model::Embed::load(vb.pp("embed")).map(|embed| move |x: &Tensor| embed.forward(x))
        })
        .blocks(model::BLOCKS, |number, vb| {
            let block = model::Block::load(vb.pp(format!("blocks.{number}")))?;
            Ok(move |x: &Tensor| block.forward(x))
        })
        .block("head", |vb| model::Head::load(vb.pp("head")).map(|head| move |x: &Tensor| head.forward(x)));
    compare(sharded, (&x, &y), |vb, x| model::Model::load(vb)?.forward(x)).await
}

#[tokio::test]
async fn every_weight_of_a_llama_has_candles_gradient_in_the_first_step() -> Done {
    let config = llama::Config::SMALL;
    let (x, y) = text::windows(0, 4, config.length)?;
    let sharded = Sharded::new(ParamsAdamW::default())
        .block("embed", move |vb| {
            llama::Embed::load(vb, &config).map(|embed| move |x: &Tensor| embed.forward(x))
        })
        .blocks(config.layers, move |layer, vb| {
            let cache = llama::Cache::new(&config, vb.pp("rot"))?;
            let block = llama::Block::load(vb.pp(format!("model.layers.{layer}")), &config)?;
            Ok(move |x: &Tensor| block.forward(x, &cache))
        })
        .block("head", move |vb| {
            llama::Head::load(vb, &config).map(|head| move |x: &Tensor| head.forward(x))
        });
    compare(sharded, (&x, &y), |vb, x| {
        let cache = llama::Cache::new(&config, vb.pp("rot"))?;
        llama::Llama::load(vb, &config)?.forward(x, &cache)
    })
    .await
}
