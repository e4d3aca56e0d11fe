//! Sharded, every weight of both models has candle's gradient in the first step; the small one learns in 8 and 4 bits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_example::{llama, model, text};
use candle_nn::{ParamsAdamW, VarBuilder, VarMap, loss};
use warpweft::format::Format;
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
    let mut sharded = sharded.shard(Devices::cpu(2), batch).await?;
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

fn few_layers(rates: ParamsAdamW) -> Sharded {
    Sharded::new(rates)
        .block("embed", |vb| {
            model::Embed::load(vb.pp("embed")).map(|embed| move |x: &Tensor| embed.forward(x))
        })
        .blocks(model::BLOCKS, |number, vb| {
            let block = model::Block::load(vb.pp(format!("blocks.{number}")))?;
            Ok(move |x: &Tensor| block.forward(x))
        })
        .block("head", |vb| model::Head::load(vb.pp("head")).map(|head| move |x: &Tensor| head.forward(x)))
        .loss(cross_entropy)
}

fn small_llama(rates: ParamsAdamW) -> Sharded {
    let config = llama::Config::SMALL;
    Sharded::new(rates)
        .block("embed", move |vb| {
            llama::Embed::load(vb, &config).map(|embed| move |x: &Tensor| embed.forward(x))
        })
        .blocks(config.layers, move |layer, vb| {
            let cache = llama::Cache::new(&config, vb.pp("rot"))?;
            let block = llama::Block::load(vb.pp(format!("model.layers.{layer}")), &config)?;
            Ok(move |x: &Tensor| block.forward(x, &cache))
        })
        .block("head", move |vb| llama::Head::load(vb, &config).map(|head| move |x: &Tensor| head.forward(x)))
        .loss(cross_entropy)
}

#[tokio::test]
async fn every_weight_of_a_few_layers_has_candles_gradient_in_the_first_step() -> Done {
    let (x, y) = text::next_bytes(0, 16, model::WINDOW)?;
    let alone = |vb: VarBuilder<'_>, x: &Tensor| model::Model::load(vb)?.forward(x);
    compare(few_layers(ParamsAdamW::default()), (&x, &y), alone).await
}

#[tokio::test]
async fn every_weight_of_a_llama_has_candles_gradient_in_the_first_step() -> Done {
    let config = llama::Config::SMALL;
    let (x, y) = text::windows(0, 4, config.length)?;
    compare(small_llama(ParamsAdamW::default()), (&x, &y), |vb, x| {
        let cache = llama::Cache::new(&config, vb.pp("rot"))?;
        llama::Llama::load(vb, &config)?.forward(x, &cache)
    })
    .await
}

/// The weights of the last block.
const LAST_BLOCK: &str = "blocks.2.*";

/// The mean loss of the last ten of a hundred steps.
async fn trained(model: Sharded, batch: impl Fn(usize) -> Result<(Tensor, Tensor)>) -> Result<f32> {
    const STEPS: usize = 100;
    let (x, y) = batch(0)?;
    let mut model = model.shard(Devices::cpu(2), (&x, &y)).await.map_err(candle_core::Error::wrap)?;
    let mut last = 0.0;
    for step in 0..STEPS {
        let (x, y) = batch(step)?;
        let loss = model.step((&x, &y)).await.map_err(candle_core::Error::wrap)?.loss;
        last += if step + 10 < STEPS { 0.0 } else { loss / 10.0 };
    }
    Ok(last)
}

#[tokio::test]
async fn the_few_layers_lose_at_most_two_percent_in_eight_bits_and_in_four_before_a_last_block_in_eight()
-> Done {
    let rates = || ParamsAdamW { lr: 2e-3, beta2: 0.99, ..ParamsAdamW::default() };
    let batch = |step| text::next_bytes(step, 128, model::WINDOW);
    let plain = trained(few_layers(rates()), batch).await?;
    let formats =
        [("fp8_block", "fp8_block", 1.02), ("nvfp4_2d", "fp8_block", 1.02), ("nvfp4_2d", "nvfp4_2d", 1.05)];
    for (format, last, most) in formats {
        let model = few_layers(rates()).format("blocks.*", format.parse::<Format>()?);
        let loss = trained(model.format(LAST_BLOCK, last.parse::<Format>()?), batch).await?;
        println!("{format}, last block {last}: {loss}, in f32 {plain}");
        assert!(loss <= most * plain, "{format}, last block {last}: {loss}, in f32 {plain}");
    }
    Ok(())
}
