//! Sharded training against burn alone: losses, gradients, formats, prefetch, replicas, memory.

use std::collections::BTreeMap;

use warpweft::config::Config;
use warpweft::format::Format;
use warpweft::plan::StepPlan;
use warpweft_burn::{Devices, Entry, Settings, Sharded, ShardedModel};
use warpweft_plan::layout::Content;

use crate::model::{Alone, Model, adam, apart, apart_of_largest, batch, gradients, sharded};

const STEPS: usize = 100;
const SAMPLES: usize = 8;

async fn start(builder: Sharded<Model>, ranks: u32) -> ShardedModel<Model> {
    builder.shard(Devices::cpu(ranks), batch(0, SAMPLES)).await.unwrap()
}

async fn train(model: &mut ShardedModel<Model>, steps: usize) -> Vec<f32> {
    let mut losses = Vec::new();
    for step in 0..steps {
        losses.push(model.step(batch(step, SAMPLES)).await.unwrap().loss);
    }
    losses
}

fn train_alone(model: Model, parts: usize) -> Vec<f32> {
    let mut alone = Alone::new(model);
    (0..STEPS).map(|step| alone.step_in_parts(batch(step, SAMPLES), parts)).collect()
}

#[tokio::test]
async fn losses_are_those_of_burn_alone_on_one_rank_and_on_four() {
    let model = || Model::new(1);
    let (whole, parts) = (train_alone(model(), 1), train_alone(model(), 4));
    let one = train(&mut start(sharded(adam(), model()), 1).await, STEPS).await;
    let difference = apart(&one, &whole);
    println!("one rank: {difference:.2e}; losses {} to {}", one[0], one[STEPS - 1]);
    assert!(difference <= 1e-5, "{difference:e}");
    assert!(one[STEPS - 1] <= 0.6 * one[0], "{} {}", one[0], one[STEPS - 1]);
    let four = train(&mut start(sharded(adam(), model()), 4).await, STEPS).await;
    // burn's optimizer rounds otherwise, on one rank too; what four ranks add is told by the difference from one.
    let (ours, theirs) = (apart(&four, &one), apart(&parts, &whole));
    let from_burn = apart(&four, &whole);
    println!("four ranks: {ours:.2e} from one and {from_burn:.2e} from burn; burn's four parts {theirs:.2e}");
    assert!(ours <= 3.0 * theirs.max(f32::EPSILON) && from_burn <= 1e-5, "{ours:e} {theirs:e} {from_burn:e}");
}

#[tokio::test]
async fn in_the_first_step_every_weight_has_a_gradient_that_is_burns() {
    let alone = Alone::new(Model::new(2));
    let mut model = start(sharded(adam(), alone.model.clone()), 2).await;
    let expected = gradients(&alone.model, alone.loss(batch(0, SAMPLES)).backward());
    model.step(batch(0, SAMPLES)).await.unwrap();
    let names: Vec<String> = model.tensors().iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names.len(), 15);
    for name in names {
        let gradient = model.gradient(&name).await.unwrap();
        let gradient = gradient.as_slice::<f32>().unwrap();
        assert!(gradient.iter().any(|value| *value != 0.0), "{name}");
        let difference = apart_of_largest(gradient, &expected[&name]);
        assert!(difference <= 1e-5, "{name}: {difference:e}");
    }
}

#[tokio::test]
async fn fp8_loses_at_most_three_percent_and_nvfp4_learns() {
    let plain = train(&mut start(sharded(adam(), Model::new(3)), 2).await, STEPS).await;
    let last = |losses: &[f32]| losses[STEPS - 10..].iter().sum::<f32>() / 10.0;
    for (format, most) in [("fp8_block", 0.03), ("nvfp4_2d", 0.4)] {
        let format: Format = format.parse().unwrap();
        let mut model = start(sharded(adam(), Model::new(3)).format("layers.*", format), 2).await;
        let losses = train(&mut model, STEPS).await;
        let more = last(&losses) / last(&plain) - 1.0;
        println!("{format}: {:+.2} %, {} to {}", 100.0 * more, losses[0], last(&losses));
        // Rows of 64 columns are four blocks of NVFP4: so small a model bears less of it than a real one.
        assert!(more.abs() <= most && last(&losses) <= 0.6 * losses[0], "{format}: {losses:?}");
    }
}

#[tokio::test]
async fn prefetch_depth_changes_no_bit_and_replicas_train_like_ranks() {
    let config = |toml: &str| {
        let mut config = Config::load_toml_str(toml, "test").unwrap();
        config.optimizer = Settings::from(adam()).config.optimizer;
        config
    };
    let start = |toml| start(sharded(config(toml), Model::new(4)), 4);
    let expected = train(&mut start("").await, 20).await;
    for toml in ["prefetch.depth = 0", "prefetch.depth = 2"] {
        assert_eq!(train(&mut start(toml).await, 20).await, expected, "{toml}");
    }
    let replicas = train(&mut start("mesh.dp_replicate = 2").await, 20).await;
    assert!(apart(&replicas, &expected) < 1e-5);
}

#[tokio::test]
async fn gathered_bytes_are_those_of_depth_and_one_layers_and_state_falls_with_ranks() {
    let mut resident = Vec::new();
    for ranks in [1, 2, 4] {
        let mut model = start(sharded(adam(), Model::new(5)), ranks).await;
        resident.push(model.session().plan("train").unwrap().bounds.resident_bytes);
    }
    println!("state a rank of 1, 2, 4: {resident:?}");
    assert!(resident.is_sorted_by(|more, less| more > less), "{resident:?}");
    for depth in [0, 1, 2] {
        let config = Config::load_toml_str(&format!("prefetch.depth = {depth}"), "test").unwrap();
        let mut model = start(sharded(config, Model::new(5)), 2).await;
        let of_layer = |entry: &&Entry| entry.name.starts_with("layers.0") && entry.shape.len() == 2;
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
