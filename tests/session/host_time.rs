//! Host time of a step, as a session reports it (HT-1): the driver here is a hook that keeps the host busy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warpweft_backend::cpu::{CpuBackend, CpuSurface};
use warpweft_backend::{Backend, Meter};
use warpweft_base::id::RankId;
use warpweft_format::Format;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::Call;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Session, StepReport};
use warpweft_testing::meddler::backends;
use warpweft_testing::trainer::{self, Trainer, feed, within_a_minute};
use warpweft_testing::wrapped::{self, Moment, Wrapped};

/// What a call of the driver takes at least.
const CALL: Duration = Duration::from_micros(20);
/// On the last rank.
const SLOW_CALL: Duration = Duration::from_micros(200);

/// Ranks whose every launch and copy is a call of a driver; the last rank's takes longer.
fn charging(ranks: u32) -> Vec<Wrapped<CpuBackend>> {
    let wrap = |inner: CpuBackend| {
        let takes = if inner.rank().number() + 1 == ranks { SLOW_CALL } else { CALL };
        let meter = Arc::new(Meter::default());
        let charged = Arc::clone(&meter);
        let hook = move |requested: wrapped::Request| {
            if matches!(
                requested.moment,
                Moment::Enqueue | Moment::Launch | Moment::Upload | Moment::Download | Moment::Captured
            ) {
                charged.driver(|| {
                    let begun = Instant::now();
                    while begun.elapsed() < takes {
                        std::hint::spin_loop();
                    }
                });
            }
            Ok(())
        };
        Wrapped::new(inner, hook).charging(meter)
    };
    backends(ranks).into_iter().map(wrap).collect()
}

fn halves(_: RankId) -> impl FnMut(&Call, &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    |call, context| {
        for access in call.buffers.iter().filter(|access| access.access.writes()) {
            context.write::<f32>(access.buffer)?.fill(0.25);
        }
        for gradient in &call.gradients {
            context.gradient(gradient.weight)?.fill(0.5);
        }
        Ok(())
    }
}

async fn session(config: Config, ranks: u32) -> Session {
    let trainer = Trainer::new(2, Format::F32);
    let builder = Session::builder(config, halves).program(trainer.train.clone());
    builder.initialize(trainer::initial).start(charging(ranks)).await.unwrap()
}

async fn step(session: &mut Session, number: u32, splits: bool) -> StepReport {
    feed(session, "train", session.ranks(), number);
    session.split_host_time(splits);
    session.step("train").await.unwrap()
}

#[test]
fn ht_1_an_issued_step_says_what_one_rank_spent_in_the_driver_and_what_is_our_own() {
    within_a_minute(async {
        let mut session = session(Config { capture: Capture::Off, ..Config::default() }, 2).await;
        assert_eq!(step(&mut session, 0, false).await.host, None, "nobody asked");
        let report = step(&mut session, 1, true).await;
        let (host, tasks) = (report.host.unwrap(), session.plan("train").unwrap().tasks.len());
        assert_eq!((host.tasks, host.segments), (tasks, 0));
        assert_eq!(host.issue.calls, tasks as u64, "a call for each task, and no copy among them");
        let driver = host.issue.driver + host.issue.metering;
        // Of a machine that is busy with other tests either rank may be the slowest.
        let call = if host.rank == RankId::new(1) { SLOW_CALL } else { CALL };
        assert!(driver >= call * u32::try_from(tasks).unwrap());
        assert!(driver <= report.issue, "{host}");
        assert!(host.issue.metering > Duration::ZERO, "calls were timed");
        assert_eq!(host.issue.closures, Duration::ZERO, "they run on a lane of their own");
        // Learning rate and loss scale have not changed, so what comes in are inputs; out go the vote and the
        // loss.
        assert!(host.edges.calls >= 3, "{host}");
        assert!(host.edges.driver + host.edges.metering >= call * u32::try_from(host.edges.calls).unwrap());
        assert!(host.issue.own > Duration::ZERO && host.own_each() * host.tasks as u32 <= host.issue.own);
        assert!(host.caller > Duration::ZERO);
        assert_eq!(step(&mut session, 2, false).await.host, None, "nobody asks any more");
        session.close().await.unwrap();
    });
}

#[test]
fn a_learning_rate_is_written_when_it_has_changed_and_not_before() {
    within_a_minute(async {
        let mut session = session(Config { capture: Capture::Step, ..Config::default() }, 1).await;
        let mut copies = Vec::new();
        for (number, learning_rate) in (0..).zip([1e-3, 1e-3, 1e-3, 2e-3, 2e-3]) {
            session.set_learning_rate(learning_rate).unwrap();
            copies.push(step(&mut session, number, true).await.host.unwrap().edges.calls);
        }
        let usual = copies[1];
        assert_eq!(copies, [usual + 3, usual, usual, usual + 1, usual], "at first with both scales");
        session.close().await.unwrap();
    });
}

#[test]
fn ht_1_a_captured_step_is_one_call_and_capture_it_is_charged_to_no_step() {
    within_a_minute(async {
        let mut session = session(Config { capture: Capture::Step, ..Config::default() }, 2).await;
        let mut edges = Vec::new();
        for number in 0..4 {
            let host = step(&mut session, number, true).await.host.unwrap();
            if number > 0 {
                assert_eq!((host.segments, host.issue.calls), (1, 1), "step {number}: {host}");
                // Of one launch it may be either rank's.
                let usual = if host.rank == RankId::new(1) { SLOW_CALL } else { CALL };
                assert!(
                    host.issue.driver + host.issue.metering >= usual && host.issue.own > Duration::ZERO,
                    "{host}"
                );
            }
            edges.push(host.edges.calls);
        }
        assert_eq!(edges[1..], [edges[1]; 3], "the step that was captured has the copies of any other");
        session.close().await.unwrap();
    });
}
