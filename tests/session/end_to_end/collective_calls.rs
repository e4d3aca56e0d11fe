//! A contrastive loss over the examples of all ranks: an all-gather of features, an all-to-all of their gradients, a
//! sum of the loss.
//!
//! All sums here are of whole numbers that f32 holds exactly, so any number of ranks makes the same bits of them: what
//! pulls at a feature is rounded, by the same rank for all, and everything after that is multiplied and added only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Collective, CollectiveKind, Form, Model, Phase, StepProgram};
use warpweft_plan::op::Op;
use warpweft_session::checkpoint::Checkpoint;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{Outcome, Session, SessionBuilder, SessionError, StepReport, block_on};
use warpweft_testing::trainer::{ended, within_a_minute};

/// Of all ranks together.
const EXAMPLES: usize = 8;
const WIDTH: usize = 5;
/// Not a multiple of any number of ranks but two.
const FEATURES: usize = 6;
const STEPS: u32 = 5;

/// Captured in segments, it has a call that is issued anew in every step, between two collectives.
fn program(ranks: u32, micro_batches: u32, capture: Capture) -> (StepProgram, WeightId) {
    let own_examples = EXAMPLES / ranks as usize;
    let mut model = Model::builder();
    let weight = model.sharded("w", FEATURES, WIDTH, Format::F32).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    program.micro_batches(micro_batches).unwrap();
    let x = program.input("x", own_examples * WIDTH, ElementType::F32).unwrap();
    let own = program.activation("own", own_examples * FEATURES).unwrap();
    let all = program.activation("all", EXAMPLES * FEATURES).unwrap();
    let pulls = program.activation("pulls", EXAMPLES * FEATURES).unwrap();
    let back = program.activation("back", EXAMPLES * FEATURES).unwrap();
    let share = program.activation("share", 1).unwrap();
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let (forward, backward) = (Phase::Forward, Phase::Backward);
    let call = program.call("features", forward).uses(weight, Orientation::Rowwise, Form::Dense);
    call.reads(x).writes(own).add().unwrap();
    program.collective("gather", forward, Collective::new(CollectiveKind::AllGather, own, all)).unwrap();
    let call = program.call("pull", forward).reads(all).writes(pulls).writes(share);
    let call = if capture == Capture::Segments { call.dynamic() } else { call };
    call.add().unwrap();
    program.collective("sum", forward, Collective::new(CollectiveKind::Sum, share, loss)).unwrap();
    program
        .collective("give back", backward, Collective::new(CollectiveKind::AllToAll, pulls, back))
        .unwrap();
    program.call("fit", backward).reads(x).reads(back).gradient(weight).add().unwrap();
    (program.build_training().unwrap(), weight)
}

/// What goes wrong on rank 1: nothing, an error, a value that is no number, or a panic.
#[derive(Clone, Default)]
struct Mischief(Arc<AtomicU32>);

impl Mischief {
    const ERROR: u32 = 1;
    const NAN: u32 = 2;
    const PANIC: u32 = 3;

    fn set(&self, kind: u32) {
        self.0.store(kind, Ordering::SeqCst);
    }

    fn now(&self, rank: RankId) -> u32 {
        if rank == RankId::new(1) { self.0.load(Ordering::SeqCst) } else { 0 }
    }
}

fn run(
    call: &Call,
    context: &ComputeContext<'_, CpuSurface>,
    (weight, ranks): (WeightId, usize),
    mischief: &Mischief,
) -> Result<(), ComputeError> {
    let rank = context.rank();
    let read = |name: &str| context.read::<f32>(context.buffer_named(name)?);
    let write = |name: &str| context.write::<f32>(context.buffer_named(name)?);
    match call.name.as_str() {
        "features" => {
            let (weight, x) = (context.dense(weight, Orientation::Rowwise)?, read("x")?);
            let kind = mischief.now(rank);
            match kind {
                Mischief::ERROR => return Err(ComputeError::closure("no features today")),
                Mischief::PANIC => panic!("no features ever"),
                _ => {}
            }
            let mut own = write("own")?;
            for (x, own) in x.chunks(WIDTH).zip(own.chunks_mut(FEATURES)) {
                for (row, own) in weight.chunks(WIDTH).zip(own) {
                    *own = row.iter().zip(x).map(|(weight, x)| weight * x).sum();
                }
            }
            if kind == Mischief::NAN {
                own[0] = f32::NAN;
            }
        }
        "pull" => {
            let all = read("all")?;
            let (mut pulls, mut share) = (write("pulls")?, write("share")?);
            share[0] = 0.0;
            for feature in 0..FEATURES {
                let is_own = feature % ranks == rank.index();
                let sum = if is_own { pull(&all, feature) } else { 0.0 };
                share[0] += sum * sum;
                for (example, pulls) in pulls.chunks_mut(FEATURES).enumerate() {
                    pulls[feature] = (example + 1) as f32 * sum;
                }
            }
        }
        _ => {
            let (x, back) = (read("x")?, read("back")?);
            let mut gradient = context.gradient(weight)?;
            gradient.fill(0.0);
            for (example, x) in x.chunks(WIDTH).enumerate() {
                for (feature, gradient) in gradient.chunks_mut(WIDTH).enumerate().take(FEATURES) {
                    let parts = back.chunks(back.len() / ranks);
                    let pulled: f32 = parts.map(|part| part[example * FEATURES + feature]).sum();
                    // The library takes the mean over the ranks; this loss is a sum over their examples.
                    gradient.iter_mut().zip(x).for_each(|(sum, x)| *sum += ranks as f32 * pulled * x);
                }
            }
        }
    }
    Ok(())
}

/// Of a feature of all examples, each weighted by its number: that of another order of ranks would be another.
fn pull(all: &[f32], feature: usize) -> f32 {
    let values = all.chunks(FEATURES).zip(1u8..).map(|(own, number)| f32::from(number) * own[feature]);
    values.sum::<f32>().round()
}

fn initial(rows: MasterRows<'_>, values: &mut [f32]) {
    let first = rows.first_element();
    values.iter_mut().enumerate().for_each(|(at, value)| *value = weight_at(first + at));
}

fn weight_at(place: usize) -> f32 {
    (place * 7 % 5) as f32 - 2.0
}

/// A small whole number.
fn x(step: u32, micro_batch: u32, example: usize, at: usize) -> f32 {
    let mixed = (step * 11 + micro_batch * 5 + example as u32 * 3 + at as u32) * (at as u32 + 2);
    (mixed % 7 % 4) as f32 - 1.0
}

fn builder(
    ranks: u32,
    micro_batches: u32,
    config: Config,
    mischief: &Mischief,
) -> SessionBuilder<CpuSurface> {
    let (program, weight) = program(ranks, micro_batches, config.capture);
    let program = if micro_batches == 1 { program.accumulating().unwrap() } else { program };
    let mischief = mischief.clone();
    let closures = move |_: RankId| {
        let mischief = mischief.clone();
        move |call: &Call, context: &ComputeContext<'_, CpuSurface>| {
            run(call, context, (weight, ranks as usize), &mischief)
        }
    };
    Session::builder(config, closures).program(program).initialize(initial)
}

fn feed(session: &mut Session, ranks: u32, step: u32) {
    let micro_batches = session.plan("train").unwrap().micro_batches;
    feed_batches(session, ranks, step, 0..micro_batches);
}

fn feed_batches(session: &mut Session, ranks: u32, step: u32, batches: std::ops::Range<u32>) {
    let own = EXAMPLES / ranks as usize;
    for rank in 0..ranks {
        let examples = || rank as usize * own..(rank as usize + 1) * own;
        let places = batches.clone().flat_map(|batch| examples().map(move |example| (batch, example)));
        let values: Vec<f32> = places
            .flat_map(|(batch, example)| (0..WIDTH).map(move |at| x(step, batch, example, at)))
            .collect();
        session.write_input("train", RankId::new(rank), "x", &values).unwrap();
    }
}

/// Of every micro-batch, the same for all ranks.
fn losses(report: &StepReport, ranks: u32) -> Vec<f32> {
    let of_rank = |rank| report.output::<f32>(RankId::new(rank), "loss").unwrap();
    let first = of_rank(0);
    assert!((1..ranks).all(|rank| of_rank(rank) == first));
    first
}

async fn train(session: &mut Session, ranks: u32, steps: std::ops::Range<u32>) -> Vec<f32> {
    let mut all = Vec::new();
    for step in steps {
        feed(session, ranks, step);
        let report = session.step("train").await.unwrap();
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "{:?}", report.outcome);
        all.extend(losses(&report, ranks));
    }
    all
}

/// Masters and moments, as bits.
fn bits(checkpoint: &Checkpoint) -> Vec<u32> {
    let lists =
        checkpoint.weights.iter().flat_map(|state| std::iter::once(&state.master).chain(&state.states));
    lists.flatten().map(|value| value.to_bits()).collect()
}

fn config(capture: Capture, replicas: u32) -> Config {
    let mut config = Config { capture, check: true, ..Config::default() };
    config.optimizer.lr = 0.05;
    config.mesh.dp_replicate = Some(replicas);
    config
}

/// What the first step of whole batches must find, from the masters at the start alone.
fn first_loss(micro_batch: u32) -> f32 {
    let feature = |example: usize, feature: usize| -> f32 {
        (0..WIDTH).map(|at| weight_at(feature * WIDTH + at) * x(0, micro_batch, example, at)).sum()
    };
    let of_example = |example| (0..FEATURES).map(move |number| feature(example, number));
    let all: Vec<f32> = (0..EXAMPLES).flat_map(of_example).collect();
    (0..FEATURES).map(|number| pull(&all, number).powi(2)).sum()
}

/// EX-1.
#[test]
fn a_loss_over_the_examples_of_all_ranks_trains_the_same_weights_on_any_number_of_ranks() {
    within_a_minute(async {
        for micro_batches in [1, 2] {
            let mut reference = None;
            let worlds = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2)];
            let captures = [Capture::Off, Capture::Step, Capture::Segments];
            for ((ranks, replicas), capture) in
                worlds.into_iter().flat_map(|world| captures.map(|how| (world, how)))
            {
                let none = Mischief::default();
                let builder = builder(ranks, micro_batches, config(capture, replicas), &none);
                let mut session = builder.start_cpu(ranks).await.unwrap();
                let collectives = session.plan("train").unwrap().tasks.iter();
                let collectives = collectives.filter(|task| matches!(task.op, Op::CollectiveCall(_))).count();
                assert_eq!(collectives, 3 * micro_batches as usize);
                let found = train(&mut session, ranks, 0..STEPS).await;
                let left = bits(&session.export().await.unwrap());
                session.close().await.unwrap();
                let first: Vec<f32> = (0..micro_batches).map(first_loss).collect();
                assert_eq!(found[..micro_batches as usize], first, "{ranks} ranks");
                assert!(found.last() < found.first(), "it learns: {found:?}");
                let expected = reference.get_or_insert_with(|| (found.clone(), left.clone()));
                let what =
                    format!("{ranks} ranks, {replicas} replicas, {capture:?}, {micro_batches} micro-batches");
                assert_eq!(found, expected.0, "{what}");
                assert!(left == expected.1, "masters and moments: {what}");
            }
        }
    });
}

/// PL-4: a sum over several steps has the collectives of each.
#[test]
fn steps_with_collectives_that_are_added_up_are_one_of_as_many_micro_batches() {
    within_a_minute(async {
        for capture in [Capture::Off, Capture::Step] {
            let start = |micro_batches| {
                builder(2, micro_batches, config(capture, 1), &Mischief::default()).start_cpu(2)
            };
            // Halves, so that the mean over them is exact wherever it is taken.
            let (mut whole, mut parts) = (start(2).await.unwrap(), start(1).await.unwrap());
            let expected = train(&mut whole, 2, 0..STEPS).await;
            let mut found = Vec::new();
            for step in 0..STEPS {
                for batch in 0..2 {
                    feed_batches(&mut parts, 2, step, batch..batch + 1);
                    let report = match batch {
                        1 => parts.step("train").await.unwrap(),
                        _ => parts.accumulate("train").await.unwrap(),
                    };
                    found.extend(losses(&report, 2));
                }
            }
            assert_eq!(found, expected, "{capture:?}");
            let [whole, parts] = [whole.export().await.unwrap(), parts.export().await.unwrap()];
            assert!(bits(&whole) == bits(&parts), "{capture:?}");
        }
    });
}

/// CO-2: the rank whose closure failed takes part in the collectives after it, or its peers would wait past the
/// minute.
#[test]
fn a_closure_that_fails_before_a_collective_changes_no_weight_on_any_rank_and_the_next_step_is_right() {
    within_a_minute(async {
        for (ranks, capture) in
            [(2, Capture::Off), (4, Capture::Off), (4, Capture::Step), (4, Capture::Segments)]
        {
            let mut plain =
                builder(ranks, 2, config(capture, 1), &Mischief::default()).start_cpu(ranks).await.unwrap();
            let expected = train(&mut plain, ranks, 0..STEPS).await;
            let mischief = Mischief::default();
            let mut session =
                builder(ranks, 2, config(capture, 1), &mischief).start_cpu(ranks).await.unwrap();
            let mut found = train(&mut session, ranks, 0..2).await;
            let before = session.export().await.unwrap();
            mischief.set(Mischief::ERROR);
            feed(&mut session, ranks, 2);
            let error = session.step("train").await.unwrap_err();
            let SessionError::Closure { rank, call, panicked: None, .. } = &error else { panic!("{error}") };
            assert_eq!((*rank, call.as_str()), (RankId::new(1), "features"), "{capture:?}");
            assert_eq!(session.export().await.unwrap(), before, "{capture:?}");
            mischief.set(0);
            found.extend(train(&mut session, ranks, 2..STEPS).await);
            assert_eq!(found, expected, "{capture:?}");
            assert_eq!(session.export().await.unwrap(), plain.export().await.unwrap(), "{capture:?}");
        }
    });
}

/// EX-2, of a value that came by a collective.
#[test]
fn a_feature_of_one_rank_that_is_no_number_skips_the_step_on_all_and_the_next_is_right() {
    within_a_minute(async {
        for capture in [Capture::Off, Capture::Segments] {
            let mut plain =
                builder(2, 1, config(capture, 1), &Mischief::default()).start_cpu(2).await.unwrap();
            let expected = train(&mut plain, 2, 0..STEPS).await;
            let mischief = Mischief::default();
            let mut session = builder(2, 1, config(capture, 1), &mischief).start_cpu(2).await.unwrap();
            let mut found = train(&mut session, 2, 0..2).await;
            let before = session.export().await.unwrap();
            mischief.set(Mischief::NAN);
            feed(&mut session, 2, 2);
            let report = session.step("train").await.unwrap();
            assert!(matches!(report.outcome, Outcome::Skipped { .. }), "{:?}", report.outcome);
            for rank in [0, 1] {
                let loss = report.output::<f32>(RankId::new(rank), "loss").unwrap();
                assert!(loss[0].is_nan(), "rank {rank} saw it");
            }
            assert_eq!(session.export().await.unwrap(), before);
            mischief.set(0);
            found.extend(train(&mut session, 2, 2..STEPS).await);
            assert_eq!(found, expected, "{capture:?}");
        }
    });
}

#[test]
fn a_closure_that_panics_before_a_collective_leaves_no_rank_waiting_in_it() {
    within_a_minute(async {
        let mischief = Mischief::default();
        let mut session = builder(4, 1, config(Capture::Off, 1), &mischief).start_cpu(4).await.unwrap();
        train(&mut session, 4, 0..2).await;
        let good = session.export().await.unwrap();
        mischief.set(Mischief::PANIC);
        feed(&mut session, 4, 2);
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(&error, SessionError::Closure { panicked: Some(_), .. }), "{error}");
        assert_eq!(session.export().await.unwrap(), good);
        session.close().await.unwrap();
    });
}

/// On no runtime, and step by step on threads of its own.
#[test]
fn a_session_with_collectives_needs_no_executor_and_is_bound_to_no_thread() {
    ended(|| {
        let start = || builder(4, 2, config(Capture::Step, 1), &Mischief::default()).start_cpu(4);
        let mut plain = block_on(start()).unwrap();
        let expected = block_on(train(&mut plain, 4, 0..STEPS));
        let mut session = block_on(start()).unwrap();
        let mut found = Vec::new();
        for step in 0..STEPS {
            let stepped = std::thread::spawn(move || {
                let losses = block_on(train(&mut session, 4, step..step + 1));
                (session, losses)
            });
            let losses;
            (session, losses) = stepped.join().unwrap();
            found.extend(losses);
        }
        assert_eq!(found, expected);
        assert_eq!(block_on(session.export()).unwrap(), block_on(plain.export()).unwrap());
    });
}
