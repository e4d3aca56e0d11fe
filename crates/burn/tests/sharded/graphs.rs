//! Kept graphs and recomputed blocks, and dropout.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Int, Tensor};
use warpweft_burn::{Devices, Error, Sharded, ShardedModel};

use crate::model::{Model, RATE, VOCABULARY, WIDTH, adam, apart, batch, device, drawn, sharded, values};

async fn train<M: Module + 'static>(model: &mut ShardedModel<M>) -> Vec<f32> {
    let mut losses = Vec::new();
    for step in 0..10 {
        losses.push(model.step(batch(step, 8)).await.unwrap().loss);
    }
    losses
}

#[tokio::test]
async fn computing_again_gives_the_bits_of_a_graph_that_was_kept_and_reads_no_more_than_the_input() {
    let start = async |builder: Sharded<Model>| builder.shard(Devices::cpu(2), batch(0, 8)).await.unwrap();
    let mut kept = start(sharded(adam(), Model::new(1))).await;
    let again = sharded(adam(), Model::new(1)).recompute("blocks.*").recompute("embed");
    let mut again = start(again).await;
    assert!(kept.blocks().iter().all(|block| !block.recomputes && !block.random));
    assert_eq!(again.blocks().iter().filter(|block| block.recomputes).count(), 3);
    assert_eq!(kept.blocks()[1].weights.len(), 6);
    assert_eq!(train(&mut kept).await, train(&mut again).await);
    assert_eq!(values(&kept.module().await.unwrap()), values(&again.module().await.unwrap()));
}

/// Maps with a dropout after each, and a loss that each map's weight enters once: Σ weight × gradient is the loss.
#[derive(Module, Debug)]
struct Dropped {
    embed: Embedding,
    maps: Vec<Linear>,
    dropout: Dropout,
}

impl Dropped {
    fn new() -> Self {
        let device = device();
        let map = |_| LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(&device);
        let dropped = Self {
            embed: EmbeddingConfig::new(VOCABULARY, WIDTH).init(&device),
            maps: (0..2).map(map).collect(),
            dropout: DropoutConfig::new(0.5).init(),
        };
        drawn(dropped, 3)
    }

    fn sharded(self) -> Sharded<Self> {
        Sharded::new(adam(), self)
            .learning_rate(RATE)
            .block("embed", |model: &Self, x: Tensor<2, Int>| model.embed.forward(x))
            .blocks(2, |number, model, x: Tensor<3>| model.dropout.forward(model.maps[number].forward(x)))
            .loss(|y: Tensor<3>, targets: Tensor<1, Int>| {
                let [samples, tokens, width] = y.dims();
                let signs = (targets % 2 * 2 - 1).float().reshape([samples, tokens, 1]);
                (y * signs.expand([samples, tokens, width])).mean()
            })
    }
}

#[tokio::test]
async fn with_a_dropout_of_a_half_the_gradient_is_that_of_the_reported_loss() {
    for (ranks, micro_batches) in [(1, 1), (2, 2)] {
        let builder = Dropped::new().sharded().micro_batches(micro_batches);
        let mut model = builder.shard(Devices::cpu(ranks), batch(0, 8)).await.unwrap();
        assert!(model.blocks()[1].random && model.blocks()[2].random);
        let mut losses = Vec::new();
        for step in 0..5 {
            let before = values(&model.module().await.unwrap());
            let loss = model.step(batch(0, 8)).await.unwrap().loss;
            for (name, weight) in &before {
                let gradient = model.gradient(name).await.unwrap();
                let products = weight.iter().zip(gradient.as_slice::<f32>().unwrap());
                let sum: f64 = products.map(|(weight, of)| f64::from(*weight) * f64::from(*of)).sum();
                println!("{ranks} ranks, step {step}, {name}: {sum:.6} of a loss of {loss:.6}");
                assert!(apart(&[sum as f32], &[loss]) < 1e-3, "{name}: {sum} {loss}");
            }
            losses.push(loss);
        }
        // Nothing is dropped in evaluation.
        let one = model.evaluate(batch(0, 8)).await.unwrap();
        assert_eq!(one, model.evaluate(batch(0, 8)).await.unwrap());
        losses.dedup();
        assert_eq!(losses.len(), 5);
    }
}

#[tokio::test]
async fn a_block_with_dropout_may_not_be_computed_again() {
    let builder = Dropped::new().sharded().recompute("blocks.1");
    let refused = builder.shard(Devices::cpu(2), batch(0, 8)).await.unwrap_err();
    assert!(matches!(&refused, Error::Random { block } if block == "blocks.1"), "{refused}");
}
