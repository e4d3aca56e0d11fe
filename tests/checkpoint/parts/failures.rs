//! Failed saves: every rank reports the failure, the session goes on, and the older checkpoint stays.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use warpweft_base::id::RankId;
use warpweft_format::Format;
use warpweft_session::checkpoint::{CheckpointError, FileTask, PartFiles};
use warpweft_session::session::{SessionError, block_on};
use warpweft_testing::meddler::{Switch, cut, hooked};
use warpweft_testing::polled::polled_once;
use warpweft_testing::trainer::{Mischief, Trainer, feed, losses, within_a_minute};
use warpweft_testing::wrapped::Moment;

use super::{config, files, notes};

fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    files(folder).into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// CK-1.
#[test]
fn a_folder_that_holds_a_checkpoint_is_refused_and_stays_as_it_is() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut session = trainer.start(config(), 3).await.unwrap();
        session.save_parts(&parts, &notes(&[("which", "the first")])).await.unwrap();
        let before = contents(folder.path());
        let found = losses(&mut session, 3, 0..2).await;
        let error = session.save_parts(&parts, &notes(&[("which", "another")])).await.unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, SessionError::Parts { source: CheckpointError::Taken { .. }, .. }), "{said}");
        assert!(said.contains("checkpoint.json is there") && said.contains("name another folder"), "{said}");
        assert!(contents(folder.path()) == before);
        let mut undisturbed = trainer.start(config(), 3).await.unwrap();
        let expected = losses(&mut undisturbed, 3, 0..4).await;
        assert_eq!(found, expected[..2]);
        assert_eq!(losses(&mut session, 3, 2..4).await, expected[2..]);
    });
}

/// CK-1. What an interrupted save left is neither taken for a checkpoint nor in the way of one.
#[test]
fn a_save_into_a_folder_that_an_interrupted_one_left_becomes_a_checkpoint() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let mut session = Trainer::new(2, Format::NVFP4_2D).start(config(), 2).await.unwrap();
        session.save_parts(&parts, &notes(&[])).await.unwrap();
        std::fs::remove_file(folder.path().join("checkpoint.json")).unwrap();
        let left = contents(folder.path());
        assert!(session.import_parts(&parts).await.is_err());
        losses(&mut session, 2, 0..1).await;
        session.save_parts(&parts, &notes(&[])).await.unwrap();
        assert_eq!(parts.load().unwrap().optimizer_step, 1);
        let now = contents(folder.path());
        assert!(now.len() == 5 && left.iter().all(|file| now.contains(file)), "other files are left alone");
    });
}

#[test]
fn a_folder_that_cannot_be_made_or_holds_something_in_the_indexs_place_is_refused_on_every_rank() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let mut session = Trainer::new(1, Format::F32).start(config(), 2).await.unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "notes").unwrap();
        for (name, words) in [("file", "name a folder"), ("file/below", "name a folder")] {
            let parts = PartFiles::new(folder.path().join(name));
            let error = session.save_parts(&parts, &notes(&[])).await.unwrap_err();
            let SessionError::Parts { rank, source, .. } = &error else { panic!("{error}") };
            assert!(*rank == RankId::new(0) && source.to_string().contains(words), "{error}");
            assert!(matches!(source, CheckpointError::File { task: FileTask::MakeFolder, .. }), "{error}");
        }
        let taken = folder.path().join("taken");
        std::fs::create_dir_all(taken.join("checkpoint.json")).unwrap();
        assert!(PartFiles::new(&taken).is_taken() && !PartFiles::new(folder.path()).is_taken());
        let said = session.save_parts(&PartFiles::new(&taken), &notes(&[])).await.unwrap_err().to_string();
        assert!(said.contains("checkpoint.json is there"), "{said}");
        assert_eq!(std::fs::read(&file).unwrap(), b"notes");
        assert_eq!(files(&taken).len(), 1);
        losses(&mut session, 2, 0..1).await;
    });
}

/// Where files have one name only, a process that is killed at the end of its save leaves one.
#[test]
fn an_empty_index_is_in_the_way_of_a_save_until_it_is_removed_as_the_refusal_says() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let index = folder.path().join("checkpoint.json");
        std::fs::write(&index, "").unwrap();
        let mut session = Trainer::new(1, Format::F32).start(config(), 2).await.unwrap();
        let said = session.save_parts(&parts, &notes(&[])).await.unwrap_err().to_string();
        assert!(said.contains("it is empty") && said.contains("remove this file"), "{said}");
        assert!(!said.contains("holds a checkpoint"), "{said}");
        std::fs::remove_file(&index).unwrap();
        session.save_parts(&parts, &notes(&[])).await.unwrap();
        assert!(parts.is_taken());
    });
}

/// A disk that takes no file, as a folder is for a user who may not write in it.
#[cfg(unix)]
#[test]
fn ranks_that_cannot_write_are_named_the_others_withdraw_and_the_session_goes_on() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let locked = folder.path().join("locked");
        std::fs::create_dir(&locked).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o500);
        std::fs::set_permissions(&locked, mode).unwrap();
        // Root may write anywhere but below what only says that it is a file system.
        let refuses = if std::fs::write(locked.join("probe"), "").is_err() { locked } else { "/proc".into() };
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut session = trainer.start(config(), 3).await.unwrap();
        let mut found = losses(&mut session, 3, 0..1).await;
        let error = session.save_parts(&PartFiles::new(&refuses), &notes(&[])).await.unwrap_err();
        let SessionError::Parts { rank, source: CheckpointError::File { path, task, source }, .. } = &error
        else {
            panic!("{error}")
        };
        assert!(*rank == RankId::new(0) && *task == FileTask::Write, "{error}");
        assert!(path.ends_with("checkpoint.json"), "{error}");
        let kinds = [ErrorKind::PermissionDenied, ErrorKind::NotFound, ErrorKind::ReadOnlyFilesystem];
        assert!(kinds.contains(&source.kind()), "{error}");
        found.extend(losses(&mut session, 3, 1..3).await);
        let mut undisturbed = trainer.start(config(), 3).await.unwrap();
        assert_eq!(found, losses(&mut undisturbed, 3, 0..3).await);
    });
}

/// CK-5. A rank that fails otherwise than by its file ends the session, as in an export. The others cannot agree on the
/// end, so their parts stay, with the mark by which the next save removes them.
#[test]
fn a_device_that_fails_in_a_save_is_named_and_leaves_no_checkpoint_and_nothing_after_the_next_save() {
    within_a_minute(async {
        for victim in [0, 2] {
            let folder = tempfile::tempdir().unwrap();
            let switch = Switch::default();
            let wait = (switch.clone(), folder.path().to_owned());
            let ranks = hooked(3, move |rank, moment| match &wait {
                (switch, folder)
                    if rank == RankId::new(victim) && moment == Moment::Download && switch.is_on() =>
                {
                    // The parts of the others are whole.
                    let is_part = |path: &PathBuf| path.extension().is_some_and(|end| end == "safetensors");
                    let begun = Instant::now();
                    while files(folder).iter().filter(|path| is_part(path)).count() < 2
                        && begun.elapsed() < Duration::from_secs(20)
                    {
                        std::thread::yield_now();
                    }
                    cut(rank)
                }
                _ => Ok(()),
            });
            let trainer = Trainer::new(2, Format::NVFP4_2D);
            let mut session = trainer.builder(config(), &Mischief::default()).start(ranks).await.unwrap();
            losses(&mut session, 3, 0..1).await;
            switch.on();
            let parts = PartFiles::new(folder.path());
            let error = session.save_parts(&parts, &notes(&[])).await.unwrap_err();
            assert!(matches!(error, SessionError::Poisoned { .. }), "{error}");
            let said = error.to_string();
            assert!(said.contains(&format!("rank {victim}")) && said.contains("the cable is out"), "{said}");
            let mine = format!("rank-{victim:05}");
            let named = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            let left: Vec<_> = files(folder.path()).iter().map(named).collect();
            assert!(
                !left.iter().any(|name| name == "checkpoint.json" || name.starts_with(&mine)),
                "{left:?}"
            );
            assert!(left.iter().any(|name| name.ends_with(".safetensors")), "{left:?}");
            let marked = |part: &String| left.iter().any(|name| *name != *part && name.starts_with(part));
            assert!(left.iter().all(|name| name.ends_with(".part") || marked(name)), "{left:?}");
            drop(session);
            let mut session = trainer.start(config(), 3).await.unwrap();
            session.save_parts(&parts, &notes(&[])).await.unwrap();
            let now: Vec<_> = files(folder.path()).iter().map(named).collect();
            assert!(now.len() == 4 && !now.iter().any(|name| left.contains(name)), "{left:?}, {now:?}");
        }
    });
}

/// CK-1. A job that was thought dead and the one that was started in its place: the first index is kept, with its
/// own parts, and the other save fails and leaves nothing.
#[test]
fn of_two_jobs_that_save_into_one_folder_at_a_time_one_is_kept_whole() {
    for round in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path().join("new"));
        let together = Barrier::new(2);
        let save = |steps: u32| {
            let mut session = block_on(Trainer::new(1, Format::F32).start(config(), 2)).unwrap();
            block_on(losses(&mut session, 2, 0..steps));
            together.wait();
            let saved = block_on(session.save_parts(&parts, &notes(&[])));
            block_on(losses(&mut session, 2, steps..steps + 1));
            saved.map_err(|error| error.to_string())
        };
        let outcomes = std::thread::scope(|scope| {
            let save = &save;
            [1, 2].map(|steps| scope.spawn(move || save(steps))).map(|thread| thread.join().unwrap())
        });
        let kept = parts.load().unwrap().optimizer_step;
        let failed = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
        let failed = failed.unwrap_or_else(|| panic!("both were kept, in round {round}"));
        assert!(failed.contains("checkpoint.json is there"), "{failed}");
        assert!(outcomes[kept as usize - 1].is_ok(), "{outcomes:?}");
        assert_eq!(files(parts.folder()).len(), 3);
    }
}

/// A future that is dropped takes nothing back, and a failure is reported to the next caller.
#[test]
fn a_save_whose_future_was_dropped_is_whole_or_told_to_whoever_asks_next() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let mut session = Trainer::new(2, Format::NVFP4_2D).start(config(), 2).await.unwrap();
        polled_once(session.save_parts(&parts, &notes(&[]))).await;
        losses(&mut session, 2, 0..1).await;
        assert_eq!(parts.load().unwrap().optimizer_step, 0);
        feed(&mut session, "train", 2, 1);
        let error = match polled_once(session.save_parts(&parts, &notes(&[]))).await {
            // The ranks were quicker.
            Some(told) => told.unwrap_err(),
            None => {
                let error = session.step("train").await.unwrap_err();
                assert!(error.to_string().contains("the save whose future was dropped"), "{error}");
                error
            }
        };
        assert!(matches!(error, SessionError::Parts { .. }), "{error}");
        losses(&mut session, 2, 1..2).await;
        polled_once(session.import_parts(&parts)).await;
        assert_eq!(session.export().await.unwrap().optimizer_step, 0);
        let told = polled_once(session.save_parts(&parts, &notes(&[]))).await;
        let closed = session.close().await;
        assert!(told.is_some_and(|told| told.is_err()) || closed.is_err_and(is_of_a_closed_session));
    });
}

fn is_of_a_closed_session(error: SessionError) -> bool {
    let said = error.to_string();
    matches!(error, SessionError::Parts { .. })
        && said.contains("the session is closed")
        && !said.contains("goes on")
}

/// EX-5: weights from which no training goes on are not saved, and parts bring back good ones.
#[test]
fn a_session_whose_masters_are_not_finite_saves_no_parts_and_goes_on_from_parts() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let (good, bad) =
            (PartFiles::new(folder.path().join("good")), PartFiles::new(folder.path().join("bad")));
        let trainer = Trainer::new(2, Format::Bf16);
        let mut config = config();
        config.optimizer.weight_decay = 100.0;
        let learning_rate = config.optimizer.lr as f32;
        let mut session = trainer.start(config, 3).await.unwrap();
        losses(&mut session, 3, 0..2).await;
        session.save_parts(&good, &notes(&[])).await.unwrap();
        let expected = losses(&mut session, 3, 2..4).await;

        session.set_learning_rate(3e38).unwrap();
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(error, SessionError::Diverged { .. }), "{error}");
        let error = session.save_parts(&bad, &notes(&[])).await.unwrap_err();
        assert!(matches!(error, SessionError::Diverged { .. }), "{error}");
        assert!(!bad.folder().exists());

        session.import_parts(&good).await.unwrap();
        session.set_learning_rate(learning_rate).unwrap();
        assert_eq!(losses(&mut session, 3, 2..4).await, expected);
    });
}
