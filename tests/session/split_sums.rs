//! Gradient accumulation in split sessions, each of which owns a part of the ranks, as processes do.

use warpweft_format::Format;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session, SessionError};
use warpweft_testing::split::{config, feed, in_processes, in_processes_with};
use warpweft_testing::trainer::{self, Mischief, Trainer};

fn trainer() -> Trainer {
    let mut trainer = Trainer::new(2, Format::NVFP4_2D);
    trainer.train = trainer.train.accumulating().unwrap();
    trainer
}

/// Bits of the losses of sums of three steps.
async fn sums(session: &mut Session, steps: std::ops::Range<u32>) -> Vec<u32> {
    let mut losses = Vec::new();
    for step in steps {
        for batch in 0..3 {
            feed(session, 3 * step + batch);
            let report =
                if batch < 2 { session.accumulate("train").await } else { session.step("train").await };
            losses.push(report.unwrap().mean_output("loss").unwrap().to_bits());
        }
    }
    losses
}

/// EX-1 and EX-2.
#[test]
fn sums_do_not_depend_on_how_ranks_are_split_over_processes() {
    let run = |ranks: &[u32]| {
        in_processes(&trainer(), ranks, &Mischief::default(), |_, mut session| async move {
            let losses = sums(&mut session, 0..3).await;
            session.close().await.unwrap();
            losses
        })
    };
    let expected = run(&[4]).remove(0);
    for ranks in [&[2, 2][..], &[1, 3]] {
        assert!(run(ranks).into_iter().all(|found| found == expected), "{ranks:?}");
    }
}

/// EX-2: whoever failed, and whoever's future was dropped, the sum is the same in every process.
#[test]
fn a_closure_that_fails_in_one_process_drops_the_sum_in_all() {
    let mischief = Mischief::default();
    let told = mischief.clone();
    in_processes(&trainer(), &[1, 1], &mischief, move |_, mut session| {
        let mischief = told.clone();
        async move {
            feed(&mut session, 9);
            session.accumulate("train").await.unwrap();
            session.accumulate("train").await.unwrap();
            // Rank 1 alone does as told. A step has ended here when it has ended there, so it gets its orders between
            // steps.
            mischief.set(1);
            let failed = session.accumulate("train").await.unwrap_err();
            assert!(matches!(failed, SessionError::Closure { .. }), "{failed}");
            assert_eq!(session.accumulated(), 0);
            mischief.set(0);
            session.accumulate("train").await.unwrap();
            assert_eq!(session.accumulated(), 1);
        }
    });
}

/// Two processes that are asked for different steps, under a configuration that does not capture.
fn differ(work: impl Fn(usize, &mut Session) -> bool + Clone + Send + 'static) -> Vec<String> {
    let config = Config { capture: Capture::Off, ..config() };
    in_processes_with(&config, &trainer(), &[1, 1], &Mischief::default(), move |process, mut session| {
        let work = work.clone();
        async move {
            feed(&mut session, 0);
            session.accumulate("train").await.unwrap();
            if work(process, &mut session) {
                session.discard_gradients().await.unwrap();
            }
            let error = session.step("train").await.map(|report| report.outcome).unwrap_err();
            assert!(matches!(error, SessionError::Poisoned { .. }), "{error}");
            error.to_string()
        }
    })
}

/// EX-2: each would divide the same sums by another number, and weights would part unnoticed.
#[test]
fn processes_whose_sums_are_of_different_steps_end_with_what_is_different() {
    for error in differ(|process, _| process == 0) {
        assert!(error.contains("another program, or another step of a sum"), "{error}");
        assert!(error.contains("discard_gradients"), "{error}");
    }
    for error in differ(|process, session| {
        session.set_learning_rate(1e-3 * (process + 1) as f32).unwrap();
        false
    }) {
        assert!(error.contains("another learning rate"), "{error}");
    }
}

#[test]
fn a_sum_goes_on_after_an_evaluation_in_every_process() {
    let found = in_processes(&trainer(), &[1, 2], &Mischief::default(), |_, mut session| async move {
        feed(&mut session, 0);
        session.accumulate("train").await.unwrap();
        for rank in session.own_ranks() {
            let values = trainer::input(4, rank.number(), 0);
            session.write_input("evaluate", rank, "input", &values).unwrap();
        }
        assert_eq!(session.step("evaluate").await.unwrap().outcome, Outcome::Evaluated);
        let outcome = session.step("train").await.unwrap().outcome;
        let Outcome::Updated { norm, .. } = outcome else { panic!("{outcome:?}") };
        norm.to_bits()
    });
    assert_eq!(found[0], found[1]);
}
