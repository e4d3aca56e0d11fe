//! Failures in a step of segments.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpweft_backend::{Backend, BackendError};
use warpweft_base::id::RankId;
use warpweft_format::Format;
use warpweft_session::config::Capture;
use warpweft_session::session::{Outcome, SessionError};
use warpweft_testing::meddler::backends;
use warpweft_testing::trainer::{Mischief, feed, losses, within_a_minute};
use warpweft_testing::wrapped::{Moment, Wrapped};

use super::{config, trainer};

/// EX-2, CO-2. The step is skipped on all ranks, segments after the call run on whatever the slots hold, and
/// the next step is as if it had not been.
#[test]
fn a_dynamic_call_that_fails_skips_the_step_everywhere_and_the_next_one_goes_on() {
    within_a_minute(async {
        let mut seen = Vec::new();
        for capture in [Capture::Off, Capture::Segments] {
            let mischief = Mischief::default();
            let trainer = trainer(&["b1", "b0"], 1, Format::NVFP4_2D);
            let mut session = trainer.builder(config(2, capture), &mischief).start_cpu(3).await.unwrap();
            let mut bits = losses(&mut session, 3, 0..3).await;
            let before = session.export().await.unwrap();
            for step in 3..5 {
                mischief.set(1);
                feed(&mut session, "train", 3, step);
                let error = session.step("train").await.unwrap_err();
                let SessionError::Closure { rank, call, panicked, .. } = &error else { panic!("{error}") };
                assert_eq!((*rank, call.as_str(), *panicked), (RankId::new(1), "b0", None));
                assert_eq!(session.export().await.unwrap(), before);
            }
            mischief.set(3);
            let report = session.step("train").await.unwrap();
            assert!(matches!(report.outcome, Outcome::Skipped { .. }), "{:?}", report.outcome);
            mischief.set(0);
            bits.extend(losses(&mut session, 3, 5..8).await);
            let report = session.step("train").await.unwrap();
            assert!(matches!(report.outcome, Outcome::Updated { optimizer_step: 7, .. }));
            seen.push(bits);
        }
        assert_eq!(seen[0], seen[1]);
    });
}

/// One rank cannot capture its second segment: all drop what they captured, and say so once.
#[test]
fn a_segment_that_one_rank_cannot_record_is_reported_and_the_losses_stay_the_same() {
    within_a_minute(async {
        let trainer = trainer(&["f1", "b1"], 1, Format::Bf16);
        let mut plain = trainer.start(config(1, Capture::Off), 2).await.unwrap();
        let expected = losses(&mut plain, 2, 0..5).await;
        let ranks = backends(2).into_iter().map(|inner| {
            let (rank, captured) = (inner.rank(), Arc::new(AtomicUsize::new(0)));
            Wrapped::new(inner, move |requested| match requested.moment {
                Moment::Captured
                    if rank == RankId::new(1) && captured.fetch_add(1, Ordering::SeqCst) == 1 =>
                {
                    Err(BackendError::Host { rank, bytes: 0, reason: "the cable is out".into() })
                }
                _ => Ok(()),
            })
        });
        let builder = trainer.builder(config(1, Capture::Segments), &Mischief::default());
        let mut session = builder.start(ranks.collect()).await.unwrap();
        for (step, expected) in (0..5).zip(expected) {
            feed(&mut session, "train", 2, step);
            let report = session.step("train").await.unwrap();
            assert_eq!(report.mean_output("loss").unwrap().to_bits(), expected);
            assert_eq!(report.segments, 0, "issued anew");
            let told: Vec<_> = report.not_captured.iter().map(|failure| failure.rank).collect();
            assert_eq!(told, if step == 1 { vec![RankId::new(1)] } else { vec![] });
        }
    });
}
