//! A save in the background that fails is reported once, costs no training, and leaves nothing.

use std::path::Path;

use warpweft_format::Format;
use warpweft_session::checkpoint::{CheckpointError, PartFiles};
use warpweft_session::session::{SessionError, block_on};
use warpweft_testing::polled::polled_once;
use warpweft_testing::trainer::{Mischief, Trainer, feed, losses, within_a_minute};

use super::super::parts::{notes, without_planes};
use super::{config, full, gate};

fn is_empty(folder: &Path) -> bool {
    folder.read_dir().unwrap().next().is_none()
}

/// A full disk, as a store says it: the next call does not do what it was asked, and the one after does.
#[test]
fn a_store_that_fails_is_reported_by_the_next_step_which_is_asked_again() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut undisturbed = trainer.start(config(), 2).await.unwrap();
        let expected = losses(&mut undisturbed, 2, 0..4).await;
        let mut session = trainer.start(config(), 2).await.unwrap();
        let (store, got, goes_on) = gate();
        session.save_in_background(store, notes(&[])).await.unwrap();
        let mut found = losses(&mut session, 2, 0..2).await;
        drop(got.recv().unwrap());
        goes_on.send(Err(full())).unwrap();
        while session.is_saving() {
            std::thread::yield_now();
        }
        feed(&mut session, "train", 2, 2);
        let error = session.step("train").await.unwrap_err();
        let said = error.to_string();
        let SessionError::BackgroundSave { source, .. } = error else { panic!("{said}") };
        assert!(matches!(*source, CheckpointError::Other { .. }), "{said}");
        assert!(said.contains("the disk is full") && said.contains("was not done, ask again"), "{said}");
        found.extend(losses(&mut session, 2, 2..4).await);
        assert_eq!(found, expected);
        session.finish_save().await.unwrap();
    });
}

/// A store that panics is one that fails.
#[test]
fn a_failure_is_reported_by_finish_by_the_next_save_and_by_close_and_a_panic_is_one() {
    within_a_minute(async {
        let trainer = Trainer::new(1, Format::F32);
        for which in 0..3 {
            let mut session = trainer.start(config(), 2).await.unwrap();
            let (store, got, goes_on) = gate();
            session.save_in_background(store, notes(&[])).await.unwrap();
            losses(&mut session, 2, 0..1).await;
            // Nobody lets it go on: its receiver panics.
            drop((got.recv().unwrap(), goes_on));
            let folder = tempfile::tempdir().unwrap();
            let parts = PartFiles::new(folder.path());
            let error = match which {
                0 => session.finish_save().await,
                1 => session.save_parts_in_background(&parts, &notes(&[])).await,
                _ => session.close().await,
            };
            let said = error.unwrap_err().to_string();
            assert!(said.contains("the save in the background into a store failed"), "{said}");
            assert!(said.contains("what saves it panicked"), "{said}");
            assert!(!parts.is_taken());
        }
    });
}

/// The folder goes after the save has begun, as a disk may.
#[test]
fn parts_that_cannot_be_written_are_reported_and_leave_nothing() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut session = trainer.start(config(), 3).await.unwrap();
        let lost = folder.path().join("lost");
        session.save_parts_in_background(&PartFiles::new(&lost), &notes(&[])).await.unwrap();
        std::fs::remove_dir_all(&lost).unwrap();
        feed(&mut session, "train", 3, 0);
        session.step("train").await.unwrap();
        let said = session.finish_save().await.unwrap_err().to_string();
        assert!(said.contains("the save in the background into") && said.contains("lost"), "{said}");
        assert!(!lost.exists());
        // Another save does not mind.
        let parts = PartFiles::new(folder.path().join("kept"));
        session.save_parts_in_background(&parts, &notes(&[])).await.unwrap();
        losses(&mut session, 3, 1..2).await;
        session.finish_save().await.unwrap();
        assert_eq!(parts.load().unwrap().optimizer_step, 1);
    });
}

/// CK-1.
#[test]
fn a_folder_that_is_taken_is_refused_when_the_save_begins() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let mut session = Trainer::new(1, Format::F32).start(config(), 2).await.unwrap();
        session.save_parts(&parts, &notes(&[])).await.unwrap();
        let before = parts.load().unwrap();
        losses(&mut session, 2, 0..1).await;
        let error = session.save_parts_in_background(&parts, &notes(&[])).await.unwrap_err();
        assert!(
            matches!(error, SessionError::Parts { source: CheckpointError::Taken { .. }, .. }),
            "{error}"
        );
        assert!(!session.is_saving());
        losses(&mut session, 2, 1..2).await;
        assert!(parts.load().unwrap() == before);
    });
}

/// A call whose future is dropped takes nothing back: the save begins, or is copied, all the same.
#[test]
fn a_save_whose_futures_are_dropped_is_saved_all_the_same() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut session = trainer.start(config(), 2).await.unwrap();
        let first = session.export().await.unwrap();
        for round in 0..6 {
            let parts = PartFiles::new(folder.path().join(round.to_string()));
            losses(&mut session, 2, round..round + 1).await;
            let expected = without_planes(session.export().await.unwrap());
            polled_once(session.save_parts_in_background(&parts, &notes(&[]))).await;
            match round % 3 {
                0 => drop(polled_once(session.finish_save()).await),
                1 => drop(polled_once(session.import(&first)).await),
                _ => {
                    feed(&mut session, "train", 2, round);
                    drop(polled_once(session.step("train")).await);
                }
            }
            losses(&mut session, 2, round..round + 1).await;
            session.finish_save().await.unwrap();
            assert!(parts.load().unwrap() == expected, "{round}");
        }
        // What it was refused for is said by the next call.
        let taken = PartFiles::new(folder.path().join("0"));
        match polled_once(session.save_parts_in_background(&taken, &notes(&[]))).await {
            // It was quicker.
            Some(told) => assert!(told.is_err()),
            None => {
                let said = session.finish_save().await.unwrap_err().to_string();
                let says = ["checkpoint.json is there", "was not done, ask again"];
                assert!(says.iter().all(|word| said.contains(word)), "{said}");
            }
        }
        losses(&mut session, 2, 0..1).await;
    });
}

/// CK-1. Two sessions save into one folder: one of them makes a checkpoint, and nothing of it is lost.
#[test]
fn of_two_sessions_that_save_into_one_folder_one_makes_a_whole_checkpoint() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut sessions = Vec::new();
        for steps in 0..3 {
            let mut session = trainer.start(config(), 2).await.unwrap();
            losses(&mut session, 2, 0..steps).await;
            session.save_parts_in_background(&parts, &notes(&[])).await.unwrap();
            sessions.push(session);
        }
        for session in &mut sessions {
            losses(session, 2, 7..8).await;
        }
        let mut saved = 0;
        for (steps, mut session) in sessions.into_iter().enumerate() {
            match session.finish_save().await {
                Ok(()) => {
                    saved += 1;
                    assert_eq!(parts.load().unwrap().optimizer_step as usize, steps);
                }
                Err(error) => assert!(error.to_string().contains("its folder holds a checkpoint"), "{error}"),
            }
        }
        assert_eq!(saved, 1);
        parts.load().unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), 3, "an index and two parts");
    });
}

/// CK-1, CK-6. A session that goes with a save under way leaves a whole checkpoint, or nothing of one that no step
/// copied.
#[test]
fn a_session_that_is_dropped_leaves_a_whole_checkpoint_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = Trainer::new(2, Format::NVFP4_2D);
    for copied in [true, false] {
        let into = folder.path().join(copied.to_string());
        let parts = PartFiles::new(&into);
        let mut session = block_on(trainer.start(config(), 2)).unwrap();
        let expected = without_planes(block_on(session.export()).unwrap());
        block_on(session.save_parts_in_background(&parts, &notes(&[]))).unwrap();
        if copied {
            block_on(losses(&mut session, 2, 0..1));
        }
        drop(session);
        match copied {
            true => assert!(parts.load().unwrap() == expected),
            false => assert!(is_empty(&into)),
        }
    }
}

/// A closure that fails or panics does so in the step that copies: what it found is the state of the step before.
#[test]
fn a_step_that_fails_copies_all_the_same() {
    for kind in [1, 2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let mischief = Mischief::default();
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut session = block_on(trainer.builder(config(), &mischief).start_cpu(2)).unwrap();
        block_on(losses(&mut session, 2, 0..2));
        let expected = without_planes(block_on(session.export()).unwrap());
        block_on(session.save_parts_in_background(&parts, &notes(&[]))).unwrap();
        mischief.set(kind);
        feed(&mut session, "train", 2, 2);
        assert_eq!(block_on(session.step("train")).is_ok(), kind == 3);
        block_on(session.finish_save()).unwrap();
        assert!(parts.load().unwrap() == expected, "{kind}");
    }
}

/// CK-6. A step whose future was dropped and that failed is told by `close`, which finishes the save all the same.
#[test]
fn a_dropped_step_that_fails_before_a_session_is_closed_loses_no_save() {
    let folder = tempfile::tempdir().unwrap();
    let parts = PartFiles::new(folder.path());
    let mischief = Mischief::default();
    let trainer = Trainer::new(2, Format::NVFP4_2D);
    let mut session = block_on(trainer.builder(config(), &mischief).start_cpu(2)).unwrap();
    block_on(losses(&mut session, 2, 0..2));
    let expected = without_planes(block_on(session.export()).unwrap());
    block_on(session.save_parts_in_background(&parts, &notes(&[]))).unwrap();
    mischief.set(1);
    feed(&mut session, "train", 2, 2);
    // The ranks may be quicker than the one look at it.
    let told = block_on(polled_once(session.step("train"))).is_some();
    assert!(block_on(session.close()).is_err() || told);
    assert!(parts.load().unwrap() == expected);
}
