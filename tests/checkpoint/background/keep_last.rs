//! Of a run the last few checkpoints are kept, and what is not the run's stays.

use std::path::{Path, PathBuf};

use warpweft_format::Format;
use warpweft_session::checkpoint::PartFiles;
use warpweft_session::session::SessionError;
use warpweft_testing::trainer::{Trainer, losses, within_a_minute};

use super::super::parts::notes;
use super::config;

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// CK-1, CK-6.
#[test]
fn the_last_checkpoints_of_a_run_are_kept_and_nothing_of_others_is_removed() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut session = Trainer::new(1, Format::F32).start(config(), 2).await.unwrap();
        // A later one, another run's, no checkpoint, and one that somebody put something into.
        for name in ["step-90", "other-1", "step-3"] {
            session.save_parts(&PartFiles::new(at(name)), &notes(&[])).await.unwrap();
        }
        std::fs::create_dir(at("step-1")).unwrap();
        std::fs::write(at("step-1").join("notes"), "mine").unwrap();
        std::fs::write(at("step-2"), "a file").unwrap();
        std::fs::write(at("step-3").join("notes"), "mine").unwrap();
        for step in [10, 20, 30, 40] {
            let files = PartFiles::new(at(&format!("step-{step}"))).keep_last(2);
            match step {
                30 => session.save_parts(&files, &notes(&[])).await.unwrap(),
                _ => session.save_parts_in_background(&files, &notes(&[])).await.unwrap(),
            }
            losses(&mut session, 2, step..step + 1).await;
            session.finish_save().await.unwrap();
        }
        let others = ["other-1", "step-1", "step-2", "step-3", "step-90"].map(str::to_owned);
        let mut expected = [&others[..], &["step-30".to_owned(), "step-40".to_owned()]].concat();
        expected.sort();
        assert_eq!(entries(folder.path()), expected);
        assert_eq!(entries(&at("step-3")).len(), 4);
        for kept in ["step-30", "step-40", "step-90", "other-1"] {
            PartFiles::new(at(kept)).load().unwrap();
        }
        let unnumbered = PartFiles::new(at("latest")).keep_last(2);
        let error = session.save_parts_in_background(&unnumbered, &notes(&[])).await.unwrap_err();
        assert!(matches!(error, SessionError::Parts { .. }), "{error}");
        assert!(error.to_string().contains("latest does not end in a number"), "{error}");
    });
}

/// What a process left that was killed while it removed a checkpoint: its folder under its other name, with less and
/// less in it.
#[test]
fn a_removal_that_was_killed_is_finished_by_the_next_save() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut session = Trainer::new(1, Format::F32).start(config(), 2).await.unwrap();
        let leaving: Vec<PathBuf> = (0..5).map(|left| at(&format!(".step-{left}.removed"))).collect();
        for (left, path) in leaving.iter().enumerate() {
            session.save_parts(&PartFiles::new(path), &notes(&[])).await.unwrap();
            let mut files: Vec<PathBuf> =
                path.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
            files.sort_by_key(|file| file.ends_with("checkpoint.json"));
            files.iter().take(left).for_each(|file| std::fs::remove_file(file).unwrap());
        }
        // Somebody else's.
        std::fs::write(leaving[4].join("notes"), "mine").unwrap();
        let files = PartFiles::new(at("step-9")).keep_last(1);
        session.save_parts_in_background(&files, &notes(&[])).await.unwrap();
        session.close().await.unwrap();
        assert_eq!(entries(folder.path()), [".step-4.removed", "step-9"]);
    });
}
