//! EX-1: segments give the bits of steps that are issued, and of those captured whole.

use warpweft_format::Format;
use warpweft_plan::policy::Backward;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{SessionError, plan_program};
use warpweft_testing::trainer::{Mischief, Trainer, feed, losses, within_a_minute};

use super::{config, trainer};

const STEPS: u32 = 5;

/// Dynamic calls at the beginning, in the middle, at the end, in backward, several in a row, and all of them.
const DYNAMIC: [&[&str]; 7] = [
    &["input"],
    &["f1"],
    &["b0"],
    &["loss", "b1"],
    &["input", "f0", "f1"],
    &["b2", "b1", "b0"],
    &["input", "f0", "f1", "f2", "loss", "b2", "b1", "b0"],
];

/// Bits of losses and of what is exported after them.
async fn run(trainer: &Trainer, config: Config, ranks: u32) -> (Vec<u32>, Vec<u32>) {
    let mut session = trainer.start(config, ranks).await.unwrap();
    let losses = losses(&mut session, ranks, 0..STEPS).await;
    let state = session.export().await.unwrap();
    session.close().await.unwrap();
    let masters = state.weights.iter().flat_map(|weight| &weight.master);
    (losses, masters.map(|value| value.to_bits()).collect())
}

/// EX-1, PL-7, under the checker.
#[test]
fn issued_whole_and_segmented_steps_give_the_same_losses_and_weights() {
    within_a_minute(async {
        for (format, ranks, micro_batches) in [(Format::NVFP4_2D, 3, 1), (Format::Bf16, 2, 2)] {
            let whole = trainer(&[], micro_batches, format);
            let expected = run(&whole, config(1, Capture::Off), ranks).await;
            assert!(f32::from_bits(expected.0[4]) < f32::from_bits(expected.0[0]), "{format} learns");
            assert_eq!(run(&whole, config(1, Capture::Step), ranks).await, expected, "{format}");
            for (number, dynamic) in DYNAMIC.into_iter().enumerate() {
                let trainer = trainer(dynamic, micro_batches, format);
                // Gathers on demand, and gathers that cross boundaries; one communicator, and two.
                let depth = [2, 0, 4][number % 3];
                let communicators = 1 + u32::from(number % 2 == 0);
                let config =
                    |capture| Config { communicators: Some(communicators), ..config(depth, capture) };
                let found = run(&trainer, config(Capture::Segments), ranks).await;
                assert_eq!(found, expected, "{format}, {dynamic:?}, depth {depth}");
                let issued = run(&trainer, Config { check: false, ..config(Capture::Off) }, ranks).await;
                assert_eq!(issued, expected, "{format}, {dynamic:?}, issued");
            }
        }
    });
}

/// AC-2, PL-7. What is made ahead of a captured call stands before a dynamic one in T and is moved over it:
/// whoever issues it must not hold the dynamic one back.
#[test]
fn what_is_derived_ahead_over_a_dynamic_call_does_not_hold_it_back() {
    within_a_minute(async {
        let whole = trainer(&[], 1, Format::NVFP4_2D);
        let expected = run(&whole, config(1, Capture::Off), 3).await;
        for dynamic in DYNAMIC {
            for depth in [1, 2] {
                let ahead = Config { derive_ahead: true, ..config(depth, Capture::Segments) };
                let found = run(&trainer(dynamic, 1, Format::NVFP4_2D), ahead, 3).await;
                assert_eq!(found, expected, "{dynamic:?}, depth {depth}");
            }
        }
    });
}

/// Not checked, so that only the backend's own boundaries order what they must.
#[test]
fn unchecked_segments_give_the_same_bits_over_many_steps() {
    within_a_minute(async {
        let bits = |dynamic: &'static [&str], capture| async move {
            let config = Config { check: false, backward: Backward::Keep, ..config(2, capture) };
            let mut session = trainer(dynamic, 2, Format::FP8_BLOCK128_POW2).start(config, 2).await.unwrap();
            losses(&mut session, 2, 0..60).await
        };
        let expected = bits(&[], Capture::Off).await;
        assert_eq!(bits(&["f1", "b2", "b0"], Capture::Segments).await, expected);
        assert_eq!(bits(&[], Capture::Segments).await, expected);
    });
}

#[test]
fn a_report_says_how_many_segments_were_launched() {
    within_a_minute(async {
        for (dynamic, capture, segments) in [
            (&[][..], Capture::Off, 0),
            (&[][..], Capture::Step, 1),
            (&[][..], Capture::Segments, 1),
            (&["f1"][..], Capture::Segments, 2),
            (&["f1", "b1"][..], Capture::Segments, 3),
            (&["f1", "b1"][..], Capture::Off, 0),
        ] {
            let mut session = trainer(dynamic, 1, Format::Bf16).start(config(1, capture), 2).await.unwrap();
            for step in 0..3 {
                feed(&mut session, "train", 2, step);
                let report = session.step("train").await.unwrap();
                assert_eq!(report.not_captured, []);
                assert_eq!(report.segments, if step == 0 { 0 } else { segments }, "{dynamic:?}, {capture:?}");
            }
        }
    });
}

/// Refused before anything runs, and with words on what to do.
#[test]
fn a_step_with_a_dynamic_call_cannot_be_captured_whole() {
    within_a_minute(async {
        let trainer = trainer(&["f1", "b1"], 1, Format::Bf16);
        let builder = trainer.builder(config(1, Capture::Step), &Mischief::default());
        let error = builder.start_cpu(2).await.map(drop).unwrap_err();
        let SessionError::Dynamic { program, call } = &error else { panic!("{error}") };
        assert_eq!((program.as_str(), call.as_str()), ("train", "f1"));
        assert!(error.to_string().contains("set capture = \"segments\""), "{error}");
        let error = plan_program(&trainer.evaluate, &config(1, Capture::Step), 2).unwrap_err();
        assert!(matches!(error, SessionError::Dynamic { .. }), "{error}");
    });
}
