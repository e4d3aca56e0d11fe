//! Choices of the tuner, by dictated times.

use warpweft_backend::TaskInterval;
use warpweft_format::Format;
use warpweft_plan::plan::GatherStart;
use warpweft_session::config::{Config, Tune};
use warpweft_session::tune::Verdict;
use warpweft_testing::trainer::{Mischief, Trainer, feed, losses, within_a_minute};

use super::dictated::{config, hates_memory, loves_memory, start};

#[test]
fn where_memory_pays_a_session_leaves_the_configured_depth_and_where_it_costs_it_stays_there() {
    within_a_minute(async {
        let trainer = Trainer::new(4, Format::F32);
        let (mut session, _) = start(&trainer, config(0, None), 2, loves_memory, &Mischief::default()).await;
        losses(&mut session, 2, 0..24).await;
        let tuning = session.tuning().unwrap();
        // A thousandth of the step is below the hysteresis; so deeper is chosen only where it is worth it.
        assert_eq!(tuning.choice().unwrap().candidate.prefetch, GatherStart::Depth(0), "{tuning}");

        let (mut session, _) =
            start(&trainer, config(1, None), 2, |bytes| 20_000_000_000 / bytes as u64, &Mischief::default())
                .await;
        losses(&mut session, 2, 0..24).await;
        let tuning = session.tuning().unwrap();
        let choice = tuning.choice().unwrap();
        assert_ne!(choice.candidate.prefetch, GatherStart::Depth(1), "{tuning}");
        let most = tuning.log().iter().filter_map(|decision| match decision.verdict {
            Verdict::Chosen { bytes, .. } | Verdict::Kept { bytes, .. } => Some(bytes),
            _ => None,
        });
        assert_eq!(most.max(), Some(choice.bytes), "{tuning}");
        assert_eq!(session.plan("train").unwrap().bounds.transient_bytes, choice.bytes);

        let (mut session, _) = start(&trainer, config(4, None), 2, hates_memory, &Mischief::default()).await;
        losses(&mut session, 2, 0..24).await;
        let tuning = session.tuning().unwrap();
        let least = tuning.log().iter().filter_map(|decision| match decision.verdict {
            Verdict::Chosen { bytes, .. } | Verdict::Kept { bytes, .. } => Some(bytes),
            _ => None,
        });
        assert_eq!(least.min(), Some(tuning.choice().unwrap().bytes), "{tuning}");
        assert_ne!(tuning.choice().unwrap().candidate.prefetch, GatherStart::Depth(4), "{tuning}");
    });
}

/// What a table says to paste makes a plan that was tried: the chosen one, or the fastest that a
/// configuration can say.
#[test]
fn the_text_of_the_trials_is_a_configuration_that_makes_the_chosen_plan_again() {
    within_a_minute(async {
        let trainer = Trainer::new(4, Format::F32);
        let budget =
            trainer.start(untuned(3), 2).await.unwrap().plan("train").unwrap().bounds.transient_bytes;
        let given = config(0, Some(budget));
        let faster = |bytes| 20_000_000_000 / bytes as u64;
        let (mut session, _) = start(&trainer, given, 2, faster, &Mischief::default()).await;
        let mut tried = Vec::new();
        for step in 0..24 {
            losses(&mut session, 2, step..step + 1).await;
            let candidate = session.tuning().unwrap().trial();
            tried.extend(candidate.map(|one| (one.to_string(), session.plan("train").unwrap().clone())));
        }
        let tuning = session.tuning().unwrap();
        let text = tuning.to_string();
        let pasted = Config::from_toml_str(&text, "pasted").unwrap();
        assert_eq!(pasted.prefetch.to_string(), tuning.to_configure().unwrap().to_string());
        assert_eq!((pasted.tune.steps, pasted.memory.budget.unwrap().bytes()), (0, budget as u64));
        for decision in tuning.log() {
            assert!(text.contains(&format!("# {}", decision.candidate)), "{decision} is not in\n{text}");
        }
        let fastest = tuning.to_configure().unwrap().to_string();
        let (_, plan) = tried.iter().find(|(candidate, _)| *candidate == fastest).unwrap();
        let Config { capture, reduce_delay, .. } = config(0, None);
        let again = Config { capture, reduce_delay, ..pasted };
        let again = trainer.start(again, 2).await.unwrap();
        assert_eq!(again.plan("train").unwrap(), plan, "{text}");
    });
}

fn untuned(depth: u32) -> Config {
    let mut config = config(depth, None);
    config.tune.steps = 0;
    config
}

/// A backend that times nothing leaves the step alone to go by.
#[test]
fn without_times_of_tasks_steps_are_compared_and_nothing_is_planned_by_measurement() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::F32);
        let backends = warpweft_testing::meddler::backends(2).into_iter().map(|inner| {
            warpweft_testing::wrapped::Wrapped::new(inner, |_| Ok(())).timed_by(|_, into| into.clear())
        });
        let builder = trainer.builder(config(1, None), &Mischief::default());
        let mut session = builder.start(backends.collect()).await.unwrap();
        losses(&mut session, 2, 0..24).await;
        let tuning = session.tuning().unwrap();
        let is_refused = |verdict: &Verdict| matches!(verdict, Verdict::Refused { reason } if reason.contains("times no tasks"));
        let measured: Vec<_> = tuning.log().iter().filter(|one| one.candidate.by_measurement).collect();
        assert!(!measured.is_empty() && measured.iter().all(|one| is_refused(&one.verdict)), "{tuning}");
        assert!(tuning.is_frozen() && tuning.choice().is_some(), "{tuning}");
    });
}

/// Steps of other programs are none of a trial.
#[test]
fn an_evaluation_between_two_steps_of_a_trial_counts_for_nothing() {
    within_a_minute(async {
        let trainer = Trainer::new(3, Format::F32);
        let faster = |bytes| 20_000_000_000 / bytes as u64;
        let (mut plain, _) = start(&trainer, config(1, None), 2, faster, &Mischief::default()).await;
        let (mut mixed, _) = start(&trainer, config(1, None), 2, faster, &Mischief::default()).await;
        for step in 0..24 {
            feed(&mut plain, "train", 2, step);
            plain.step("train").await.unwrap();
            feed(&mut mixed, "evaluate", 2, step);
            mixed.step("evaluate").await.unwrap();
            feed(&mut mixed, "train", 2, step);
            mixed.step("train").await.unwrap();
        }
        let (plain, mixed) = (plain.tuning().unwrap(), mixed.tuning().unwrap());
        assert_eq!(
            (plain.program(), plain.log(), plain.choice()),
            (mixed.program(), mixed.log(), mixed.choice())
        );
        assert_eq!(plain.program(), "train");
    });
}

/// TU-9: of the two steps after the first the faster counts; with the first, the middle of three would be
/// another.
#[test]
fn the_first_step_of_a_trial_warms_up_and_is_not_measured() {
    const FACTORS: [u64; Tune::PER_TRIAL as usize] = [9, 2, 5];
    within_a_minute(async {
        let trainer = Trainer::new(3, Format::F32);
        let backends = warpweft_testing::meddler::backends(2).into_iter().map(|inner| {
            let steps = std::sync::atomic::AtomicUsize::new(0);
            warpweft_testing::wrapped::Wrapped::new(inner, |_| Ok(())).timed_by(move |seen, into| {
                let step = steps.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let end = 20_000_000_000 / seen.transient as u64 * FACTORS[step % FACTORS.len()];
                into.clear();
                into.resize(seen.tasks, TaskInterval::new(0, 0, end));
            })
        });
        let builder = trainer.builder(config(1, None), &Mischief::default());
        let mut session = builder.start(backends.collect()).await.unwrap();
        losses(&mut session, 2, 0..24).await;
        let tuning = session.tuning().unwrap();
        for decision in tuning.log() {
            if let Verdict::Chosen { bytes, .. } | Verdict::Kept { bytes, .. } = decision.verdict {
                assert_eq!(decision.step, Some(20_000_000_000 / bytes as u64 * 2), "{tuning}");
            }
        }
        assert!(tuning.log().len() > 3, "{tuning}");
    });
}
