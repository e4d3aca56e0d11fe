//! Failures in a session: the cause is reported, and no rank hangs.

mod closures;
mod starts;

use std::sync::{Arc, Mutex};

use warpweft_backend::BackendError;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::layout::MAX_ARENA;
use warpweft_plan::model::{Call, Model, Phase, StepProgram};
use warpweft_session::config::{Capture, Config};
use warpweft_session::exec::ExecError;
use warpweft_session::session::{Outcome, Session, SessionError};
use warpweft_testing::meddler::{Gate, Switch, cut, failing_at, failing_at_any, hooked};
use warpweft_testing::trainer::{Mischief, Trainer, feed, losses, within_a_minute};
use warpweft_testing::wrapped::Moment;

fn trainer() -> Trainer {
    Trainer::new(2, Format::NVFP4_2D)
}

/// Drops a step of `program` that is under way: no rank passes the gate before it is dropped.
async fn drop_a_step(session: &mut Session, program: &str, gate: &Gate) {
    gate.shut();
    let polled = std::future::poll_fn(|context| {
        let mut step = std::pin::pin!(session.step(program));
        assert!(step.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    });
    polled.await;
    gate.open();
}

/// A session of `ranks` ranks whose steps begin at the gate.
async fn gated(ranks: u32, mischief: &Mischief, gate: &Gate) -> Session {
    let held = gate.clone();
    let ranks = hooked(ranks, move |_, moment| {
        held.pass(moment);
        Ok(())
    });
    trainer().builder(Config::default(), mischief).start(ranks).await.unwrap()
}

#[test]
fn a_command_that_fails_on_one_rank_does_not_hang_the_others_nor_the_drop_of_the_session() {
    within_a_minute(async {
        for victim in [0, 1, 2] {
            for (moment, stepped) in [(Moment::Download, 0), (Moment::Upload, 1), (Moment::Enqueue, 1)] {
                let switch = Switch::default();
                let ranks = failing_at(moment, RankId::new(victim), 3, &switch);
                let builder = trainer().builder(Config::default(), &Mischief::default());
                let mut session = builder.start(ranks).await.unwrap();
                losses(&mut session, 3, 0..stepped).await;
                switch.on();
                let error = match moment {
                    Moment::Download => session.export().await.unwrap_err(),
                    _ => session.step("train").await.unwrap_err(),
                };
                assert!(matches!(&error, SessionError::Poisoned { .. }), "{error}");
                let said = error.to_string();
                assert!(
                    said.contains(&format!("rank {victim}")) && said.contains("the cable is out"),
                    "{said}"
                );
                drop(session);
            }
        }
    });
}

/// The others wait in a collective for the rank that failed while the session is dropped.
#[test]
fn a_session_that_is_dropped_in_the_middle_of_a_failing_step_ends() {
    within_a_minute(async {
        for victim in [0, 2] {
            let (switch, gate) = (Switch::default(), Gate::default());
            let (failing, held) = (switch.clone(), gate.clone());
            let ranks = hooked(3, move |rank, moment| {
                held.pass(moment);
                let fails = moment == Moment::Enqueue && rank == RankId::new(victim) && failing.is_on();
                if fails { cut(rank) } else { Ok(()) }
            });
            let builder = trainer().builder(Config::default(), &Mischief::default());
            let mut session = builder.start(ranks).await.unwrap();
            feed(&mut session, "train", 3, 0);
            switch.on();
            drop_a_step(&mut session, "train", &gate).await;
            drop(session);
        }
    });
}

/// Rank 0 waits in a collective of the prologue for rank 1, which failed without a word to its peers and
/// waits for orders: all ranks must get the command to close before any is waited for.
#[test]
fn a_session_ends_even_if_the_rank_the_others_wait_for_could_not_warn_them() {
    within_a_minute(async {
        let switch = Switch::default();
        let ranks =
            failing_at_any(&[Moment::Enqueue, Moment::Poison, Moment::Abort], RankId::new(1), 2, &switch);
        let builder = trainer().builder(Config::default(), &Mischief::default());
        let mut session = builder.start(ranks).await.unwrap();
        switch.on();
        let polled = std::future::poll_fn(|context| {
            let mut export = std::pin::pin!(session.export());
            assert!(export.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        });
        polled.await;
        drop(session);
    });
}

/// What was issued before the failure is on the lanes, and memory must not go while they work in it.
#[test]
fn a_step_that_could_not_be_issued_whole_is_drained_before_it_is_reported() {
    within_a_minute(async {
        for panics in [false, true] {
            let (requested, lanes) = issued_in_part(panics).await;
            let failed = requested.iter().rposition(|moment| *moment == Moment::Enqueue).unwrap();
            let rest = &requested[failed..];
            assert_eq!(rest[1], Moment::Poison, "peers are let go first");
            let abort = rest.iter().position(|moment| *moment == Moment::Abort).unwrap();
            let drained = rest.iter().filter(|moment| **moment == Moment::Synchronize).count();
            let last = rest.iter().rposition(|moment| *moment == Moment::Synchronize).unwrap();
            assert_eq!(drained, lanes, "{panics}: {rest:?}");
            assert!(abort > last, "nothing is ended by force before the lanes ran out: {panics}: {rest:?}");
        }
    });
}

/// What rank 0 was asked for in a step whose fifth task it cannot issue, or in which it panics there, and the
/// number of its lanes.
async fn issued_in_part(panics: bool) -> (Vec<Moment>, usize) {
    let switch = Switch::default();
    let failing = switch.clone();
    let requested = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&requested);
    let ranks = hooked(2, move |rank, moment| {
        if rank != RankId::new(0) || !failing.is_on() {
            return Ok(());
        }
        let issued = {
            let mut log = log.lock().unwrap();
            log.push(moment);
            log.iter().filter(|moment| **moment == Moment::Enqueue).count()
        };
        match moment == Moment::Enqueue && issued == 5 {
            true if panics => panic!("the cable is out"),
            true => cut(rank),
            false => Ok(()),
        }
    });
    let builder = trainer().builder(Config::default(), &Mischief::default());
    let mut session = builder.start(ranks).await.unwrap();
    feed(&mut session, "train", 2, 0);
    switch.on();
    let error = session.step("train").await.unwrap_err();
    assert!(error.to_string().contains("the cable is out"), "{error}");
    let lanes = session.plan("train").unwrap().lanes.len();
    // A thread that panicked gives up before it replies.
    let requested = requested.lock().unwrap();
    (requested.clone(), lanes)
}

/// One reply each, whatever happens on the way out.
#[test]
fn a_rank_that_panics_while_it_gives_up_replies_all_the_same() {
    within_a_minute(async {
        let switch = Switch::default();
        let failing = switch.clone();
        let ranks = hooked(2, move |rank, moment| match moment {
            Moment::Download if rank == RankId::new(1) && failing.is_on() => cut(rank),
            Moment::Abort if rank == RankId::new(1) && failing.is_on() => panic!("and the lights went out"),
            _ => Ok(()),
        });
        let builder = trainer().builder(Config::default(), &Mischief::default());
        let mut session = builder.start(ranks).await.unwrap();
        switch.on();
        let error = session.export().await.unwrap_err();
        assert!(error.to_string().contains("the cable is out"), "{error}");
    });
}

#[test]
fn a_session_that_is_dropped_in_the_middle_of_a_step_ends() {
    within_a_minute(async {
        let gate = Gate::default();
        let mut session = gated(4, &Mischief::default(), &gate).await;
        feed(&mut session, "train", 4, 0);
        drop_a_step(&mut session, "train", &gate).await;
        drop(session);
    });
}

#[test]
fn how_a_dropped_step_ended_is_reported_by_the_next_report() {
    within_a_minute(async {
        let (mischief, gate) = (Mischief::default(), Gate::default());
        let mut session = gated(2, &mischief, &gate).await;
        feed(&mut session, "train", 2, 0);
        drop_a_step(&mut session, "train", &gate).await;
        mischief_after_settling(&mut session, &mischief, 3).await;
        drop_a_step(&mut session, "train", &gate).await;
        mischief_after_settling(&mut session, &mischief, 0).await;
        let report = session.step("train").await.unwrap();
        assert_eq!(report.step, 2);
        assert!(
            matches!(
                report.unobserved[..],
                [Outcome::Updated { optimizer_step: 1, .. }, Outcome::Skipped { .. }]
            ),
            "{:?}",
            report.unobserved
        );
        let report = session.step("train").await.unwrap();
        assert!(report.unobserved.is_empty());
    });
}

/// Exporting waits for the step under way, so that it is over before the closures change their mind.
async fn mischief_after_settling(session: &mut Session, mischief: &Mischief, kind: u32) {
    session.export().await.unwrap();
    mischief.set(kind);
}

/// A session of which a step was dropped whose closures fail.
async fn with_a_failed_step_dropped() -> (Session, Mischief) {
    let (mischief, gate) = (Mischief::default(), Gate::default());
    let mut session = gated(2, &mischief, &gate).await;
    feed(&mut session, "train", 2, 0);
    mischief.set(1);
    drop_a_step(&mut session, "train", &gate).await;
    (session, mischief)
}

#[test]
fn a_closure_error_in_a_dropped_step_is_reported_by_the_next_call_once() {
    within_a_minute(async {
        let (mut session, mischief) = with_a_failed_step_dropped().await;
        let error = session.export().await.unwrap_err();
        let SessionError::DroppedStep(cause) = &error else { panic!("{error}") };
        assert!(matches!(&**cause, SessionError::Closure { step: 0, panicked: None, .. }), "{cause}");
        assert!(error.to_string().contains("the dog ate it"), "{error}");
        mischief.set(0);
        let report = session.step("train").await.unwrap();
        assert_eq!(report.step, 1);
    });
}

/// The session runs no more, so no message says to ask again, but for what is still to be had.
#[test]
fn a_closure_panic_in_a_dropped_step_is_reported_once_and_then_the_weights_are_exported() {
    within_a_minute(async {
        let (mischief, gate) = (Mischief::default(), Gate::default());
        let mut session = gated(2, &mischief, &gate).await;
        let before = session.export().await.unwrap();
        feed(&mut session, "train", 2, 0);
        mischief.set(2);
        drop_a_step(&mut session, "train", &gate).await;
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(&error, SessionError::DroppedStep(_)), "{error}");
        assert!(!error.to_string().contains("ask again"), "{error}");
        assert_eq!(session.export().await.unwrap(), before);
    });
}

/// Dropped while it still waited for the one before, it begins no more; nothing is lost, and the reports count it
/// out.
#[test]
fn a_step_dropped_before_an_earlier_one_ended_has_not_begun() {
    within_a_minute(async {
        let gate = Gate::default();
        let mut session = gated(2, &Mischief::default(), &gate).await;
        feed(&mut session, "train", 2, 0);
        gate.shut();
        for _ in 0..3 {
            let polled = std::future::poll_fn(|context| {
                let mut step = std::pin::pin!(session.step("train"));
                assert!(step.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            });
            polled.await;
        }
        gate.open();
        let report = session.step("train").await.unwrap();
        assert_eq!((report.step, report.unobserved.len()), (1, 1), "the first of three had begun");
    });
}

#[test]
fn a_closure_error_in_a_dropped_step_is_reported_by_closing() {
    within_a_minute(async {
        let (session, _) = with_a_failed_step_dropped().await;
        let error = session.close().await.unwrap_err();
        assert!(matches!(&error, SessionError::LastStep(_)), "{error}");
        let said = error.to_string();
        assert!(said.starts_with("the session is closed") && said.contains("the dog ate it"), "{said}");
        assert!(!said.contains("not done") && !said.contains("ask again"), "it was done: {said}");
    });
}

#[test]
fn a_capture_that_fails_on_one_rank_is_reported_and_the_losses_stay_the_same() {
    within_a_minute(async {
        let mut plain = trainer().start(Config::default(), 2).await.unwrap();
        let expected = losses(&mut plain, 2, 0..4).await;
        let switch = Switch::default();
        switch.on();
        let ranks = failing_at(Moment::Captured, RankId::new(1), 2, &switch);
        let config = Config { capture: Capture::Step, ..Config::default() };
        let mut session = trainer().builder(config, &Mischief::default()).start(ranks).await.unwrap();
        for (step, expected) in (0..4).zip(expected) {
            feed(&mut session, "train", 2, step);
            let report = session.step("train").await.unwrap();
            assert_eq!(report.mean_output("loss").unwrap().to_bits(), expected);
            match &report.not_captured[..] {
                [failure] => {
                    assert_eq!((step, failure.rank), (1, RankId::new(1)), "the second step is captured");
                    assert_eq!(failure.program, "train");
                    assert!(failure.reason.contains("the cable is out"), "{}", failure.reason);
                }
                told => assert!(told.is_empty() && step != 1, "{told:?}"),
            }
        }
    });
}

/// It is said once, so it may not be lost with a step that nobody awaited.
#[test]
fn a_capture_that_fails_in_a_dropped_step_is_reported_by_the_next_report() {
    within_a_minute(async {
        let gate = Gate::default();
        let held = gate.clone();
        let ranks = hooked(2, move |rank, moment| {
            held.pass(moment);
            if moment == Moment::Captured && rank == RankId::new(1) { cut(rank) } else { Ok(()) }
        });
        let config = Config { capture: Capture::Step, ..Config::default() };
        let mut session = trainer().builder(config, &Mischief::default()).start(ranks).await.unwrap();
        losses(&mut session, 2, 0..1).await;
        feed(&mut session, "train", 2, 1);
        drop_a_step(&mut session, "train", &gate).await;
        feed(&mut session, "train", 2, 2);
        let report = session.step("train").await.unwrap();
        assert_eq!(report.unobserved.len(), 1);
        assert_eq!(report.not_captured.len(), 1, "the step that was dropped could not be captured");
        let reason = &report.not_captured[0].reason;
        assert!(reason.contains("the cable is out"), "{reason}");
        feed(&mut session, "train", 2, 3);
        assert_eq!(session.step("train").await.unwrap().not_captured, []);
    });
}

/// A step whose closure fails has no report.
#[test]
fn a_capture_given_up_in_a_step_whose_closure_failed_is_reported_by_the_next_report() {
    within_a_minute(async {
        let (mischief, switch) = (Mischief::default(), Switch::default());
        switch.on();
        let ranks = failing_at(Moment::Captured, RankId::new(1), 2, &switch);
        let config = Config { capture: Capture::Step, ..Config::default() };
        let mut session = trainer().builder(config, &mischief).start(ranks).await.unwrap();
        losses(&mut session, 2, 0..1).await;
        mischief.set(1);
        feed(&mut session, "train", 2, 1);
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(error, SessionError::Closure { .. }), "{error}");
        mischief.set(0);
        for told in [1, 0] {
            let report = session.step("train").await.unwrap();
            assert_eq!((report.not_captured.len(), report.segments), (told, 0));
        }
    });
}

/// EX-3. Closures after the one that failed did not run, and what they make when they first run cannot be captured.
#[test]
fn a_plan_whose_first_steps_failed_on_one_rank_is_issued_until_one_is_through_and_captured_then() {
    within_a_minute(async {
        let mischief = Mischief::default();
        let config = Config { capture: Capture::Step, ..Config::default() };
        let mut session = trainer().builder(config, &mischief).start_cpu(2).await.unwrap();
        feed(&mut session, "train", 2, 0);
        mischief.set(1);
        for _ in 0..2 {
            let error = session.step("train").await.unwrap_err();
            assert!(matches!(error, SessionError::Closure { .. }), "{error}");
        }
        mischief.set(0);
        for segments in [0, 1, 1] {
            assert_eq!(session.step("train").await.unwrap().segments, segments);
        }
        // From then on it stays captured, whatever fails.
        mischief.set(1);
        session.step("train").await.unwrap_err();
        mischief.set(0);
        assert_eq!(session.step("train").await.unwrap().segments, 1);
    });
}

#[test]
fn a_learning_rate_that_is_none_is_refused_and_the_old_one_stays() {
    within_a_minute(async {
        let mut session = trainer().start(Config::default(), 1).await.unwrap();
        assert_eq!(session.learning_rate(), Config::default().optimizer.lr as f32);
        session.set_learning_rate(0.0).unwrap();
        for given in [-1e-3, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = session.set_learning_rate(given).unwrap_err();
            assert!(matches!(error, SessionError::Hyperparameter { .. }), "{error}");
            assert_eq!(session.learning_rate(), 0.0);
        }
        let before = session.export().await.unwrap().weights[0].master.clone();
        losses(&mut session, 1, 0..1).await;
        assert_eq!(session.export().await.unwrap().weights[0].master, before);
    });
}

#[test]
fn an_output_larger_than_the_host_is_an_error_and_not_the_end_of_the_process() {
    within_a_minute(async {
        let mut program = StepProgram::builder("evaluate", &Model::builder().build());
        let huge = program.output("huge", MAX_ARENA / 16, ElementType::F32).unwrap();
        program.call("fill", Phase::Forward).writes(huge).add().unwrap();
        let nothing =
            |_: RankId| |_: &Call, _: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> { Ok(()) };
        let builder = Session::builder(Config::default(), nothing);
        let error = builder.program(program.build_evaluation().unwrap()).start_cpu(1).await.unwrap_err();
        // Where the system says what memory it has, the rank is refused; elsewhere its output is.
        let is_refused_by_rank =
            matches!(&error, SessionError::Exec(ExecError::Backend(BackendError::Room { ranks: 1, .. })));
        let is_refused_by_output =
            matches!(&error, SessionError::HostMemory { buffer, .. } if buffer == "huge");
        assert!(is_refused_by_rank || is_refused_by_output, "{error}");
    });
}

fn traced(path: &std::path::Path) -> Config {
    let mut config = Config::default();
    config.trace.enabled = true;
    config.trace.path = path.display().to_string();
    config.trace.first_step = 0;
    config
}

#[test]
fn a_session_that_is_dropped_writes_its_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let config = traced(&path);
    within_a_minute(async move {
        let mut session = trainer().start(config, 2).await.unwrap();
        losses(&mut session, 2, 0..1).await;
    });
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("all-gather layer0"), "it shows the step");
}

#[test]
fn a_session_that_ends_before_the_first_step_of_its_trace_says_so_and_leaves_the_last_trace_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    std::fs::write(&path, "old").unwrap();
    let mut config = traced(&path);
    config.trace.first_step = 2;
    within_a_minute(async move {
        let mut session = trainer().start(config.clone(), 2).await.unwrap();
        losses(&mut session, 2, 0..2).await;
        let error = session.close().await.unwrap_err();
        assert!(matches!(error, SessionError::Trace { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("no step was traced") && said.contains("the session ran 2"), "{said}");
        assert!(said.contains("lower trace.first_step"), "{said}");
        assert_eq!(std::fs::read_to_string(&config.trace.path).unwrap(), "old");
        let mut session = trainer().start(config.clone(), 2).await.unwrap();
        losses(&mut session, 2, 0..3).await;
        session.close().await.unwrap();
        assert!(std::fs::read_to_string(&config.trace.path).unwrap().contains("all-gather layer0"));
    });
}
