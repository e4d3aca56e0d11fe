//! Steps that are skipped for a non-finite gradient: the names in the report, the limit that makes them an error, the
//! log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;
use tracing::{Dispatch, Level};
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Model, Phase, StepProgram};
use warpweft_plan::policy::{ReduceDtype, ReduceEvery};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{
    MadeBy, NonFiniteGradient, Outcome, Session, SessionError, StepReport, block_on,
};
use warpweft_testing::heard::{Heard, Said, field};
use warpweft_testing::split::{self, in_processes, in_processes_on};
use warpweft_testing::trainer::{self, Mischief, Trainer, ended, within_a_minute};
use warpweft_testing::wrapped::{Moment, Wrapped};

warpweft_testing::alone! {
    a_skipped_step_names_the_weight_and_the_rank_and_the_call_that_wrote_it,
    finite_gradients_whose_sum_is_not_finite_name_the_row_and_no_call,
    no_rank_copies_main_grads_to_the_host_where_one_knows_the_call,
    a_sum_over_steps_names_the_step_whose_call_wrote_it,
    a_run_of_skipped_steps_without_a_loss_scale_is_an_error_and_the_session_goes_on,
    every_process_names_the_same_rank_and_call,
    a_step_that_is_issued_to_be_inspected_leaves_the_bits_of_its_capture_and_the_capture_stays,
    every_step_is_one_event_with_its_figures_and_its_spans_name_program_and_rank,
}

const SIZE: usize = 32;
const MICRO_BATCHES: u32 = 2;

/// Which of its gradients a call spoils, as the input says.
const VALID: f32 = 0.0;
const NAN_UP: f32 = 1.0;
const INFINITE_DOWN: f32 = 2.0;
const INFINITE_NORM: f32 = 3.0;
/// Finite in every call, and not as a sum.
const HUGE_UP: f32 = 4.0;

/// Two sharded weights, one of whose gradients is written in bf16, and a replicated one: a call each.
async fn start(config: Config, ranks: u32) -> Session {
    // What a call writes in bf16 is not added to others on its rank.
    let is_added = config.reduce_every == ReduceEvery::Step;
    let element = if is_added { ElementType::F32 } else { ElementType::Bf16 };
    let mut model = Model::builder();
    let up = model.sharded("up", SIZE, SIZE, Format::Bf16).unwrap();
    let down = model.sharded("down", SIZE, SIZE, Format::F32).unwrap();
    let norm = model.replicated("norm", 1, SIZE).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    program.micro_batches(MICRO_BATCHES).unwrap();
    let spoilt = program.input("spoilt", 1, ElementType::F32).unwrap();
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    program.call("forward", Phase::Forward).writes(loss).add().unwrap();
    program.call("back down", Phase::Backward).reads(spoilt).gradient(down).add().unwrap();
    program
        .call("back up", Phase::Backward)
        .reads(spoilt)
        .gradient_in(up, element)
        .gradient(norm)
        .add()
        .unwrap();
    let program = program.build_training().unwrap().accumulating().unwrap();
    let run = move |call: &Call, context: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
        if call.name == "forward" {
            context.write::<f32>(loss)?[0] = 2.5;
            return Ok(());
        }
        let spoilt = context.read::<f32>(spoilt)?[0];
        if call.name == "back down" {
            let mut gradient = context.gradient(down)?;
            gradient.fill(0.25);
            if spoilt == INFINITE_DOWN {
                gradient[SIZE * SIZE - 1] = f32::NEG_INFINITY;
            }
            if spoilt == HUGE_UP {
                gradient[3 * SIZE + 7] = f32::MAX;
            }
            return Ok(());
        }
        let value = if spoilt == NAN_UP { f32::NAN } else { 1.0 };
        if is_added {
            let mut gradient = context.gradient(up)?;
            gradient.fill(1.0);
            gradient[5] = value;
        } else {
            let mut gradient = context.gradient_bf16(up)?;
            gradient.fill(bf16::ONE);
            gradient[5] = bf16::from_f32(value);
        }
        let mut gradient = context.gradient(norm)?;
        gradient.fill(0.5);
        if spoilt == INFINITE_NORM {
            gradient[SIZE - 1] = f32::INFINITY;
        }
        Ok(())
    };
    let builder = Session::builder(config, move |_| run).program(program);
    builder.initialize(trainer::initial).start_cpu(ranks).await.unwrap()
}

/// Has these ranks spoil gradients in these micro-batches of the coming step, and no other.
fn spoil(session: &mut Session, spoilt: &[(u32, usize, f32)]) {
    for rank in session.own_ranks().collect::<Vec<_>>() {
        let mut values = [VALID; MICRO_BATCHES as usize];
        for (_, micro_batch, kind) in spoilt.iter().filter(|(other, ..)| *other == rank.number()) {
            values[*micro_batch] = *kind;
        }
        session.write_input("train", rank, "spoilt", &values).unwrap();
    }
}

async fn step(session: &mut Session, spoilt: &[(u32, usize, f32)]) -> StepReport {
    spoil(session, spoilt);
    session.step("train").await.unwrap()
}

/// The weight, the step, the rank and the call of a gradient that a call wrote.
fn written(report: &StepReport) -> Option<(String, u64, u32, String)> {
    let NonFiniteGradient { weight, made_by, .. } = report.non_finite.clone()?;
    match made_by {
        MadeBy::Call { step, rank, call, .. } => Some((weight, step, rank.number(), call)),
        other => panic!("{weight}: {other:?}"),
    }
}

fn configs() -> Vec<(Config, u32)> {
    let plain = || Config { check: true, ..Config::default() };
    let mut replicated = plain();
    replicated.mesh.dp_replicate = Some(2);
    let mut all = vec![(plain(), 1), (plain(), 3), (replicated, 4)];
    for capture in [Capture::Step, Capture::Segments] {
        all.push((Config { capture, ..plain() }, 2));
    }
    for reduce_every in [ReduceEvery::MicroBatch, ReduceEvery::Step] {
        all.push((Config { reduce_every, reduce_dtype: ReduceDtype::Bf16, ..plain() }, 2));
    }
    all.push((Config { reduce_dtype: ReduceDtype::Mxfp8, ..plain() }, 3));
    all
}

/// EX-2. The last rank owns no row of what it spoils, and is named all the same.
fn a_skipped_step_names_the_weight_and_the_rank_and_the_call_that_wrote_it() {
    for (config, ranks) in configs() {
        within_a_minute(async move {
            let mut session = start(config, ranks).await;
            let last = ranks - 1;
            for round in 0..3 {
                let at = round * 5;
                let valid = step(&mut session, &[]).await;
                assert!(matches!(valid.outcome, Outcome::Updated { .. }), "{:?}", valid.outcome);
                assert_eq!(valid.non_finite, None);
                for (number, kind, micro_batch, weight, call) in [
                    (1, NAN_UP, 0, "up", "back up"),
                    (2, INFINITE_DOWN, 1, "down", "back down in micro-batch 1"),
                    (3, INFINITE_NORM, 1, "norm", "back up in micro-batch 1"),
                ] {
                    let report = step(&mut session, &[(last, micro_batch, kind)]).await;
                    assert!(matches!(report.outcome, Outcome::Skipped { .. }), "{:?}", report.outcome);
                    let found = written(&report);
                    assert_eq!(found, Some((weight.to_owned(), at + number, last, call.to_owned())));
                }
                let both = [(0, 1, NAN_UP), (last, 0, INFINITE_NORM), (last, 1, INFINITE_DOWN)];
                let (weight, _, rank, call) = written(&step(&mut session, &both).await).unwrap();
                let first = (weight.as_str(), rank, call.as_str());
                assert_eq!(first, ("norm", last, "back up"), "the first in program order");
            }
            session.close().await.unwrap();
        });
    }
}

fn finite_gradients_whose_sum_is_not_finite_name_the_row_and_no_call() {
    within_a_minute(async {
        let mut session = start(Config::default(), 2).await;
        let report = step(&mut session, &[(0, 0, HUGE_UP), (1, 0, HUGE_UP)]).await;
        let NonFiniteGradient { weight, made_by, .. } = report.non_finite.clone().unwrap();
        let MadeBy::Sum { rank, row, column, value, .. } = made_by else { panic!("{made_by:?}") };
        assert_eq!((weight.as_str(), rank.number(), row, column, value), ("down", 0, 3, 7, f32::INFINITY));
        session.set_loss_scale(2.0).unwrap();
        let report = step(&mut session, &[(0, 0, HUGE_UP), (1, 0, HUGE_UP)]).await;
        assert!(matches!(report.outcome, Outcome::Skipped { .. }), "{:?}", report.outcome);
        assert_eq!(report.non_finite, None, "under a loss scale no row is searched for");
        let report = step(&mut session, &[(1, 0, NAN_UP)]).await;
        assert!(written(&report).is_some(), "a call is known all the same");
        session.close().await.unwrap();
    });
}

/// Rank 1 writes the value, rank 0 none.
fn no_rank_copies_main_grads_to_the_host_where_one_knows_the_call() {
    let (mischief, downloads) = (Mischief::default(), Arc::new(AtomicUsize::new(0)));
    let (told, counted) = (mischief.clone(), Arc::clone(&downloads));
    let wrap = move |backend| {
        let counted = Arc::clone(&counted);
        Wrapped::new(backend, move |requested| {
            counted.fetch_add(usize::from(requested.moment == Moment::Download), Ordering::Relaxed);
            Ok(())
        })
    };
    let trainer = Trainer::new(2, Format::NVFP4_2D);
    in_processes_on(wrap, &split::config(), &trainer, &[2], &mischief, move |_, mut session| {
        let (told, downloads) = (told.clone(), Arc::clone(&downloads));
        async move {
            let mut taken = Vec::new();
            for kind in [0, 3, 0] {
                told.set(kind);
                split::feed(&mut session, 0);
                let before = downloads.load(Ordering::Relaxed);
                let report = session.step("train").await.unwrap();
                assert_eq!(report.non_finite.is_some(), kind == 3);
                taken.push(downloads.load(Ordering::Relaxed) - before);
            }
            assert_eq!(taken, [taken[0]; 3], "as many as in a step that was not skipped");
        }
    });
}

/// What was added up is known of before the step that ends it is skipped.
fn a_sum_over_steps_names_the_step_whose_call_wrote_it() {
    within_a_minute(async {
        let mut session = start(Config::default(), 2).await;
        step(&mut session, &[]).await;
        spoil(&mut session, &[]);
        assert_eq!(session.accumulate("train").await.unwrap().non_finite, None);
        spoil(&mut session, &[(1, 0, NAN_UP)]);
        let spoilt = ("up".to_owned(), 2, 1, "back up".to_owned());
        let report = session.accumulate("train").await.unwrap();
        assert_eq!(written(&report), Some(spoilt.clone()));
        let report = step(&mut session, &[(0, 0, INFINITE_NORM)]).await;
        assert!(matches!(report.outcome, Outcome::Skipped { .. }), "{:?}", report.outcome);
        assert_eq!(written(&report), Some(spoilt.clone()));
        spoil(&mut session, &[(1, 0, NAN_UP)]);
        session.accumulate("train").await.unwrap();
        session.discard_gradients().await.unwrap();
        assert_eq!(step(&mut session, &[]).await.non_finite, None, "it was dropped");
        session.close().await.unwrap();
    });
}

fn a_run_of_skipped_steps_without_a_loss_scale_is_an_error_and_the_session_goes_on() {
    within_a_minute(async {
        let mut config = Config::default();
        assert_eq!(config.optimizer.max_skipped, 8, "the default");
        config.optimizer.max_skipped = 3;
        let mut session = start(config, 2).await;
        for _ in 0..2 {
            let spoilt = [(1, 0, NAN_UP)];
            step(&mut session, &spoilt).await;
            step(&mut session, &spoilt).await;
            let before = session.export().await.unwrap();
            for run in [3, 4] {
                spoil(&mut session, &spoilt);
                let error = session.step("train").await.unwrap_err();
                let words = error.to_string();
                let SessionError::Skipped { steps, gradient, .. } = error else { panic!("{error:?}") };
                assert_eq!((steps, gradient.unwrap().weight.as_str()), (run, "up"));
                for word in ["`up`", "rank 1", "back up", "optimizer.max_skipped", "no weight was changed"] {
                    assert!(words.contains(word), "{words}");
                }
            }
            assert_eq!(session.export().await.unwrap(), before);
            let report = step(&mut session, &[]).await;
            assert!(matches!(report.outcome, Outcome::Updated { .. }), "it goes on, and the run is over");
        }
        session.set_loss_scale(2.0).unwrap();
        for _ in 0..5 {
            step(&mut session, &[(1, 0, NAN_UP)]).await;
        }
        session.set_loss_scale(1.0).unwrap();
        step(&mut session, &[(1, 0, NAN_UP)]).await;
        session.close().await.unwrap();
    });
}

/// EX-2
fn every_process_names_the_same_rank_and_call() {
    for ranks in [&[1, 1][..], &[2, 2]] {
        let mischief = Mischief::default();
        mischief.set(3);
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let found = in_processes(&trainer, ranks, &mischief, |_, mut session| async move {
            let mut found = Vec::new();
            for step in 0..4 {
                split::feed(&mut session, step);
                found.push(session.step("train").await.unwrap().non_finite);
            }
            session.close().await.unwrap();
            found
        });
        for process in found {
            for (step, gradient) in process.into_iter().enumerate() {
                let NonFiniteGradient { weight, made_by, .. } = gradient.unwrap();
                let MadeBy::Call { step: of, rank, call, .. } = made_by else { panic!("{made_by:?}") };
                assert_eq!((weight.as_str(), of, call.as_str()), ("layer0", step as u64, "b0"));
                assert_eq!(rank, RankId::new(1));
            }
        }
    }
}

/// EX-1. On a GPU no capture inspects gradients, so a step after one that was skipped is issued.
fn a_step_that_is_issued_to_be_inspected_leaves_the_bits_of_its_capture_and_the_capture_stays() {
    let trainer = Trainer::new(2, Format::NVFP4_2D);
    let trained = |capture| {
        let mischief = Mischief::default();
        let config = Config { capture, check: true, ..split::config() };
        let wrap = |backend| Wrapped::new(backend, |_| Ok(())).issuing_inspected();
        let told = mischief.clone();
        let mut all = in_processes_on(wrap, &config, &trainer, &[2], &mischief, move |_, mut session| {
            let told = told.clone();
            async move {
                let mut segments = Vec::new();
                for step in 0..8 {
                    told.set(if (3..5).contains(&step) { 3 } else { 0 });
                    split::feed(&mut session, step);
                    let report = session.step("train").await.unwrap();
                    assert_eq!(report.non_finite.is_some(), (3..5).contains(&step));
                    segments.push(report.segments);
                }
                (segments, session.export().await.unwrap())
            }
        });
        all.remove(0)
    };
    let (none, issued) = trained(Capture::Off);
    let (segments, captured) = trained(Capture::Step);
    assert_eq!((none, segments), (vec![0; 8], vec![0, 1, 1, 1, 0, 0, 1, 1]));
    assert!(issued == captured, "masters, moments and planes");
}

/// Events come from the thread that awaits the step, spans from those of the ranks, which only a subscriber
/// of the whole process hears.
fn every_step_is_one_event_with_its_figures_and_its_spans_name_program_and_rank() {
    let (here, everywhere) = (Heard::default(), Heard::default());
    tracing::subscriber::set_global_default(everywhere.clone()).unwrap();
    let own = here.clone();
    ended(move || {
        tracing::dispatcher::with_default(&Dispatch::new(own), || {
            block_on(async {
                let mut config = Config::default();
                config.optimizer.max_skipped = 2;
                let mut session = start(config, 2).await;
                step(&mut session, &[]).await;
                step(&mut session, &[(1, 1, NAN_UP)]).await;
                spoil(&mut session, &[(1, 1, NAN_UP)]);
                session.step("train").await.unwrap_err();
                session.close().await.unwrap();
            });
        });
    });
    let events = here.events();
    let [updated, skipped, refused] = &events[..] else { panic!("{events:?}") };
    assert_eq!((updated.0, skipped.0), (Level::INFO, Level::WARN));
    for (number, (said, outcome)) in
        [(updated, "\"updated\""), (skipped, "\"skipped\"")].into_iter().enumerate()
    {
        assert_eq!(field(said, "step"), Some(number.to_string().as_str()));
        assert_eq!(field(said, "program"), Some("\"train\""));
        assert_eq!(field(said, "outcome"), Some(outcome));
        assert_eq!(field(said, "loss"), Some("2.5"));
        assert!(field(said, "duration_s").unwrap().parse::<f64>().unwrap() > 0.0);
    }
    assert!(field(updated, "norm").unwrap().parse::<f64>().unwrap() > 0.0);
    assert_eq!(field(skipped, "norm"), Some("NaN"));
    for said in [skipped, refused] {
        assert_eq!((said.0, field(said, "outcome")), (Level::WARN, Some("\"skipped\"")));
        let made = ["weight", "rank", "call"].map(|name| field(said, name).unwrap());
        assert_eq!(made, ["\"up\"", "1", "\"back up in micro-batch 1\""]);
    }
    let spans = everywhere.spans();
    for rank in ["0", "1"] {
        let of_rank = |said: &&Said| said.1 == "step" && field(said, "rank") == Some(rank);
        assert_eq!(field(spans.iter().find(of_rank).unwrap(), "program"), Some("\"train\""));
    }
}
