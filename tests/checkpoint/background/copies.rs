//! A second copy of a checkpoint, in another folder.

use std::path::Path;

use warpweft_format::Format;
use warpweft_session::checkpoint::PartFiles;
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::split::{in_processes, train};
use warpweft_testing::trainer::{Mischief, Trainer, losses, within_a_minute};

use super::super::parts::notes;
use super::config;

/// Names and bytes of all files.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = folder
        .read_dir()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// CK-1, CK-6. Of saves for which training waits, and of others.
#[test]
fn a_second_copy_has_the_bytes_of_the_first_and_of_a_run_the_last_are_kept_in_both() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let at = |place: &str, step: u32| folder.path().join(place).join(format!("step-{step}"));
        let mut session = Trainer::new(1, Format::NVFP4_2D).start(config(), 2).await.unwrap();
        for step in 0..4 {
            let files = PartFiles::new(at("near", step)).copied_into(at("far", step)).keep_last(1);
            match step % 2 {
                0 => session.save_parts(&files, &notes(&[])).await.unwrap(),
                _ => session.save_parts_in_background(&files, &notes(&[])).await.unwrap(),
            }
            losses(&mut session, 2, step..step + 1).await;
        }
        session.close().await.unwrap();
        assert_eq!(files(&at("far", 3)), files(&at("near", 3)));
        PartFiles::new(at("far", 3)).load().unwrap();
        let names = |place: &str| folder.path().join(place).read_dir().unwrap().count();
        assert_eq!((names("near"), names("far")), (1, 1));
    });
}

/// CK-1.
#[test]
fn a_copy_that_fails_leaves_the_checkpoint_and_training_and_is_said_at_the_end() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut session = Trainer::new(1, Format::F32).start(config(), 2).await.unwrap();
        for (near, far) in [("step-1", "far-1"), ("step-2", "far-2")] {
            let files = PartFiles::new(at(near)).copied_into(at(far));
            session.save_parts_in_background(&files, &notes(&[])).await.unwrap();
            if far == "far-1" {
                // It is there, because the save has begun, and goes.
                std::fs::remove_dir(at(far)).unwrap();
                std::fs::write(at(far), "a file").unwrap();
            }
            losses(&mut session, 2, 0..2).await;
            session.finish_save().await.unwrap();
        }
        for (far, complaint) in [("step-1", "step-1"), ("step-3", "name another one for the copy")] {
            let files = PartFiles::new(at("step-3")).copied_into(at("step-2").join("..").join(far));
            let error = session.save_parts_in_background(&files, &notes(&[])).await.unwrap_err();
            assert!(matches!(error, SessionError::Parts { .. }), "{error}");
            assert!(error.to_string().contains(complaint) && !files.is_taken(), "{error}");
        }
        let error = session.close().await.unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, SessionError::BackgroundSave { .. }), "{said}");
        assert!(said.contains("far-1, a copy of ") && said.contains("step-1"), "{said}");
        assert!(std::fs::read(at("far-1")).unwrap() == b"a file");
        for whole in ["step-1", "step-2", "far-2"] {
            PartFiles::new(at(whole)).load().unwrap();
        }
    });
}

/// CK-2. Rank 0's process makes it, and no other waits.
#[test]
fn a_second_copy_of_several_processes_has_the_parts_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let work = move |_, mut session: Session| {
        let at = |place: &str| root.join(place).join("step-1");
        let files = PartFiles::new(at("near")).copied_into(at("far"));
        async move {
            session.save_parts_in_background(&files, &notes(&[])).await.unwrap();
            train(&mut session, 0..3).await;
            session.finish_save().await.unwrap();
            session.close().await.unwrap();
        }
    };
    in_processes(&Trainer::new(1, Format::F32), &[1, 2], &Mischief::default(), work);
    let [near, far] = ["near", "far"].map(|place| folder.path().join(place).join("step-1"));
    assert_eq!(files(&far), files(&near));
    assert_eq!(files(&near).len(), 4);
}
