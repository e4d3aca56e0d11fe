//! Saves that fail: every rank says so, the session goes on, and what was there stays.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::task::{Context, Poll};

use warpweft::format::Format;
use warpweft::id::RankId;
use warpweft::session::{PartFiles, SessionError};

use crate::trainer::{Trainer, feed, losses, within_a_minute};
use crate::{config, files, notes};

fn contents(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
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
        assert!(matches!(error, SessionError::Parts { .. }), "{said}");
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
            let SessionError::Parts { rank, reason } = &error else { panic!("{error}") };
            assert!(*rank == RankId::new(0) && reason.contains(words), "{error}");
        }
        let taken = folder.path().join("taken");
        std::fs::create_dir_all(taken.join("checkpoint.json")).unwrap();
        let said = session.save_parts(&PartFiles::new(&taken), &notes(&[])).await.unwrap_err().to_string();
        assert!(said.contains("checkpoint.json is there"), "{said}");
        assert_eq!(std::fs::read(&file).unwrap(), b"notes");
        assert_eq!(files(&taken).len(), 1);
        losses(&mut session, 2, 0..1).await;
    });
}

/// A disk that takes no file, as a folder is for whoever may not write in it.
#[test]
fn ranks_that_cannot_write_are_named_the_others_withdraw_and_the_session_goes_on() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let locked = folder.path().join("locked");
        std::fs::create_dir(&locked).unwrap();
        std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o500)).unwrap();
        // Root may write anywhere but below what only says that it is a file system.
        let refuses = if std::fs::write(locked.join("probe"), "").is_err() { locked } else { "/proc".into() };
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut session = trainer.start(config(), 3).await.unwrap();
        let mut found = losses(&mut session, 3, 0..1).await;
        let error = session.save_parts(&PartFiles::new(&refuses), &notes(&[])).await.unwrap_err();
        let SessionError::Parts { rank, reason } = &error else { panic!("{error}") };
        assert!(*rank == RankId::new(0) && reason.contains("rank-00000-of-00003-"), "{error}");
        found.extend(losses(&mut session, 3, 1..3).await);
        let mut undisturbed = trainer.start(config(), 3).await.unwrap();
        assert_eq!(found, losses(&mut undisturbed, 3, 0..3).await);
    });
}

/// A future that is dropped takes nothing back, and a failure is heard by whoever asks next.
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
    matches!(&error, SessionError::Parts { reason, .. } if reason.contains("the session is closed"))
}

/// What a future has after its first poll, and then it is dropped.
async fn polled_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let poll = |context: &mut Context<'_>| match future.as_mut().poll(context) {
        Poll::Ready(told) => Poll::Ready(Some(told)),
        Poll::Pending => Poll::Ready(None),
    };
    std::future::poll_fn(poll).await
}
