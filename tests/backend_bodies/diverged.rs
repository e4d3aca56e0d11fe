//! AD-4 of the optimizer alone, and EX-5 of whole sessions: masters and moments that are not finite are reported by the
//! step that makes them, whatever the format, and an import heals.

use half::bf16;
use warpweft_backend::Backend;
use warpweft_base::id::{BucketId, RankId, SlotId};
use warpweft_format::{ElementType, Format, Via};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::layout::{Content, StateLayout};
use warpweft_plan::model::{Call, Hyperparameters, Model, Phase, StepProgram};
use warpweft_plan::op::{
    Adam, AdamOperand, CastVote, GatherRecords, GradNorm, MasterOperand, NormRecord, Op, Vote,
};
use warpweft_plan::policy::{Masters, Moments};
use warpweft_session::checkpoint::{Checkpoint, StatePart};
use warpweft_session::config::{Capture, Config, Scaling};
use warpweft_session::session::{Outcome, Session, SessionError, StrayValue};
use warpweft_testing::polled::polled_once;

use super::experts::{ELEMENTS, Product, WEIGHT, formats, initial};
use super::harness::{BY, LINK, Plan, QUANTIZE, Rank, W, noise, run, sharded, within_limit};
use crate::device::{Device, most_captured_ranks};
use crate::products::{Layers, Surface, form, settled, start, turned};

/// The largest f32 that bf16 does not round to infinity, and the next one.
const LARGEST: f32 = f32::from_bits(0x7F7F_7FFF);
const TOO_LARGE: f32 = f32::from_bits(0x7F7F_8000);

/// Adam of one weight whose masters are whole.
struct Optimizer {
    plan: Plan,
    master: SlotId,
    moments: [SlotId; 2],
    main_grad: SlotId,
    vote: SlotId,
    hyperparameters: SlotId,
}

fn optimizer(elements: usize, format: Format, via: Via, moments: Moments) -> Optimizer {
    let mut plan = Plan::new(1, &[sharded(1, elements, format)]);
    plan.weights.state = StateLayout { moments, ..StateLayout::default() };
    plan.settings.via = via;
    let master = plan.resident("master", Content::Master(W));
    let exp_avg = plan.resident("exp_avg", Content::first_moment(W));
    let exp_avg_sq = plan.resident("exp_avg_sq", Content::second_moment(W));
    let main_grad = plan.resident("main grad", Content::MainGrad(W));
    let vote = plan.resident("vote", Content::Vote);
    let hyperparameters = plan.resident("hyperparameters", Content::Hyperparameters);
    let moments = [exp_avg, exp_avg_sq];
    Optimizer { plan, master, moments, main_grad, vote, hyperparameters }
}

impl Optimizer {
    fn update(&mut self) {
        let (vote, hyperparameters, [exp_avg, exp_avg_sq]) = (self.vote, self.hyperparameters, self.moments);
        let (master, main_grad) = (MasterOperand::Whole(self.master), self.main_grad);
        let states = vec![AdamOperand { weight: W, master, exp_avg, exp_avg_sq, main_grad }];
        let (bucket, tensor_scale) = (BucketId::new(0), None);
        self.plan.op(
            QUANTIZE,
            Op::Adam(Adam { bucket, states, vote, hyperparameters, tensor_scale, amaxes: None }),
        );
    }
}

fn put_moments(rank: &Rank<Device>, slot: SlotId, values: &[f32], moments: Moments) {
    match moments {
        Moments::F32 => rank.put(slot, values),
        Moments::Bf16 => rank.put(slot, &values.iter().copied().map(bf16::from_f32).collect::<Vec<_>>()),
    }
}

/// AD-4: one value of many, as large as may be, larger, or no number, in a step that is issued and in one that is
/// replayed. A step that is skipped looks at nothing.
fn a_master_or_a_moment_that_is_too_large_is_reported_once_and_the_largest_is_not() {
    const LENGTH: usize = 5001;
    for (format, via, moments) in [
        (Format::F32, Via::Bf16, Moments::F32),
        (Format::Bf16, Via::None, Moments::Bf16),
        (Format::Mxfp8, Via::Bf16, Moments::F32),
        (Format::Mxfp8, Via::None, Moments::Bf16),
    ] {
        let mut optimizer = optimizer(LENGTH, Format::F32, via, moments);
        optimizer.plan.weights.layouts[0].format = format;
        // Nothing moves: the learning rate is 0, and so is what a new gradient weighs.
        let still = Hyperparameters { learning_rate: 0.0, weight_decay: 0.0, beta1: 1.0, beta2: 1.0 };
        optimizer.plan.settings.optimizer.bias_correction = false;
        optimizer.update();
        let Optimizer { plan, master, moments: [exp_avg, exp_avg_sq], vote, hyperparameters, .. } = optimizer;
        run(plan, move |rank| {
            rank.put(hyperparameters, &[still]);
            rank.step().unwrap();
            let graph = rank.capture_graph().unwrap();
            let clean = Vote { clip: 1.0, unscale: 1.0, step: 1, ..Vote::default() };
            let rounded = via.round(format, TOO_LARGE).is_infinite();
            for (at, which) in
                [0, 4095, 4096, LENGTH - 1].into_iter().flat_map(|at| [(at, 0), (at, 1), (at, 2)])
            {
                for value in [LARGEST, TOO_LARGE, f32::INFINITY, f32::NAN] {
                    let with = |own: usize, usual: f32| {
                        let mut values = vec![usual; LENGTH];
                        if own == which {
                            values[at] = value;
                        }
                        values
                    };
                    let diverged = match value {
                        LARGEST => false,
                        TOO_LARGE if which == 0 => rounded,
                        TOO_LARGE => moments == Moments::Bf16,
                        _ => true,
                    };
                    let what = format!("{value} at {at} of state {which}, {format}, {via:?}, {moments:?}");
                    let put = |rank: &Rank<Device>, verdict: Vote| {
                        rank.put(master, &with(0, 0.5));
                        put_moments(rank, exp_avg, &with(1, 0.5), moments);
                        // The roots are 2, so that no update is infinite.
                        put_moments(rank, exp_avg_sq, &with(2, 4.0), moments);
                        rank.put(vote, &[verdict]);
                    };
                    put(rank, clean);
                    rank.step().unwrap();
                    assert_eq!(rank.backend.take_diverged(), diverged, "{what}, issued");
                    assert!(!rank.backend.take_diverged(), "{what}: it is reported once");
                    put(rank, clean);
                    rank.replay(&graph).unwrap();
                    assert_eq!(rank.backend.take_diverged(), diverged, "{what}, replayed");
                    put(rank, Vote { verdict: Vote::NON_FINITE, ..clean });
                    rank.step().unwrap();
                    assert!(!rank.backend.take_diverged(), "{what}, skipped");
                }
            }
        });
    }
}

/// AD-4: the square of a gradient that f32 holds, and bf16 does not.
fn a_square_that_the_vote_lets_pass_and_bf16_rounds_to_infinity_is_reported() {
    for moments in [Moments::F32, Moments::Bf16] {
        let mut optimizer = optimizer(1, Format::Bf16, Via::Bf16, moments);
        let plan = &mut optimizer.plan;
        let fault = plan.resident("fault", Content::FaultWord);
        let record = plan.resident("record", Content::NormRecord);
        let records = plan.resident("records", Content::NormRecords);
        let optimizer_step = plan.resident("step", Content::OptimizerStep);
        let gradient_scale = plan.resident("gradient scale", Content::GradientScale);
        plan.op(
            QUANTIZE,
            Op::GradNorm(GradNorm {
                main_grads: vec![(W, optimizer.main_grad)],
                squares: Vec::new(),
                fault,
                record,
            }),
        );
        plan.fence(QUANTIZE, LINK);
        plan.op(LINK, Op::GatherRecords(GatherRecords { from: record, to: records }));
        plan.fence(LINK, QUANTIZE);
        plan.op(
            QUANTIZE,
            Op::Vote(CastVote { records, optimizer_step, gradient_scale, vote: optimizer.vote }),
        );
        optimizer.update();
        let Optimizer { plan, master, main_grad, vote, hyperparameters, .. } = optimizer;
        run(plan, move |rank| {
            rank.put(master, &[0.5_f32]);
            rank.put(main_grad, &[1.8439e19_f32]);
            rank.put(gradient_scale, &[1.0_f32]);
            rank.put(hyperparameters, &[Hyperparameters { learning_rate: 1e-3, beta2: 0.0, ..BY }]);
            rank.step().unwrap();
            assert_eq!(rank.get::<Vote>(vote)[0].verdict, Vote::CLEAN);
            assert!(rank.get::<NormRecord>(records)[0].squares.is_finite());
            assert_eq!(rank.backend.take_diverged(), moments == Moments::Bf16, "{moments:?}");
        });
    }
}

/// A weight of one format, and how the optimizer's state and its scales are kept.
#[derive(Clone, Copy, Debug)]
struct Case {
    format: Format,
    masters: Masters,
    moments: Moments,
    scaling: Scaling,
    capture: Capture,
}

impl Case {
    const fn plain(format: Format) -> Self {
        let (masters, moments, scaling) = (Masters::F32, Moments::F32, Scaling::Current);
        Self { format, masters, moments, scaling, capture: Capture::Off }
    }
}

/// Every format, state in fewer bytes and scales that are delayed, each issued and captured.
fn cases() -> Vec<Case> {
    let (masters, moments, scaling) = (Masters::Bf16Remainder, Moments::Bf16, Scaling::Delayed);
    let is_of_tensors = |format: &Format| matches!(format, Format::Fp8Tensor(_));
    let tensors = formats().into_iter().find(is_of_tensors).unwrap();
    let others = [
        Case { masters, moments, ..Case::plain(Format::Bf16) },
        Case { moments, ..Case::plain(Format::NVFP4_2D) },
        Case { scaling, ..Case::plain(tensors) },
    ];
    let all = formats().into_iter().map(Case::plain).chain(others);
    all.flat_map(|case| [Capture::Off, Capture::Step].map(|capture| Case { capture, ..case })).collect()
}

/// One call of one weight, whose gradient does not depend on the weight.
async fn session(case: Case) -> Session {
    let Case { format, masters, moments, scaling, capture } = case;
    let ranks = most_captured_ranks();
    let mut config = settled(Config { capture, ..Config::default() });
    (config.optimizer.masters, config.optimizer.moments) = (masters, moments);
    config.quantize.scaling = scaling;
    // A steady gradient then moves masters by more than the learning rate.
    config.optimizer.bias_correction = false;
    config.optimizer.beta2 = 0.99;
    let mut model = Model::builder();
    let weight = model.sharded("w", WEIGHT.rows, WEIGHT.cols, format).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    let x = program.input("x", ELEMENTS, ElementType::Bf16).unwrap();
    let dy = program.input("dy", ELEMENTS, ElementType::Bf16).unwrap();
    let dx = program.output("dx", ELEMENTS, ElementType::Bf16).unwrap();
    let call = program.call("backward", Phase::Backward).uses(weight, turned(format), form(format));
    call.reads(x).reads(dy).writes(dx).gradient(weight).add().unwrap();
    let factory = move |rank: RankId| {
        let mut layers = Layers::new(rank, &[format]);
        move |_: &Call, context: &ComputeContext<'_, Surface>| -> Result<(), ComputeError> {
            layers.run(0, context, Product::Backward { weight, x, dy, dx }).map(drop)
        }
    };
    let program = program.build_training().unwrap();
    let builder = Session::builder(config, factory).program(program).initialize(initial);
    let mut session = start(builder, ranks).await;
    for rank in (0..ranks).map(RankId::new) {
        for (name, seed) in [("x", 0), ("dy", 100)] {
            let values: Vec<bf16> =
                noise(ELEMENTS, seed + rank.number()).into_iter().map(bf16::from_f32).collect();
            session.write_input("train", rank, name, &values).unwrap();
        }
    }
    session
}

/// What steps give that end well, as bits.
async fn steps(session: &mut Session, count: usize) -> Vec<u16> {
    let mut all = Vec::new();
    for _ in 0..count {
        let report = session.step("train").await.unwrap();
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "{:?}", report.outcome);
        assert_eq!(report.not_captured, []);
        for rank in (0..session.ranks()).map(RankId::new) {
            all.extend(report.output::<bf16>(rank, "dx").unwrap().into_iter().map(bf16::to_bits));
        }
    }
    all
}

/// The step that leaves what cannot be trained on, and what it says.
async fn diverge(session: &mut Session, case: Case) -> (u64, RankId, StrayValue) {
    let error = session.step("train").await.unwrap_err();
    let said = error.to_string();
    for words in ["Session::import", "lower the learning rate", "optimizer.max_norm", "`w`"] {
        assert!(said.contains(words), "{said}");
    }
    let SessionError::Diverged { step, rank, value: Some(value) } = error else {
        panic!("{case:?}: {error}")
    };
    (step, rank, value)
}

/// Neither trains nor saves, and says why; what its gradients were can still be read.
async fn assert_it_waits(session: &mut Session, told: u64) {
    for _ in 0..2 {
        let of = |error| matches!(error, SessionError::Diverged { step, .. } if step == told);
        assert!(session.step("train").await.is_err_and(of));
        assert!(session.export().await.is_err_and(of));
    }
    let main_grads = session.main_grads().await.unwrap();
    assert!(main_grads.iter().flat_map(|part| &part.values).all(|value| value.is_finite()));
}

/// Goes on from a checkpoint as a session does that knows nothing else.
async fn assert_an_import_heals(mut session: Session, checkpoint: &Checkpoint, case: Case) {
    let mut damaged = checkpoint.clone();
    damaged.weights[0].master[0] = f32::NAN;
    assert!(matches!(session.import(&damaged).await, Err(SessionError::Import { .. })));
    let still = session.step("train").await;
    assert!(matches!(still, Err(SessionError::Diverged { .. })), "a refused import does not heal");
    let healed = from(session, checkpoint).await;
    let fresh = from(self::session(case).await, checkpoint).await;
    assert!(healed == fresh, "{case:?}");
}

/// What a session gives from a checkpoint on.
async fn from(mut session: Session, checkpoint: &Checkpoint) -> (Vec<u16>, Checkpoint) {
    session.set_learning_rate(1e-3).unwrap();
    session.import(checkpoint).await.unwrap();
    let outputs = steps(&mut session, 3).await;
    let after = session.export().await.unwrap();
    session.close().await.unwrap();
    (outputs, after)
}

fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(work);
}

/// EX-5
fn a_learning_rate_that_overflows_is_reported_by_its_step_in_every_format_and_an_import_heals() {
    for case in cases() {
        within_limit(move || {
            block_on(async move {
                let mut session = session(case).await;
                session.set_learning_rate(1e-3).unwrap();
                steps(&mut session, 3).await;
                let checkpoint = session.export().await.unwrap();
                session.set_learning_rate(3e38).unwrap();
                let (step, rank, value) = diverge(&mut session, case).await;
                assert_eq!((step, rank), (3, RankId::new(0)), "{case:?}");
                let StrayValue { ref weight, part, row, value, .. } = value;
                assert_eq!((weight.as_str(), part), ("w", StatePart::Master), "{case:?}");
                assert!(row < WEIGHT.rows / session.ranks() as usize && value.abs() > LARGEST, "{case:?}");
                assert_it_waits(&mut session, 3).await;
                assert_an_import_heals(session, &checkpoint, case).await;
            });
        });
    }
}

/// EX-5: the rank that holds it is named, also where its amax reaches the others, with row and column.
fn one_master_that_overflows_is_named_by_its_rank_row_and_column() {
    for case in cases() {
        within_limit(move || {
            block_on(async move {
                let mut session = session(case).await;
                session.set_learning_rate(0.0).unwrap();
                steps(&mut session, 2).await;
                let checkpoint = session.export().await.unwrap();
                // Masters go against their gradients: this one grows, and begins near the end.
                let gradients = session.main_grads().await.unwrap();
                let last = gradients.iter().rfind(|part| part.rows.rows > 0).unwrap();
                let (rank, place) = (last.rank, WEIGHT.elements() - 1);
                let gradient = *last.values.last().unwrap();
                let mut near = checkpoint.clone();
                near.weights[0].master[place] = -3.38e38_f32.copysign(gradient);
                session.import(&near).await.unwrap();
                session.set_learning_rate(1e37).unwrap();
                let told = diverge(&mut session, case).await;
                let (weight, part) = ("w".to_owned(), StatePart::Master);
                let (step, StrayValue { value, .. }) = (2, told.2.clone());
                assert!(
                    value.abs() > LARGEST && value.is_sign_positive() == (gradient < 0.0),
                    "{case:?}: {value}"
                );
                assert_eq!((told.0, told.1), (step, rank), "{case:?}");
                assert_eq!((told.2.weight, told.2.part), (weight, part));
                assert_eq!((told.2.row, told.2.column), (WEIGHT.rows - 1, WEIGHT.cols - 1), "{case:?}");
                assert_an_import_heals(session, &checkpoint, case).await;
            });
        });
    }
}

/// EX-5: of a step whose future was dropped, the next caller gets it.
fn what_a_dropped_step_left_is_reported_to_the_next_caller() {
    let case = Case::plain(Format::Bf16);
    within_limit(move || {
        block_on(async move {
            let mut session = session(case).await;
            let checkpoint = session.export().await.unwrap();
            session.set_learning_rate(1e-3).unwrap();
            steps(&mut session, 3).await;
            session.set_learning_rate(3e38).unwrap();
            let error = match polled_once(session.step("train")).await {
                // The ranks were quicker.
                Some(told) => told.unwrap_err(),
                None => match session.import(&checkpoint).await.unwrap_err() {
                    SessionError::DroppedStep(cause) => *cause,
                    error => panic!("{error}"),
                },
            };
            assert!(matches!(error, SessionError::Diverged { step: 3, .. }), "{error}");
            assert_it_waits(&mut session, 3).await;
            session.import(&checkpoint).await.unwrap();
            session.set_learning_rate(1e-3).unwrap();
            steps(&mut session, 1).await;
        });
    });
}

bodies! {
    a_master_or_a_moment_that_is_too_large_is_reported_once_and_the_largest_is_not,
    a_square_that_the_vote_lets_pass_and_bf16_rounds_to_infinity_is_reported,
    a_learning_rate_that_overflows_is_reported_by_its_step_in_every_format_and_an_import_heals,
    one_master_that_overflows_is_named_by_its_rank_row_and_column,
    what_a_dropped_step_left_is_reported_to_the_next_caller,
}
