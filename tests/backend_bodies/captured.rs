//! EX-1 of whole sessions: steps of every format give the same bits captured whole, captured in segments and issued.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use half::bf16;
use warpweft_base::id::{CallId, MicroBatchId, RankId};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::Call;
use warpweft_plan::op::{AllGather, Compute, Op};
use warpweft_plan::plan::StepPlan;
use warpweft_session::checkpoint::Checkpoint;
use warpweft_session::config::{Capture, Config, Prefetch, Scaling};
use warpweft_session::session::{MainGrad, Outcome, Session};

use super::experts::{Declared, ELEMENTS, EXPERTS, MICRO_BATCHES, declare, formats, initial};
use super::harness::{noise, within_limit};
use crate::device::most_captured_ranks;
use crate::products::{Layers, Surface, settled, start};

pub(crate) const STEPS: u32 = 6;

/// Where a product found its weight, and where it wrote y or dW.
pub(crate) type Addresses = [u64; 2];

/// By rank, micro-batch, call and expert. A replay that runs no closures adds nothing, and uses what the
/// capture was given.
type Seen = Arc<Mutex<BTreeMap<(RankId, MicroBatchId, CallId, usize), BTreeSet<Addresses>>>>;

/// What came of some steps.
pub(crate) struct Trained {
    /// Of every step, rank, expert and micro-batch.
    pub(crate) outputs: Vec<Vec<bf16>>,
    /// Of the last step, as the user reads them.
    main_grads: Vec<MainGrad>,
    checkpoint: Checkpoint,
    arena_bytes: usize,
}

impl Trained {
    /// Masters, moments, scales and planes.
    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Bits of all masters.
    pub(crate) fn masters(&self) -> Vec<u32> {
        let masters = self.checkpoint.weights.iter().flat_map(|weight| weight.master.iter());
        masters.map(|value| value.to_bits()).collect()
    }
}

async fn trained(scaling: Scaling, capture: Capture, dynamic: &[&str]) -> Trained {
    let config = Config { capture, prefetch: Prefetch::depth(1), ..Config::default() };
    trained_on(most_captured_ranks(), scaling, config, declare(dynamic), dynamic.len()).await
}

/// The same on so many ranks, of a program with so many dynamic calls in a micro-batch.
pub(crate) async fn trained_on(
    ranks: u32,
    scaling: Scaling,
    config: Config,
    declared: Declared,
    dynamic: usize,
) -> Trained {
    let capture = config.capture;
    let mut config = settled(config);
    config.quantize.scaling = scaling;
    config.quantize.amax_history = 3;
    config.optimizer.max_norm = 1.0;
    let config_depth = config.prefetch.depth;
    let Declared { program, products } = declared;
    let (seen, products) = (Seen::default(), Arc::new(products));
    let book = Arc::clone(&seen);
    let factory = move |rank: RankId| {
        let (book, products) = (Arc::clone(&book), Arc::clone(&products));
        let mut layers = Layers::new(rank, &formats());
        move |call: &Call, context: &ComputeContext<'_, Surface>| -> Result<(), ComputeError> {
            let (block, products) = &products[&call.name];
            for (expert, product) in products.iter().enumerate() {
                let addresses = layers.run(*block, context, *product)?;
                let key = (rank, context.micro_batch(), context.call(), expert);
                book.lock().unwrap().entry(key).or_default().insert(addresses);
            }
            Ok(())
        }
    };
    let builder = Session::builder(config, factory).program(program).initialize(initial);
    let mut session = start(builder, ranks).await;
    let plan = Arc::clone(session.plan("train").unwrap());
    if plan.weights.mesh.shards() > 1 && config_depth == Some(1) {
        assert_one_gather_a_group_one_block_ahead(&plan);
    }
    let segments = match capture {
        Capture::Off => 0,
        Capture::Step => 1,
        Capture::Segments => MICRO_BATCHES * dynamic + 1,
    };
    let (mut outputs, mut told) = (Vec::new(), 0.0);
    for step in 0..STEPS {
        for (rank, expert) in each(ranks) {
            let seed = (step * ranks + rank.number()) * EXPERTS as u32 + expert as u32;
            let tokens = noise(MICRO_BATCHES * ELEMENTS, seed).into_iter().map(bf16::from_f32);
            let tokens: Vec<bf16> = tokens.collect();
            session.write_input("train", rank, &format!("input {expert}"), &tokens).unwrap();
        }
        let report = session.step("train").await.unwrap();
        assert_eq!(report.not_captured, [], "{scaling:?}, {capture:?}, step {step}");
        assert_eq!(report.segments, if step == 0 { 0 } else { segments }, "{capture:?}, step {step}");
        let Outcome::Updated { norm, .. } = report.outcome else { panic!("{:?}", report.outcome) };
        told = f64::from(norm);
        outputs.extend(
            each(ranks).map(|(rank, expert)| report.output(rank, &format!("output {expert}")).unwrap()),
        );
    }
    assert!(Arc::ptr_eq(&plan, session.plan("train").unwrap()), "one plan from the first step to the last");
    // Replicas have the same rows, or slices of them, and the norm is that of all values.
    let main_grads = session.main_grads().await.unwrap();
    let mut counted = BTreeSet::new();
    let once = main_grads
        .iter()
        .filter(|part| counted.insert(format!("{} {:?} {:?}", part.weight, part.rows, part.columns)));
    let squares = once.flat_map(|part| &part.values).map(|value| f64::from(*value).powi(2));
    let norm = squares.sum::<f64>().sqrt();
    assert!(told > 0.0 && (norm - told).abs() < 1e-6 * told, "{norm} {told}, {scaling:?}, {capture:?}");
    let checkpoint = session.export().await.unwrap();
    assert_eq!(checkpoint.optimizer_step, STEPS, "no step was skipped");
    session.close().await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), plan.calls.len() * EXPERTS * ranks as usize, "every call has run on every rank");
    for (place, addresses) in seen.iter() {
        assert_eq!(addresses.len(), 1, "{place:?} moved: {addresses:x?}, {capture:?}");
    }
    Trained { outputs, main_grads, checkpoint, arena_bytes: plan.arena.bytes() }
}

fn each(ranks: u32) -> impl Iterator<Item = (RankId, usize)> {
    (0..ranks).flat_map(|rank| (0..EXPERTS).map(move |expert| (RankId::new(rank), expert)))
}

/// Gathers bring whole groups, and those of a block stand before the call of the block before.
fn assert_one_gather_a_group_one_block_ahead(plan: &StepPlan) {
    let mut gathers = Vec::new();
    for (at, task) in plan.tasks.iter().enumerate() {
        if let Op::AllGather(AllGather { parts, .. }) = &task.op {
            let block = parts[0].weight.index() / EXPERTS;
            let of: Vec<usize> = parts.iter().map(|part| part.weight.index()).collect();
            assert_eq!(of, (block * EXPERTS..(block + 1) * EXPERTS).collect::<Vec<_>>());
            gathers.push((at, block));
        }
    }
    for (block, format) in formats().into_iter().enumerate().skip(1) {
        let before = plan.tasks.iter().position(|task| {
            matches!(task.op, Op::Compute(Compute { call, .. }) if plan.calls[call.index()].name == format!("f{}", block - 1))
        });
        let gather = gathers.iter().find(|(_, of)| *of == block).unwrap().0;
        assert!(gather < before.unwrap(), "{format} is gathered one block ahead");
    }
}

/// Half the squared length of these outputs.
pub(crate) fn loss(outputs: &[Vec<bf16>]) -> f64 {
    outputs.iter().flatten().map(|value| f64::from(value.to_f32()).powi(2) / 2.0).sum()
}

pub(crate) fn assert_same_bits(found: &Trained, expected: &Trained, how: &str) {
    let bits = |values: &Vec<bf16>| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    for (number, (found, expected)) in found.outputs.iter().zip(&expected.outputs).enumerate() {
        assert!(bits(found) == bits(expected), "{how}: outputs {number}");
    }
    let master = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(found.main_grads == expected.main_grads, "main grads, {how}");
    for (found, expected) in found.checkpoint.weights.iter().zip(&expected.checkpoint.weights) {
        assert!(master(&found.master) == master(&expected.master), "{how}: the master of {}", found.name);
        assert!(found == expected, "{how}: planes, moments and scales of {}", found.name);
    }
    assert!(found.checkpoint == expected.checkpoint, "{how}");
}

/// EX-1. Micro-batches, repeated calls and groups of experts one block ahead, of every format, in one step.
fn captured_steps_of_every_format_give_the_bits_of_issued_ones(scaling: Scaling) {
    within_limit(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let issued = runtime.block_on(trained(scaling, Capture::Off, &[]));
        let of_a_step = issued.outputs.len() / STEPS as usize;
        let (first, last) =
            (loss(&issued.outputs[..of_a_step]), loss(&issued.outputs[issued.outputs.len() - of_a_step..]));
        assert!(last.is_finite() && last < 0.8 * first, "it learns: {first}, {last}");
        let captured = runtime.block_on(trained(scaling, Capture::Step, &[]));
        assert_same_bits(&captured, &issued, "captured whole");
        assert_eq!(captured.arena_bytes, issued.arena_bytes);
        // In forward, a repeated call, and in backward.
        let dynamic = ["f4", "f6 again", "b3"];
        let segments = runtime.block_on(trained(scaling, Capture::Segments, &dynamic));
        assert_same_bits(&segments, &issued, "in segments");
    });
}

fn captured_steps_of_experts_of_every_format_give_the_bits_of_issued_ones() {
    captured_steps_of_every_format_give_the_bits_of_issued_ones(Scaling::Current);
}

fn captured_steps_of_experts_give_the_bits_of_issued_ones_with_delayed_scaling() {
    captured_steps_of_every_format_give_the_bits_of_issued_ones(Scaling::Delayed);
}

bodies! {
    captured_steps_of_experts_of_every_format_give_the_bits_of_issued_ones,
    captured_steps_of_experts_give_the_bits_of_issued_ones_with_delayed_scaling,
}
