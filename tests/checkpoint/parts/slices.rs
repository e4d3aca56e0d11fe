//! Sharded checkpoints of ranks that keep slices of state: every rank writes one, and any mesh reads them.

use warpweft_format::Format;
use warpweft_session::checkpoint::PartFiles;
use warpweft_session::config::{Config, OptimizerShard};
use warpweft_testing::trainer::{Trainer, losses, within_a_minute};

use super::{files, notes, replicated, without_planes};

fn in_slices(replicas: u32) -> Config {
    let mut config = replicated(replicas);
    config.optimizer.shard = OptimizerShard::Replicas;
    config
}

fn in_instances(replicas: u32, instances: u32) -> Config {
    let mut config = in_slices(replicas);
    config.mesh.optimizer_instances = instances;
    config
}

/// CK-2, CK-4. The same bytes of masters and moments, however both sessions keep them.
#[test]
fn slices_of_replicas_are_read_on_any_mesh_and_written_from_any() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let meshes = [
            (in_slices(2), 4),
            (in_slices(3), 6),
            (in_instances(4, 2), 8),
            (replicated(2), 4),
            (replicated(1), 3),
        ];
        for (wrote, ranks) in &meshes {
            let folder = tempfile::tempdir().unwrap();
            let parts = PartFiles::new(folder.path());
            let mut first = trainer.start(wrote.clone(), *ranks).await.unwrap();
            losses(&mut first, *ranks, 0..2).await;
            first.save_parts(&parts, &notes(&[])).await.unwrap();
            assert_eq!(files(folder.path()).len(), 1 + *ranks as usize);
            let exported = first.export().await.unwrap();
            assert_eq!(parts.load().unwrap().weights, without_planes(exported.clone()).weights);
            for (reads, ranks) in &meshes {
                let mut second = trainer.start(reads.clone(), *ranks).await.unwrap();
                second.import_parts(&parts).await.unwrap();
                assert!(second.export().await.unwrap().weights == exported.weights, "{ranks} ranks");
                let from_parts = losses(&mut second, *ranks, 2..4).await;
                second.import(&exported).await.unwrap();
                assert_eq!(losses(&mut second, *ranks, 2..4).await, from_parts);
            }
        }
    });
}

/// CK-4. A build of before would take the first replica's slices for all rows.
#[test]
fn an_index_says_that_replicas_had_slices_by_its_version() {
    within_a_minute(async {
        let trainer = Trainer::new(1, Format::Bf16);
        for (config, version) in [(in_slices(2), 6), (in_slices(1), 3), (replicated(2), 3)] {
            let folder = tempfile::tempdir().unwrap();
            let mut session = trainer.start(config, 4).await.unwrap();
            session.save_parts(&PartFiles::new(folder.path()), &notes(&[])).await.unwrap();
            let index = std::fs::read_to_string(folder.path().join("checkpoint.json")).unwrap();
            assert!(index.contains(&format!("\"warpweft_parts\": {version},")), "{index}");
        }
    });
}
