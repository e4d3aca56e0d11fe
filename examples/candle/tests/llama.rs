//! The Llama has the logits of candle's own, and learns with every weight.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use candle_example::llama::{Cache, Config, Llama};
use candle_example::text;
use candle_nn::loss::cross_entropy;
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use candle_transformers::models::llama2_c;

fn new() -> Result<(VarMap, Llama, Cache)> {
    let (weights, config) = (VarMap::new(), Config::SMALL);
    let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
    let cache = Cache::new(&config, vb.pp("rot"))?;
    let model = Llama::load(vb, &config)?;
    Ok((weights, model, cache))
}

fn loss(model: &Llama, cache: &Cache, (x, y): &(Tensor, Tensor)) -> Result<Tensor> {
    cross_entropy(&model.forward(x, cache)?.flatten_to(1)?, &y.flatten_all()?)
}

#[test]
fn logits_are_those_of_candles_own() -> Result<()> {
    let config = Config::SMALL;
    let theirs = llama2_c::Config {
        dim: config.width,
        hidden_dim: config.inner,
        n_layers: config.layers,
        n_heads: config.heads,
        n_kv_heads: config.key_value_heads,
        vocab_size: config.vocabulary,
        seq_len: config.length,
        norm_eps: config.epsilon,
    };
    let (weights, model, cache) = new()?;
    let named: HashMap<String, Tensor> = {
        let named = weights.data().lock().unwrap();
        named.iter().map(|(name, weight)| (name.clone(), weight.as_tensor().clone())).collect()
    };
    let vb = VarBuilder::from_tensors(named, DType::F32, &Device::Cpu);
    let mut their_cache = llama2_c::Cache::new(false, &theirs, vb.pp("rot"))?;
    let their_model = llama2_c::Llama::load(vb, theirs)?;
    for length in [1, 7, config.length] {
        let (x, _) = text::held_out(3, length)?;
        let (ours, theirs) = (model.forward(&x, &cache)?, their_model.forward(&x, 0, &mut their_cache)?);
        let apart = (ours - theirs)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(apart < 1e-4, "{apart} for {length} tokens");
    }
    Ok(())
}

#[test]
fn every_weight_has_a_gradient_in_the_first_step_and_the_loss_falls() -> Result<()> {
    let (weights, model, cache) = new()?;
    let mut optimizer = AdamW::new(weights.all_vars(), ParamsAdamW { lr: 3e-3, ..ParamsAdamW::default() })?;
    let mut losses = Vec::new();
    for step in 0..40 {
        let loss = loss(&model, &cache, &text::windows(step, 8, Config::SMALL.length)?)?;
        let gradients = loss.backward()?;
        if step == 0 {
            for (name, weight) in weights.data().lock().unwrap().iter() {
                let gradient = gradients.get(weight).unwrap_or_else(|| panic!("{name} has no gradient"));
                let largest = gradient.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(largest > 0.0 && largest.is_finite(), "the gradient of {name} is {largest}");
            }
        }
        optimizer.step(&gradients)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    assert!(losses[39] < 0.6 * losses[0], "{losses:?}");
    Ok(())
}
