//! Batches: short ones, micro-batches, gradient accumulation, weighted sums, evaluation and prediction.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarMap, loss, ops};
use warpweft_candle::{Devices, Error, ShardedModel};

use crate::model::{Alone, TOKENS, apart, batch, rates, sharded};

async fn losses(model: &mut ShardedModel, sizes: &[usize]) -> Vec<f32> {
    let mut losses = Vec::new();
    for (step, samples) in sizes.iter().enumerate() {
        let (x, y) = batch(step, *samples);
        losses.push(model.step((&x, &y)).await.unwrap().loss);
    }
    losses
}

#[tokio::test]
async fn a_short_last_batch_and_one_that_does_not_divide_train_like_candle_alone() {
    let (x, y) = batch(0, 10);
    for (ranks, micro_batches) in [(1, 1), (4, 1), (2, 2), (4, 2)] {
        let builder = sharded(rates()).micro_batches(micro_batches);
        let mut model = builder.shard(Devices::cpu(ranks), (&x, &y)).await.unwrap();
        let map = VarMap::new();
        model.export_into(&map).await.unwrap();
        let mut alone = Alone::new(&map).unwrap();
        let sizes = [10, 10, 3, 7, 1, 10];
        let ours = losses(&mut model, &sizes).await;
        let theirs: Vec<f32> = sizes
            .iter()
            .enumerate()
            .map(|(step, samples)| {
                let (x, y) = batch(step, *samples);
                alone.step((&x, &y)).unwrap()
            })
            .collect();
        let difference = apart(&ours, &theirs);
        println!("{ranks} ranks, {micro_batches} micro-batches: {difference:.1e}");
        assert!(difference < 1e-4, "{ours:?} {theirs:?}");
    }
}

#[tokio::test]
async fn several_batches_of_one_step_are_one_batch() {
    let (x, y) = batch(0, 8);
    let mut model = sharded(rates()).accumulating().shard(Devices::cpu(2), (&x, &y)).await.unwrap();
    let map = VarMap::new();
    model.export_into(&map).await.unwrap();
    let mut alone = Alone::new(&map).unwrap();
    for step in 0..5 {
        let parts: Vec<(Tensor, Tensor)> = [8, 5, 3].iter().map(|samples| batch(step, *samples)).collect();
        let pairs: Vec<(&Tensor, &Tensor)> = parts.iter().map(|(x, y)| (x, y)).collect();
        let ours = model.step_over(&pairs).await.unwrap().loss;
        let xs: Vec<&Tensor> = pairs.iter().map(|(x, _)| *x).collect();
        let ys: Vec<&Tensor> = pairs.iter().map(|(_, y)| *y).collect();
        let theirs = alone.step((&Tensor::cat(&xs, 0).unwrap(), &Tensor::cat(&ys, 0).unwrap())).unwrap();
        assert!(apart(&[ours], &[theirs]) < 1e-4, "{step}: {ours} {theirs}");
    }
    let mut plain = sharded(rates()).shard(Devices::cpu(2), (&x, &y)).await.unwrap();
    let refused = plain.step_over(&[(&x, &y), (&x, &y)]).await.unwrap_err();
    assert!(refused.to_string().contains("accumulat"), "{refused}");
}

/// The sum over the tokens that are not padding (0), and how many they are.
fn over_tokens(logits: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
    let counts = y.ne(0_u32)?.to_dtype(DType::F32)?;
    let of_target = ops::log_softmax(logits, 1)?.gather(&y.unsqueeze(1)?, 1)?.squeeze(1)?;
    Ok(((of_target * &counts)?.sum_all()?.neg()?, counts.sum_all()?))
}

/// A batch whose samples are padded to different lengths.
fn ragged(step: usize, samples: usize) -> (Tensor, Tensor) {
    let (x, y) = batch(step, samples);
    let keep = |at: usize| u32::from(at % TOKENS < 2 + (step * 5 + at / TOKENS * 3) % (TOKENS - 2));
    let keep =
        Tensor::from_vec((0..samples * TOKENS).map(keep).collect::<Vec<u32>>(), y.shape(), &Device::Cpu);
    (x, (y * keep.unwrap()).unwrap())
}

#[tokio::test]
async fn a_sum_and_its_weight_count_tokens_over_all_ranks_micro_batches_and_batches_of_a_step() {
    let (x, y) = ragged(0, 8);
    let builder = sharded(rates()).loss(over_tokens).micro_batches(2).accumulating();
    let mut model = builder.shard(Devices::cpu(2), (&x, &y)).await.unwrap();
    let map = VarMap::new();
    model.export_into(&map).await.unwrap();
    let alone = Alone::new(&map).unwrap();
    let (one, other) = (ragged(1, 8), ragged(2, 5));
    let whole = |(x, y): &(Tensor, Tensor)| over_tokens(&alone.logits(x).unwrap(), y).unwrap();
    let ((sum, weight), (more, heavier)) = (whole(&one), whole(&other));
    let mean = (((sum + more).unwrap()) / ((weight + heavier).unwrap())).unwrap();
    let report = model.step_over(&[(&one.0, &one.1), (&other.0, &other.1)]).await.unwrap();
    let expected = mean.to_scalar::<f32>().unwrap();
    assert!(apart(&[report.loss], &[expected]) < 1e-5, "{} {expected}", report.loss);
    let gradients = mean.backward().unwrap();
    for name in ["model.embed.weight", "model.layers.0.qkv.weight", "lm_head.weight", "model.norm.weight"] {
        let ours = model.gradient(name).await.unwrap();
        let vars = map.data().lock().unwrap();
        let theirs = gradients.get(&vars[name]).unwrap();
        let size = theirs.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        let apart = (ours - theirs).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(apart <= 1e-5 * size, "{name}: {apart} of {size}");
    }
}

#[tokio::test]
async fn a_batch_of_which_nothing_counts_is_refused() {
    let (x, y) = batch(0, 4);
    let mut model = sharded(rates()).loss(over_tokens).shard(Devices::cpu(2), (&x, &y)).await.unwrap();
    let padding = y.zeros_like().unwrap();
    let (step, evaluation) = (model.step((&x, &padding)).await, model.evaluate((&x, &padding)).await);
    for refused in [step.map(|_| ()), evaluation.map(|_| ())] {
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("weight 0") && refused.contains("at least one sample that counts"),
            "{refused}"
        );
    }
    model.step((&x, &y)).await.unwrap();
}

#[tokio::test]
async fn a_weight_that_follows_from_the_logits_is_refused() {
    let (x, y) = batch(0, 4);
    let builder = sharded(rates()).loss(|logits, y| {
        let weight = (logits.abs()?.sum_all()? + 1.0)?;
        Ok((loss::cross_entropy(logits, y)?, weight))
    });
    let mut model = builder.shard(Devices::cpu(1), (&x, &y)).await.unwrap();
    let refused = model.step((&x, &y)).await.unwrap_err().to_string();
    assert!(refused.contains("follow from the targets alone"), "{refused}");
}

#[tokio::test]
async fn evaluation_and_prediction_have_shapes_of_their_own_and_the_values_of_candle_alone() {
    let ((x, y), (held_x, held_y)) = (batch(0, 8), batch(77, 5));
    let one = held_x.narrow(0, 0, 1).unwrap();
    let builder = sharded(rates()).evaluation((&held_x, &held_y)).prediction(&one);
    let mut model = builder.shard(Devices::cpu(2), (&x, &y)).await.unwrap();
    for _ in 0..3 {
        model.step((&x, &y)).await.unwrap();
    }
    let map = VarMap::new();
    model.export_into(&map).await.unwrap();
    let alone = Alone::new(&map).unwrap();
    let (ours, theirs) =
        (model.evaluate((&held_x, &held_y)).await.unwrap(), alone.loss((&held_x, &held_y)).unwrap());
    assert!(apart(&[ours], &[theirs.to_scalar().unwrap()]) < 1e-5);
    // A fixed window: the next byte is the likeliest after the last of the window.
    let logits = model.predict(&one).await.unwrap();
    assert_eq!(logits.to_vec2::<f32>().unwrap(), alone.logits(&one).unwrap().to_vec2::<f32>().unwrap());
    let mut plain = sharded(rates()).shard(Devices::cpu(1), (&x, &y)).await.unwrap();
    assert!(matches!(plain.predict(&one).await, Err(Error::Undeclared { .. })));
}
