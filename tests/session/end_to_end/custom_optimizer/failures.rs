//! What a custom optimizer may not do, and how it is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use warpweft_base::id::RankId;
use warpweft_format::Format;
use warpweft_plan::compute::ComputeError;
use warpweft_session::config::Capture;
use warpweft_session::session::SessionError;
use warpweft_testing::custom_optimizer::{Called, by_rows};
use warpweft_testing::trainer::{Mischief, SIZE, Trainer, feed, within_a_minute};

use super::super::config;
use super::super::optimizers::the_first_step_ends_with;
use super::{Context, descent, own, start};

/// Every kind of failure ends with its cause, and none leaves a session that would train on.
#[test]
fn a_custom_optimizer_that_fails_or_panics_or_leaves_a_weight_out_ends_the_session_with_its_words() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        type Rule = fn(Context<'_, '_>) -> Result<(), ComputeError>;
        let runs = Arc::new(AtomicU32::new(0));
        let cases: [(Rule, &[&str]); 3] = [
            (
                |context| match context.rank().number() {
                    1 => Err(ComputeError::closure("too steep")),
                    _ => descent(context),
                },
                &["rank 1", "too steep", "import the last checkpoint"],
            ),
            (
                |context| match context.rank().number() {
                    1 => panic!("over the edge"),
                    _ => descent(context),
                },
                &["rank 1", "panicked: over the edge"],
            ),
            (|_| Ok(()), &["without requesting the master of `", "UpdateContext::weights"]),
        ];
        for (number, (rule, words)) in cases.into_iter().enumerate() {
            let counted = Arc::clone(&runs);
            let counting = move |context: Context<'_, '_>| {
                counted.fetch_add(u32::from(context.rank().number() == 1), Ordering::SeqCst);
                rule(context)
            };
            runs.store(0, Ordering::SeqCst);
            let config = own(1, config(1, Capture::Off, true));
            let builder = trainer.builder_with_optimizer(config, &Mischief::default(), counting);
            let mut session = builder.start_cpu(2).await.unwrap();
            the_first_step_ends_with(&mut session, words).await;
            drop(session);
            // There are two sets of weights; one that has panicked is not run for the second.
            assert!(number != 1 || runs.load(Ordering::SeqCst) == 1);
        }
    });
}

/// A session neither plans for an optimizer that nobody gives it, nor lacks memory for what one keeps.
#[test]
fn a_custom_optimizer_that_is_missing_or_names_other_states_is_refused_before_the_start() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let made = || config(1, Capture::Off, true);
        let error = trainer.start(own(1, made()), 2).await.unwrap_err().to_string();
        assert!(
            error.contains("the plan was made for a custom optimizer, and this rank has none"),
            "{error}"
        );
        let builder = trainer.builder(made(), &Mischief::default());
        let builder = builder.try_optimizer(2, |_| Ok(by_rows(1, descent)));
        let error = builder.start_cpu(2).await.unwrap_err().to_string();
        assert!(error.contains("names 1 states, and SessionBuilder::try_optimizer was given 2"), "{error}");
        let builder =
            trainer.builder(made(), &Mischief::default()).try_optimizer(9, |_| Ok(by_rows(2, descent)));
        let error = builder.start_cpu(2).await.unwrap_err().to_string();
        assert!(error.contains("keep at most 8 lists for a custom optimizer"), "{error}");
    });
}

/// EX-5, for what a rule leaves.
#[test]
fn a_custom_optimizer_that_leaves_a_value_that_is_not_finite_is_reported_by_weight_row_and_column() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        type Rule = fn(Context<'_, '_>) -> Result<(), ComputeError>;
        let cases: [(Rule, &str); 2] = [
            (
                |context| {
                    descent(context)?;
                    for weight in context.weights().filter(|weight| weight.name == "layer1") {
                        context.master(weight.id)?
                            [(SIZE - 1 - weight.first_row).min(weight.rows - 1) * SIZE + 3] = f32::NAN;
                    }
                    Ok(())
                },
                "the master NaN of `layer1` in row ",
            ),
            (
                |context| {
                    descent(context)?;
                    for weight in context.weights().filter(|weight| weight.name == "bias") {
                        context.state(weight.id, "first")?[7] = f32::INFINITY;
                    }
                    Ok(())
                },
                "the first state inf of `bias` in row 0, column 7",
            ),
        ];
        for (rule, words) in cases {
            let mut session = start(&trainer, own(1, config(1, Capture::Off, true)), 2, rule).await;
            feed(&mut session, "train", 2, 0);
            let error = session.step("train").await.unwrap_err();
            assert!(matches!(error, SessionError::Diverged { .. }), "{error}");
            let said = error.to_string();
            assert!(said.contains(words), "{said}");
        }
    });
}

#[test]
fn ranks_that_make_different_optimizers_do_not_start() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let builder = trainer.builder(config(1, Capture::Off, true), &Mischief::default());
        let of = |rank: RankId| if rank.index() == 0 { "Lion" } else { "Tiger" };
        let builder = builder.try_optimizer(1, move |seat| Ok(Called(of(seat.rank), &["momentum"], descent)));
        let error = builder.start_cpu(2).await.unwrap_err().to_string();
        assert!(error.contains("`Lion` with state `momentum`"), "{error}");
        assert!(error.contains("`Tiger` with state `momentum`"), "{error}");
        assert!(error.contains("return the same optimizer on every rank"), "{error}");
    });
}
