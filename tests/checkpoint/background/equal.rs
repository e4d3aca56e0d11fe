//! What is saved in the background equals what a stopped save has, and nobody's bits change.

use warpweft_backend::cpu::CpuSurface;
use warpweft_format::Format;
use warpweft_plan::compute::{ComputeError, UpdateContext};
use warpweft_plan::policy::{Masters, Moments};
use warpweft_session::checkpoint::{FileStore, PartFiles};
use warpweft_session::config::{Capture, Config, OptimizerShard, Prefetch, Scaling};
use warpweft_session::trace::read_trace;
use warpweft_testing::polled::polled_once;
use warpweft_testing::trainer::{Mischief, Shaped, Trainer, feed, losses, within_a_minute};

use super::super::parts::{notes, replicated};
use super::{compared, config, gate};

/// Losses of a run without saves, and of one with; what both saved is compared on the way.
async fn the_same(trainer: &Trainer, config: Config, ranks: u32, what: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut undisturbed = trainer.start(config.clone(), ranks).await.unwrap();
    let expected = losses(&mut undisturbed, ranks, 0..7).await;
    let mut session = trainer.start(config, ranks).await.unwrap();
    let mut found = losses(&mut session, ranks, 0..2).await;
    found.extend(compared(&mut session, ranks, folder.path(), 2..6).await);
    found.extend(losses(&mut session, ranks, 6..7).await);
    assert_eq!(found, expected, "{what}");
    assert!(session.export().await.unwrap() == undisturbed.export().await.unwrap(), "{what}");
    session.close().await.unwrap();
}

/// CK-6. One of four ranks has no rows.
#[test]
fn a_save_beside_training_is_a_stopped_one_bit_for_bit_in_every_format() {
    within_a_minute(async {
        for format in Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()) {
            the_same(&Trainer::new(2, format), config(), 4, &format.to_string()).await;
        }
    });
}

#[test]
fn a_save_beside_training_is_a_stopped_one_at_every_depth_and_however_steps_are_captured() {
    within_a_minute(async {
        for (depth, capture) in
            [(0, Capture::Off), (1, Capture::Step), (4, Capture::Segments), (2, Capture::Off)]
        {
            let config = Config { prefetch: Prefetch::depth(depth), capture, ..config() };
            let shaped =
                Shaped { layers: 5, weights: 3, recomputes: true, micro_batches: 2, one_scale: false };
            let trainer = match capture {
                Capture::Segments => Trainer::with_dynamic(&["f1"], shaped, Format::NVFP4_2D, &config),
                _ => Trainer::shaped(shaped, Format::NVFP4_2D, &config),
            };
            the_same(&trainer, config, 2, &format!("depth {depth}, {capture:?}")).await;
        }
    });
}

#[test]
fn a_save_beside_training_is_a_stopped_one_however_state_is_kept_and_in_replicas() {
    within_a_minute(async {
        let mut halved = config();
        halved.optimizer.masters = Masters::Bf16Remainder;
        (halved.optimizer.moments, halved.optimizer.beta2) = (Moments::Bf16, 0.99);
        the_same(&Trainer::new(2, Format::Bf16), halved, 3, "halves").await;

        let mut delayed = config();
        delayed.quantize.scaling = Scaling::Delayed;
        delayed.quantize.amax_history = 3;
        the_same(&Trainer::new(2, Format::FP8_TENSOR_E4M3), delayed, 2, "delayed scales").await;

        for pattern in ["layer1", "bias"] {
            let rules = format!("[[weights]]\nmatch = '{pattern}'\nfrozen = true");
            let weights = Config::from_toml_str(&rules, "rules").unwrap().weights;
            let frozen = Config { weights, ..config() };
            the_same(&Trainer::refined(2, Format::NVFP4_2D, &frozen), frozen, 3, pattern).await;
        }
        for replicas in [2, 4] {
            let config = Config { check: true, ..replicated(replicas) };
            the_same(&Trainer::new(2, Format::Mxfp8), config.clone(), 4, "replicas").await;
            let mut slices = config;
            slices.optimizer.shard = OptimizerShard::Replicas;
            the_same(&Trainer::new(2, Format::Mxfp8), slices, 4, "state over the replicas").await;
        }
    });
}

#[test]
fn a_save_beside_a_custom_optimizer_is_a_stopped_one() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config();
        config.optimizer.custom_states = Some(1);
        let trainer = Trainer::new(2, Format::Bf16);
        let start =
            || trainer.builder_with_optimizer(config.clone(), &Mischief::default(), descent).start_cpu(3);
        let mut undisturbed = start().await.unwrap();
        let expected = losses(&mut undisturbed, 3, 0..6).await;
        let mut session = start().await.unwrap();
        let mut found = losses(&mut session, 3, 0..2).await;
        found.extend(compared(&mut session, 3, folder.path(), 2..6).await);
        assert_eq!(found, expected);
    });
}

fn descent(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    for weight in context.weights() {
        let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
        let mut momentum = context.state(weight.id, "first")?;
        for at in 0..master.len() {
            momentum[at] = 0.5 * momentum[at] + gradient[at];
            master[at] -= 1e-3 * momentum[at];
        }
    }
    Ok(())
}

/// The sum is in no checkpoint; the state that it will update is.
#[test]
fn a_save_may_begin_within_a_sum_of_gradients_and_any_step_of_it_copies() {
    within_a_minute(async {
        let mut trainer = Trainer::new(2, Format::NVFP4_2D);
        trainer.train = trainer.train.accumulating().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut undisturbed = trainer.start(config(), 2).await.unwrap();
        let mut session = trainer.start(config(), 2).await.unwrap();
        // Sums of three steps; a save begins before each of them.
        for step in 0..9 {
            let parts = PartFiles::new(folder.path().join(step.to_string()));
            let expected = super::without_planes(session.export().await.unwrap());
            session.save_parts_in_background(&parts, &notes(&[])).await.unwrap();
            for session in [&mut session, &mut undisturbed] {
                feed(session, "train", 2, step);
                match step % 3 {
                    2 => session.step("train").await.unwrap(),
                    _ => session.accumulate("train").await.unwrap(),
                };
            }
            session.finish_save().await.unwrap();
            assert!(parts.load().unwrap() == expected, "{step}");
        }
        assert!(session.export().await.unwrap() == undisturbed.export().await.unwrap());
    });
}

/// The copies are tasks as all others: on a lane of their own, which no call shares, before what overwrites their
/// slots.
#[test]
fn a_trace_shows_the_copies_on_a_lane_beside_the_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let mut traced = config();
    traced.trace.enabled = true;
    traced.trace.path = path.display().to_string();
    (traced.trace.first_step, traced.trace.steps) = (1, 2);
    let trainer = Trainer::new(2, Format::NVFP4_2D);
    within_a_minute(async move {
        let mut session = trainer.start(traced, 2).await.unwrap();
        losses(&mut session, 2, 0..1).await;
        let parts = PartFiles::new(folder.path().join("step-1"));
        session.save_parts_in_background(&parts, &notes(&[])).await.unwrap();
        losses(&mut session, 2, 1..3).await;
        session.close().await.unwrap();
        let timeline = read_trace(std::fs::File::open(&path).unwrap()).unwrap().timeline;
        let lane = timeline.lanes.iter().find(|lane| lane.name == "snapshot").unwrap().lane;
        let (copies, others): (Vec<_>, Vec<_>) = timeline.slices.iter().partition(|slice| slice.lane == lane);
        // Master and two moments of two weights and a bias, on two ranks, in the first of the two steps.
        assert_eq!(copies.len(), 3 * 3 * 2);
        assert!(copies.iter().all(|copy| copy.step == 1 && copy.name.starts_with("snapshot ")));
        for copy in copies {
            let mut updates = others.iter().filter(|other| (other.rank, other.step) == (copy.rank, 1));
            assert!(updates.any(|other| other.name.starts_with("adam ") && other.begin >= copy.end));
        }
    });
}

/// While a session tunes itself no step copies, and none is measured with copies.
#[test]
fn a_session_that_tunes_itself_copies_between_its_trials() {
    within_a_minute(async {
        let mut tuned = config();
        tuned.tune.steps = 6;
        let trainer = Trainer::new(3, Format::NVFP4_2D);
        the_same(&trainer, tuned.clone(), 2, "tuned").await;
        let folder = tempfile::tempdir().unwrap();
        let mut session = trainer.start(tuned, 2).await.unwrap();
        for step in 0..9 {
            let parts = PartFiles::new(folder.path().join(step.to_string()));
            let expected = super::without_planes(session.export().await.unwrap());
            session.save_parts_in_background(&parts, &notes(&[])).await.unwrap();
            let is_tuned = session.tuning().unwrap().is_frozen();
            feed(&mut session, "train", 2, step);
            let report = session.step("train").await.unwrap();
            assert_eq!(report.plan().takes_snapshot, is_tuned, "{step}");
            session.finish_save().await.unwrap();
            assert!(parts.load().unwrap() == expected, "{step}");
        }
        assert!(session.tuning().unwrap().is_frozen());
    });
}

/// CK-6. What imports change, a save that has begun does not see.
#[test]
fn an_import_right_after_a_save_has_begun_does_not_change_what_is_saved() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut session = trainer.start(config(), 2).await.unwrap();
        let first = session.export().await.unwrap();
        losses(&mut session, 2, 0..2).await;
        let second = session.export().await.unwrap();
        session.save_parts_in_background(&parts, &notes(&[])).await.unwrap();
        session.import(&first).await.unwrap();
        session.finish_save().await.unwrap();
        assert!(parts.load().unwrap() == super::without_planes(second));
        assert!(session.export().await.unwrap() == first);
    });
}

/// An evaluation changes nothing, and copies all the same.
#[test]
fn the_step_that_copies_may_be_of_any_program_and_no_step_need_come() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = |name: &str| PartFiles::new(folder.path().join(name));
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut session = trainer.start(config(), 2).await.unwrap();
        losses(&mut session, 2, 0..2).await;
        let expected = super::without_planes(session.export().await.unwrap());
        session.save_parts_in_background(&parts("evaluated"), &notes(&[])).await.unwrap();
        feed(&mut session, "evaluate", 2, 9);
        let report = session.step("evaluate").await.unwrap();
        assert!(report.plan().takes_snapshot && report.segments == 0);
        feed(&mut session, "evaluate", 2, 9);
        assert!(!session.step("evaluate").await.unwrap().plan().takes_snapshot);
        losses(&mut session, 2, 2..4).await;
        session.finish_save().await.unwrap();
        assert!(parts("evaluated").load().unwrap() == expected);

        let expected = super::without_planes(session.export().await.unwrap());
        session.save_parts_in_background(&parts("finished"), &notes(&[])).await.unwrap();
        session.finish_save().await.unwrap();
        session.save_parts_in_background(&parts("closed"), &notes(&[])).await.unwrap();
        session.close().await.unwrap();
        for name in ["finished", "closed"] {
            assert!(parts(name).load().unwrap() == expected, "{name}");
        }
    });
}

/// What does not fit the limit is saved as before, and training waits.
#[test]
fn a_snapshot_that_is_too_large_lets_training_wait_for_the_save() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = |name: &str| PartFiles::new(folder.path().join(name));
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let needed = {
            let mut session = trainer.start(config(), 2).await.unwrap();
            session.save_parts_in_background(&parts("free"), &notes(&[])).await.unwrap();
            session.snapshot_bytes()
        };
        for (most, fits) in [(needed, true), (needed - 1, false), (0, false)] {
            let text = format!("[checkpoint]\nsnapshot_bytes = {most}");
            let limited = Config { check: true, ..Config::from_toml_str(&text, "limit").unwrap() };
            let mut session = trainer.start(limited, 2).await.unwrap();
            let (into, file) = (parts(&most.to_string()), folder.path().join(format!("{most}.safetensors")));
            session.save_parts_in_background(&into, &notes(&[])).await.unwrap();
            assert_eq!((session.is_saving(), into.is_taken()), (fits, !fits), "{most}");
            assert_eq!(session.snapshot_bytes(), if fits { needed } else { 0 });
            let store = FileStore::new(file.clone());
            session.save_in_background(store, notes(&[])).await.unwrap();
            assert_eq!((session.is_saving(), file.exists()), (fits, !fits), "{most}");
            losses(&mut session, 2, 0..1).await;
            session.close().await.unwrap();
            assert!(into.is_taken() && file.exists());
        }
    });
}

/// CK-6. Steps go on while a store takes its time, and a second save waits for the first.
#[test]
fn steps_go_on_while_a_store_writes_and_the_next_save_waits_for_it() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut session = trainer.start(config(), 2).await.unwrap();
        let expected = session.export().await.unwrap();
        let (store, got, goes_on) = gate();
        session.save_in_background(store, notes(&[])).await.unwrap();
        losses(&mut session, 2, 0..3).await;
        assert!(got.recv().unwrap() == expected && session.is_saving());
        losses(&mut session, 2, 3..4).await;
        let next = session.export().await.unwrap();
        let (second, _, _) = gate();
        let waited = polled_once(session.save_in_background(second, notes(&[]))).await;
        assert!(waited.is_none(), "it waits for the first");
        goes_on.send(Ok(())).unwrap();
        session.finish_save().await.unwrap();
        let (second, got_next, second_goes_on) = gate();
        session.save_in_background(second, notes(&[])).await.unwrap();
        second_goes_on.send(Ok(())).unwrap();
        losses(&mut session, 2, 4..5).await;
        assert!(got_next.recv().unwrap() == next);
        session.close().await.unwrap();
    });
}
