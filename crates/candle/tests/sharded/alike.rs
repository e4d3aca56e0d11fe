//! Sharded training against candle alone: losses, gradients, formats, prefetch and replicas.

use std::collections::BTreeMap;

use candle_nn::VarMap;
use warpweft::config::Config;
use warpweft::format::Format;
use warpweft::plan::StepPlan;
use warpweft_candle::{Devices, Entry, Settings, Sharded, ShardedModel};
use warpweft_plan::layout::Content;

use crate::model::{Alone, apart, batch, rates, sharded};

const STEPS: usize = 100;
const SAMPLES: usize = 8;

async fn start(builder: Sharded, ranks: u32) -> ShardedModel {
    let (x, y) = batch(0, SAMPLES);
    builder.shard(Devices::cpu(ranks), (&x, &y)).await.unwrap()
}

async fn train(model: &mut ShardedModel, steps: usize) -> Vec<f32> {
    let mut losses = Vec::new();
    for step in 0..steps {
        let (x, y) = batch(step, SAMPLES);
        losses.push(model.step((&x, &y)).await.unwrap().loss);
    }
    losses
}

/// Candle alone from the weights that a sharded model has now.
async fn alone(model: &mut ShardedModel) -> Alone {
    let map = VarMap::new();
    model.export_into(&map).await.unwrap();
    Alone::new(&map).unwrap()
}

fn train_alone(alone: &mut Alone, parts: usize) -> Vec<f32> {
    let step = |step| {
        let (x, y) = batch(step, SAMPLES);
        alone.step_in_parts((&x, &y), parts).unwrap()
    };
    (0..STEPS).map(step).collect()
}

#[tokio::test]
async fn losses_are_those_of_candle_alone_on_one_rank_and_on_four() {
    let mut one = start(sharded(rates()), 1).await;
    let mut four = start(sharded(rates()), 4).await;
    let (mut whole, mut parts) = (alone(&mut one).await, alone(&mut four).await);
    let (whole, parts) = (train_alone(&mut whole, 1), train_alone(&mut parts, 4));
    let one = train(&mut one, STEPS).await;
    let difference = apart(&one, &whole);
    println!("one rank: {difference:.2e}; losses {} to {}", one[0], one[STEPS - 1]);
    assert!(difference <= 1e-5, "{difference:e}");
    assert!(one[STEPS - 1] <= 0.6 * one[0], "{} {}", one[0], one[STEPS - 1]);
    let four = train(&mut four, STEPS).await;
    // Candle's optimizer rounds otherwise, on one rank too; what four ranks add is told by the difference from one.
    let (ours, theirs) = (apart(&four, &one), apart(&parts, &whole));
    let from_candle = apart(&four, &whole);
    println!(
        "four ranks: {ours:.2e} from one and {from_candle:.2e} from candle; candle's four parts {theirs:.2e}"
    );
    assert!(ours <= 2.0 * theirs && from_candle <= 1e-5, "{ours:e} {theirs:e} {from_candle:e}");
}

#[tokio::test]
async fn in_the_first_step_every_weight_has_a_gradient_that_is_candles() {
    let mut model = start(sharded(rates()), 2).await;
    let map = VarMap::new();
    model.export_into(&map).await.unwrap();
    let alone = Alone::new(&map).unwrap();
    let (x, y) = batch(0, SAMPLES);
    let expected = alone.loss((&x, &y)).unwrap().backward().unwrap();
    model.step((&x, &y)).await.unwrap();
    let names: Vec<String> = model.tensors().iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names.len(), 15);
    for name in names {
        let gradient = model.gradient(&name).await.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let vars = map.data().lock().unwrap();
        let expected = expected.get(&vars[&name]).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let size = expected.iter().fold(0.0_f32, |size, value| size.max(value.abs()));
        assert!(size > 0.0, "{name}");
        for (gradient, expected) in gradient.iter().zip(expected) {
            assert!((gradient - expected).abs() <= 1e-5 * size, "{name}: {gradient} {expected}");
        }
    }
}

#[tokio::test]
async fn fp8_loses_at_most_two_percent_and_nvfp4_learns() {
    let plain = train(&mut start(sharded(rates()), 2).await, STEPS).await;
    let last = |losses: &[f32]| losses[STEPS - 10..].iter().sum::<f32>() / 10.0;
    for (format, most) in [("fp8_block", 0.02), ("nvfp4_2d", 0.4)] {
        let format: Format = format.parse().unwrap();
        let mut model = start(sharded(rates()).format("*layers*", format), 2).await;
        let losses = train(&mut model, STEPS).await;
        let more = last(&losses) / last(&plain) - 1.0;
        println!("{format}: {:+.2} %, {} to {}", 100.0 * more, losses[0], last(&losses));
        // Rows of 32 columns are two blocks of NVFP4: so small a model bears less of it than a real one.
        assert!(more.abs() <= most && last(&losses) <= 0.6 * losses[0], "{format}: {losses:?}");
    }
}

#[tokio::test]
async fn prefetch_depth_changes_no_bit_and_replicas_train_like_ranks() {
    let config = |toml: &str| {
        let mut config = Config::load_toml_str(toml, "test").unwrap();
        config.optimizer = Settings::from(rates()).config.optimizer;
        config
    };
    let expected = train(&mut start(sharded(config("")), 4).await, 20).await;
    let settings = [
        "prefetch.depth = 0",
        "prefetch.depth = 2",
        "prefetch.policy = \"auto\"\nprefetch.cluster = \"h100x8-ib\"",
    ];
    for toml in settings {
        let losses = train(&mut start(sharded(config(toml)), 4).await, 20).await;
        assert_eq!(losses, expected, "{toml}");
    }
    let replicas = train(&mut start(sharded(config("mesh.dp_replicate = 2")), 4).await, 20).await;
    assert!(apart(&replicas, &expected) < 1e-5);
}

#[tokio::test]
async fn gathered_bytes_are_those_of_depth_and_one_layers_and_state_falls_with_ranks() {
    let mut resident = Vec::new();
    for ranks in [1, 2, 4] {
        let mut model = start(sharded(rates()), ranks).await;
        resident.push(model.session().plan("train").unwrap().bounds.resident_bytes);
    }
    println!("state a rank of 1, 2, 4: {resident:?}");
    assert!(resident.is_sorted_by(|more, less| more > less), "{resident:?}");
    for depth in [0, 1, 2] {
        let config = Config::load_toml_str(&format!("prefetch.depth = {depth}"), "test").unwrap();
        let mut model = start(sharded(config), 2).await;
        let of_layer = |entry: &&Entry| entry.name.starts_with("model.layers.0") && entry.shape.len() == 2;
        let layer = model.tensors().iter().filter(of_layer);
        let layer: usize = layer.map(|entry| 4 * entry.shape.iter().product::<usize>()).sum();
        for program in ["evaluate", "train"] {
            let gathered = gathered_at_once(model.session().plan(program).unwrap());
            println!("depth {depth}, {program}: {gathered} of {layer} bytes of a layer");
            assert!(gathered <= (depth + 1) * layer, "{program}: {gathered} of {layer}");
        }
    }
}

/// The most bytes of gathered weights that a plan has at once, and of what is made of them.
fn gathered_at_once(plan: &StepPlan) -> usize {
    let is_gathered =
        |content| matches!(content, Content::Gathered(..) | Content::Transposed(_) | Content::Dense(..));
    let mut spans = BTreeMap::new();
    for (at, task) in plan.tasks.iter().enumerate() {
        for (slot, _) in task.op.accesses() {
            spans.entry(slot.index()).or_insert((at, at)).1 = at;
        }
    }
    let at_once = |at: usize| {
        let live = spans.iter().filter(|(slot, (first, last))| {
            is_gathered(plan.arena.slots[**slot].content) && (*first..=*last).contains(&at)
        });
        live.map(|(slot, _)| plan.arena.slots[*slot].region.bytes).sum()
    };
    (0..plan.tasks.len()).map(at_once).max().unwrap_or(0)
}
