//! Round trips of sharded checkpoints, on any number of ranks.

use warpweft_format::Format;
use warpweft_session::checkpoint::{CheckpointStore, FileStore, PartFiles};
use warpweft_session::session::block_on;
use warpweft_testing::trainer::{Mischief, Trainer, losses, within_a_minute};

use super::{config, files, notes, replicated, without_planes};

/// CK-2. Masters, moments and step count, and with the planes that follow the losses. One of four ranks has no rows.
#[test]
fn training_goes_on_bit_for_bit_from_parts_in_every_format() {
    within_a_minute(async {
        for format in Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()) {
            let folder = tempfile::tempdir().unwrap();
            let files = PartFiles::new(folder.path().join("runs").join("step-3"));
            let trainer = Trainer::new(2, format);
            let mut first = trainer.start(config(), 4).await.unwrap();
            losses(&mut first, 4, 0..3).await;
            first.save_parts(&files, &notes(&[("step", "3")])).await.unwrap();
            let exported = first.export().await.unwrap();
            let expected = losses(&mut first, 4, 3..6).await;

            let mut second = trainer.start(config(), 4).await.unwrap();
            losses(&mut second, 4, 7..8).await;
            let saved = second.import_parts(&files).await.unwrap();
            assert_eq!((saved.optimizer_step, saved.ranks, saved.notes["step"].as_str()), (3, 4, "3"));
            assert_eq!(files.saved().unwrap(), saved);
            assert!(second.export().await.unwrap() == exported, "{format}");
            assert_eq!(losses(&mut second, 4, 3..6).await, expected, "{format}");
        }
    });
}

#[test]
fn any_number_of_ranks_in_any_replicas_reads_what_any_other_saved() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        for (wrote, replicas) in [(4, 1), (4, 2), (7, 1), (1, 1)] {
            let folder = tempfile::tempdir().unwrap();
            let files = PartFiles::new(folder.path());
            let mut first = trainer.start(replicated(replicas), wrote).await.unwrap();
            losses(&mut first, wrote, 0..2).await;
            first.save_parts(&files, &notes(&[])).await.unwrap();
            let exported = first.export().await.unwrap();
            for (ranks, replicas) in [(3, 1), (1, 1), (7, 1), (4, 2), (6, 3), (4, 4)] {
                let mut second = trainer.start(replicated(replicas), ranks).await.unwrap();
                second.import_parts(&files).await.unwrap();
                let found = second.export().await.unwrap();
                assert!(found.weights == exported.weights, "{wrote} to {ranks} ranks in {replicas} replicas");
                assert_eq!(found.optimizer_step, exported.optimizer_step);
                // Replicas hold the same, or their losses would part.
                let from_parts = losses(&mut second, ranks, 2..4).await;
                second.import(&exported).await.unwrap();
                assert_eq!(losses(&mut second, ranks, 2..4).await, from_parts);
            }
        }
    });
}

/// A rank's rows are in its own part alone: a replica, and a replicated weight, take no room of their own.
#[test]
fn a_folder_has_the_state_once_and_a_file_for_each_rank() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::F32);
        for (ranks, replicas) in [(1, 1), (4, 1), (4, 2), (4, 4)] {
            let folder = tempfile::tempdir().unwrap();
            let mut session = trainer.start(replicated(replicas), ranks).await.unwrap();
            session.save_parts(&PartFiles::new(folder.path()), &notes(&[])).await.unwrap();
            let elements: usize =
                session.export().await.unwrap().weights.iter().map(|weight| weight.master.len()).sum();
            let found = files(folder.path());
            assert_eq!(found.len(), 1 + ranks as usize, "{found:?}");
            assert!(found[0].ends_with("checkpoint.json"), "{found:?}");
            let bytes: u64 = found[1..].iter().map(|path| path.metadata().unwrap().len()).sum();
            let (state, most_header) = (12 * elements as u64, 2000 * u64::from(ranks));
            assert!((state..state + most_header).contains(&bytes), "{bytes} for {state}");
        }
    });
}

#[test]
fn a_whole_checkpoint_of_parts_is_the_export_without_planes_and_serves_as_a_file() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path().join("parts"));
        let trainer = Trainer::new(2, Format::Mxfp8);
        let mut session = trainer.start(config(), 3).await.unwrap();
        losses(&mut session, 3, 0..2).await;
        let notes = notes(&[("data", "shard 3, line \"9\"\n"), ("", "")]);
        session.save_parts(&parts, &notes).await.unwrap();
        let mut exported = without_planes(session.export().await.unwrap());
        exported.notes = notes;
        let loaded = parts.load().unwrap();
        assert_eq!(loaded, exported);
        let store = FileStore::new(folder.path().join("whole.safetensors"));
        store.save(&loaded).await.unwrap();
        assert_eq!(store.load().await.unwrap(), exported);
        session.import(&loaded).await.unwrap();
        let anew = parts.clone().restart_optimizer().carried_zeros();
        let mut expected = exported.restart_optimizer();
        expected.carried = warpweft_session::checkpoint::Carried::Zeros;
        assert_eq!(anew.load().unwrap(), expected);
    });
}

/// As an export does: ranks and weights are as the last good step left them.
#[test]
fn a_session_saves_its_parts_after_a_closure_panicked() {
    let folder = tempfile::tempdir().unwrap();
    let parts = PartFiles::new(folder.path());
    let trainer = Trainer::new(2, Format::NVFP4_2D);
    let mischief = Mischief::default();
    let mut session = block_on(trainer.builder(config(), &mischief).start_cpu(2)).unwrap();
    block_on(losses(&mut session, 2, 0..2));
    mischief.set(2);
    warpweft_testing::trainer::feed(&mut session, "train", 2, 2);
    block_on(session.step("train")).unwrap_err();
    block_on(session.save_parts(&parts, &notes(&[]))).unwrap();
    let exported = block_on(session.export()).unwrap();
    assert_eq!(parts.load().unwrap(), without_planes(exported));
    assert_eq!(parts.saved().unwrap().optimizer_step, 2);
    block_on(session.import_parts(&parts)).unwrap_err();
}
