//! Closures that fail on several ranks in one step, and slow closures.

use super::drop_a_step;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::ElementType;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Model, Phase, StepProgram};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Session, SessionBuilder, SessionError};
use warpweft_testing::meddler::{Gate, Switch, cut, hooked};
use warpweft_testing::trainer::within_a_minute;
use warpweft_testing::wrapped::Moment;

/// An evaluation of two calls, `early` and `late`, in each of which a rank does what `act` says.
fn two_calls(
    config: Config,
    act: impl Fn(RankId, &str) -> Result<(), ComputeError> + Clone + Send + Sync + 'static,
) -> SessionBuilder<CpuSurface> {
    let mut program = StepProgram::builder("evaluate", &Model::builder().build());
    let done = ["early", "late"].map(|name| {
        let done = program.output(name, 1, ElementType::F32).unwrap();
        program.call(name, Phase::Forward).writes(done).add().unwrap();
        (name, done)
    });
    let closures = move |rank: RankId| {
        let act = act.clone();
        move |call: &Call, context: &ComputeContext<'_, CpuSurface>| {
            for (_, done) in done.iter().filter(|(name, _)| *name == call.name) {
                context.write::<f32>(*done)?.fill(1.0);
            }
            act(rank, &call.name)
        }
    };
    Session::builder(config, closures).program(program.build_evaluation().unwrap())
}

fn fails() -> Result<(), ComputeError> {
    Err(ComputeError::closure("the dog ate it"))
}

/// The error names the first cause, in whatever call; whether the session goes on is up to all of them.
#[test]
fn a_step_in_which_one_rank_fails_and_another_panics_says_that_the_session_is_poisoned_and_by_whom() {
    within_a_minute(async {
        let builder = two_calls(Config::default(), |rank, call| match (rank.number(), call) {
            (0, "early") => fails(),
            (1, "late") => panic!("the dog ate all of it"),
            _ => Ok(()),
        });
        let mut session = builder.start_cpu(3).await.unwrap();
        let error = session.step("evaluate").await.unwrap_err();
        let SessionError::Closure { rank, call, panicked, .. } = &error else { panic!("{error}") };
        let found = (*rank, call.as_str(), *panicked);
        assert_eq!(found, (RankId::new(0), "early", Some(RankId::new(1))));
        let said = error.to_string();
        assert!(said.contains("rank 0 failed in call `early`: the dog ate it;"), "{said}");
        assert!(said.contains("that of rank 1 panicked in the same step"), "{said}");
        assert!(said.contains("the session is poisoned") && said.contains("Session::export"), "{said}");
        let error = session.step("evaluate").await.unwrap_err();
        let SessionError::Poisoned { reason, exports: true } = &error else { panic!("{error}") };
        assert_eq!(reason, "the closure of rank 1 panicked: the dog ate all of it");
        session.export().await.unwrap();
    });
}

#[test]
fn of_several_panics_in_one_step_the_first_in_the_order_of_calls_is_reported() {
    within_a_minute(async {
        let builder = two_calls(Config::default(), |rank, call| match (rank.number(), call) {
            (0, "late") => panic!("too late"),
            (1, "early") => panic!("too early"),
            (2, "late") => fails(),
            _ => Ok(()),
        });
        let mut session = builder.start_cpu(3).await.unwrap();
        let error = session.step("evaluate").await.unwrap_err();
        let first = RankId::new(1);
        assert!(
            matches!(&error, SessionError::Closure { rank, panicked: Some(by), .. } if [rank, by] == [&first; 2])
        );
        let said = error.to_string();
        assert!(
            said.contains("rank 1 panicked in call `early`") && !said.contains("in the same step"),
            "{said}"
        );
        let error = session.step("evaluate").await.unwrap_err().to_string();
        assert!(error.contains("rank 1 panicked: too early"), "{error}");
    });
}

/// There is nothing to ask again of a session that is poisoned, nor of one that is closed.
#[test]
fn a_dropped_step_in_which_one_rank_fails_and_another_panics_is_reported_without_a_wrong_advice() {
    within_a_minute(async {
        for closes in [false, true] {
            let gate = Gate::default();
            let held = gate.clone();
            let ranks = hooked(2, move |_, moment| {
                held.pass(moment);
                Ok(())
            });
            let builder = two_calls(Config::default(), |rank, call| match (rank.number(), call) {
                (0, "early") => fails(),
                (1, "late") => panic!("the dog ate all of it"),
                _ => Ok(()),
            });
            let mut session = builder.start(ranks).await.unwrap();
            drop_a_step(&mut session, "evaluate", &gate).await;
            let error = match closes {
                true => session.close().await.unwrap_err(),
                false => session.step("evaluate").await.unwrap_err(),
            };
            let said = error.to_string();
            assert!(said.contains("that of rank 1 panicked in the same step"), "{said}");
            assert!(!said.contains("ask again"), "{said}");
            assert_eq!(said.contains("the session is poisoned"), !closes, "{said}");
        }
    });
}

/// A program that is to be captured: after its first step ranks agree that none failed. RV-2.
#[test]
fn a_closure_on_the_cpu_may_take_longer_than_the_deadline_in_a_first_step_too() {
    within_a_minute(async {
        // It holds for the start too, which may be slow.
        let config = Config { deadline_s: 5.0, capture: Capture::Step, ..Config::default() };
        let was_slow = Switch::default();
        let builder = two_calls(config, move |rank, call| {
            if (rank.number(), call) == (1, "late") && !was_slow.is_on() {
                was_slow.on();
                std::thread::sleep(std::time::Duration::from_secs(8));
            }
            Ok(())
        });
        let mut session = builder.start_cpu(2).await.unwrap();
        for segments in [0, 1] {
            let report = session.step("evaluate").await.unwrap();
            assert_eq!((report.segments, report.mean_output("late").unwrap()), (segments, 1.0));
        }
    });
}

/// RV-3. A rank that is done waits for one that fails or panics while it waits for its lanes, and gets the reason.
#[test]
fn a_rank_that_fails_while_it_waits_for_its_lanes_ends_the_wait_of_the_others() {
    within_a_minute(async {
        for panics in [false, true] {
            let (switch, failed) = (Switch::default(), Switch::default());
            let failing = switch.clone();
            let ranks = hooked(2, move |rank, moment| {
                let fails = rank == RankId::new(1) && moment == Moment::Synchronize && failing.is_on();
                if !fails || failed.is_on() {
                    return Ok(());
                }
                failed.on();
                if panics { panic!("the cable is out") } else { cut(rank) }
            });
            let config = Config { capture: Capture::Step, ..Config::default() };
            let mut session = two_calls(config, |_, _| Ok(())).start(ranks).await.unwrap();
            // With new masters out of the way.
            session.export().await.unwrap();
            switch.on();
            let error = session.step("evaluate").await.unwrap_err();
            assert!(matches!(error, SessionError::Poisoned { exports: false, .. }), "{error}");
            assert!(error.to_string().contains("the cable is out"), "{panics}: {error}");
        }
    });
}
