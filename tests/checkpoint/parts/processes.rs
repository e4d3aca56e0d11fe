//! Sharded checkpoints that several processes write and read, each for its own ranks.

use warpweft_format::Format;
use warpweft_session::checkpoint::{CheckpointError, PartFiles};
use warpweft_session::session::{Session, SessionError};
use warpweft_testing::split::{config, in_processes, in_processes_with, train};
use warpweft_testing::trainer::{Mischief, Trainer, losses, within_a_minute};

use super::{files, notes, part, without_planes};

fn trainer() -> Trainer {
    Trainer::new(2, Format::NVFP4_2D)
}

/// The losses of one process.
fn alone(replicas: u32, ranks: u32, steps: u32) -> Vec<u32> {
    within_a_minute(async move {
        let mut config = config();
        config.mesh.dp_replicate = Some(replicas);
        let mut session = trainer().start(config, ranks).await.unwrap();
        losses(&mut session, ranks, 0..steps).await
    })
}

/// EX-2, CK-2. The notes are those of the process of rank 0.
#[test]
fn parts_that_processes_wrote_are_read_by_other_processes_and_training_goes_on_bit_for_bit() {
    let expected = alone(1, 4, 6);
    let folder = tempfile::tempdir().unwrap();
    let parts = PartFiles::new(folder.path().join("step-3"));
    let given = parts.clone();
    let found =
        in_processes(&trainer(), &[1, 3], &Mischief::default(), move |process, mut session: Session| {
            let parts = given.clone();
            async move {
                let found = train(&mut session, 0..3).await;
                session.save_parts(&parts, &notes(&[("process", &process.to_string())])).await.unwrap();
                assert_eq!(
                    parts.saved().unwrap().notes["process"],
                    "0",
                    "it is whole for every process that returns"
                );
                session.export_to_first().await.unwrap().into_iter().for_each(|exported| {
                    let loaded = warpweft_session::checkpoint::Checkpoint {
                        notes: Default::default(),
                        ..parts.load().unwrap()
                    };
                    assert!(without_planes(exported) == loaded);
                });
                found
            }
        });
    assert!(found.iter().all(|losses| *losses == expected[..3]));
    assert_eq!(files(parts.folder()).len(), 5);
    for ranks in [&[2, 2][..], &[1, 1, 1, 1], &[4]] {
        let given = parts.clone();
        let work = move |_, mut session: Session| {
            let parts = given.clone();
            async move {
                train(&mut session, 7..8).await;
                let saved = session.import_parts(&parts).await.unwrap();
                assert_eq!((saved.optimizer_step, saved.ranks), (3, 4));
                train(&mut session, 3..6).await
            }
        };
        for losses in in_processes(&trainer(), ranks, &Mischief::default(), work) {
            assert_eq!(losses, expected[3..], "{ranks:?}");
        }
    }
}

/// Replicas that lie across processes, written by one mesh and read by another.
#[test]
fn replicas_of_several_processes_read_what_one_replica_saved_and_the_other_way_round() {
    let mut replicated = config();
    replicated.mesh.dp_replicate = Some(2);
    for (writes, reads) in [(&replicated, &config()), (&config(), &replicated)] {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let given = parts.clone();
        let work = move |_, mut session: Session| {
            let parts = given.clone();
            async move {
                train(&mut session, 0..2).await;
                session.save_parts(&parts, &notes(&[])).await.unwrap();
            }
        };
        in_processes_with(writes, &trainer(), &[1, 3], &Mischief::default(), work);
        let expected = without_planes(parts.load().unwrap());
        let given = parts.clone();
        let work = move |_, mut session: Session| {
            let parts = given.clone();
            async move {
                session.import_parts(&parts).await.unwrap();
                session.export_to_first().await.unwrap()
            }
        };
        let found = in_processes_with(reads, &trainer(), &[3, 1], &Mischief::default(), work);
        assert!(without_planes(found.into_iter().flatten().next().unwrap()) == expected);
    }
}

/// CK-2. A process that refuses reaches the others, and so is a folder that not all hosts share.
#[test]
fn a_process_that_cannot_save_or_import_is_named_in_all_and_training_goes_on() {
    let expected = alone(1, 2, 4);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let found =
        in_processes(&trainer(), &[1, 1], &Mischief::default(), move |process, mut session: Session| {
            let root = root.clone();
            async move {
                let mut found = train(&mut session, 0..2).await;
                let mine = root.join(format!("host-{process}"));
                let error = session.save_parts(&PartFiles::new(&mine), &notes(&[])).await.unwrap_err();
                let said = error.to_string();
                // The kind does not travel from one process to another.
                let SessionError::Parts { source, .. } = &error else { panic!("{said}") };
                match process {
                    0 => assert!(matches!(source, CheckpointError::NotShared { .. }), "{said}"),
                    _ => assert!(matches!(source, CheckpointError::OtherRank { .. }), "{said}"),
                }
                assert!(
                    said.contains("the part that rank 1 wrote is not where rank 0 looks for it"),
                    "{said}"
                );
                assert!(said.contains("all hosts share"), "{said}");

                let shared = PartFiles::new(root.join("shared"));
                session.save_parts(&shared, &notes(&[])).await.unwrap();
                // One process has a checkpoint where the other has none, or another one.
                let here = if process == 0 { shared.clone() } else { PartFiles::new(&mine) };
                let said = session.import_parts(&here).await.unwrap_err().to_string();
                assert!(said.contains(["rank 1: ", "the folder has no checkpoint.json"][process]), "{said}");
                let again = PartFiles::new(root.join("again"));
                session.save_parts(&again, &notes(&[])).await.unwrap();
                let here = if process == 0 { shared.clone() } else { again };
                let said = session.import_parts(&here).await.unwrap_err().to_string();
                assert!(said.contains("different checkpoints"), "{said}");
                let here = if process == 0 { shared.clone() } else { shared.clone().restart_optimizer() };
                let said = session.import_parts(&here).await.unwrap_err().to_string();
                assert!(said.contains("different checkpoints"), "{said}");
                found.extend(train(&mut session, 2..4).await);
                found
            }
        });
    for found in found {
        assert_eq!(found, expected);
    }
    for host in ["host-0", "host-1"] {
        assert!(files(&folder.path().join(host)).is_empty(), "files of a save that failed are removed");
    }
}

/// A part that only one process needs is judged there, and refused everywhere.
#[test]
fn a_value_that_one_process_reads_is_refused_in_all_by_its_rank() {
    let expected = alone(1, 2, 4);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let found =
        in_processes(&trainer(), &[1, 1], &Mischief::default(), move |process, mut session: Session| {
            let parts = PartFiles::new(&root);
            async move {
                let mut found = train(&mut session, 0..2).await;
                session.save_parts(&parts, &notes(&[])).await.unwrap();
                if process == 1 {
                    std::fs::write(part(parts.folder(), 1), "torn").unwrap();
                }
                let error = session.import_parts(&parts).await.unwrap_err();
                let said = error.to_string();
                let SessionError::Import { source: Some(source), .. } = &error else { panic!("{said}") };
                match process {
                    0 => assert!(matches!(source, CheckpointError::OtherRank { .. }), "{said}"),
                    _ => assert!(matches!(source, CheckpointError::Damaged { .. }), "{said}"),
                }
                assert!(
                    said.contains("rank 1: ") && said.contains("the part of rank 1 is not whole"),
                    "{said}"
                );
                found.extend(train(&mut session, 2..4).await);
                found
            }
        });
    for found in found {
        assert_eq!(found, expected);
    }
}
