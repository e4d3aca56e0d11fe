//! Saves in the background by several processes, each of which writes the parts of its ranks.

use warpweft_format::Format;
use warpweft_session::checkpoint::PartFiles;
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::split::{config, in_processes, in_processes_with, train};
use warpweft_testing::trainer::{Mischief, Trainer, losses, within_a_minute};

use super::super::parts::notes;

fn trainer() -> Trainer {
    Trainer::new(2, Format::NVFP4_2D)
}

fn alone(ranks: u32, steps: u32) -> Vec<u32> {
    within_a_minute(async move {
        let mut session = trainer().start(config(), ranks).await.unwrap();
        losses(&mut session, ranks, 0..steps).await
    })
}

/// CK-2, CK-6, EX-2. Processes that have written go on with steps until all have; none waits for a disk.
#[test]
fn parts_that_processes_write_beside_their_steps_become_the_checkpoint_of_a_stopped_save() {
    let expected = alone(4, 3);
    for ranks in [&[1, 3][..], &[2, 2], &[1, 1, 2]] {
        let folder = tempfile::tempdir().unwrap();
        let parts = |name: &str| PartFiles::new(folder.path().join(name));
        let (stopped, beside, last) = (parts("stopped"), parts("beside"), parts("last"));
        let given = (stopped.clone(), beside.clone(), last.clone());
        let work = move |_, mut session: Session| {
            let (stopped, beside, last) = given.clone();
            async move {
                let found = train(&mut session, 0..3).await;
                let some = notes(&[("step", "3")]);
                session.save_parts(&stopped, &some).await.unwrap();
                session.save_parts_in_background(&beside, &some).await.unwrap();
                // No call but steps: they complete it, on all processes after the same one.
                let mut step = 3;
                while session.is_saving() {
                    train(&mut session, step..step + 1).await;
                    step += 1;
                }
                assert!(beside.is_taken());
                // This one is completed by the end of the session.
                session.save_parts_in_background(&last, &some).await.unwrap();
                session.close().await.unwrap();
                (found, step)
            }
        };
        let ends = in_processes(&trainer(), ranks, &Mischief::default(), work);
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{ranks:?}: after the same step");
        assert_eq!(ends[0].0, expected);
        assert!(beside.load().unwrap() == stopped.load().unwrap(), "{ranks:?}");
        assert_eq!(last.load().unwrap().optimizer_step, ends[0].1);
    }
}

/// CK-2. The folder of one process goes after the save has begun.
#[test]
fn a_process_that_cannot_write_fails_the_save_of_all_and_training_goes_on() {
    let expected = alone(2, 6);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let work = move |process, mut session: Session| {
        let files = PartFiles::new(root.join("lost"));
        async move {
            let mut found = train(&mut session, 0..2).await;
            session.save_parts_in_background(&files, &notes(&[])).await.unwrap();
            // Rank 0 begins the index in it; both have by now.
            if process == 1 {
                std::fs::remove_dir_all(files.folder()).unwrap();
            }
            session.compare_replicas().await.unwrap();
            found.extend(train(&mut session, 2..4).await);
            let error = session.finish_save().await.unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, SessionError::BackgroundSave { .. }), "{said}");
            assert!(said.contains("lost") && said.contains("(by rank 0)"), "{said}");
            assert!(!files.folder().exists());
            found.extend(train(&mut session, 4..6).await);
            found
        }
    };
    for losses in in_processes(&trainer(), &[1, 1], &Mischief::default(), work) {
        assert_eq!(losses, expected);
    }
}

/// A process whose limit is another one stops where the others do not: all are told.
#[test]
fn processes_that_save_in_two_ways_are_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let files = PartFiles::new(folder.path().join("step-0"));
    let work = move |process, mut session: Session| {
        let files = files.clone();
        async move {
            let saved = match process {
                0 => session.save_parts(&files, &notes(&[])).await,
                _ => session.save_parts_in_background(&files, &notes(&[])).await,
            };
            let said = saved.unwrap_err().to_string();
            assert!(said.contains("saves in the background") && said.contains("in every process"), "{said}");
            train(&mut session, 0..1).await;
        }
    };
    in_processes_with(&config(), &trainer(), &[1, 1], &Mischief::default(), work);
}
