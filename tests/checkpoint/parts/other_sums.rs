//! Sums of gradients in another order than in the run that was saved: an import says so, and only then.

use warpweft_format::Format;
use warpweft_plan::model::{Levels, TensorParallel};
use warpweft_session::checkpoint::PartFiles;
use warpweft_session::config::{Config, OptimizerShard, WeightRule};
use warpweft_session::session::block_on;
use warpweft_testing::heard::warnings;

use super::config;
use super::cuts::{Drawn, start_with};
use super::states::freezing;

/// As many ranks, in these replicas and levels.
fn summing(replicas: u32, levels: Option<&[u32]>) -> Config {
    let mut config = config();
    config.mesh.dp_replicate = Some(replicas);
    config.mesh.levels = levels.map(|blocks| Levels::new(blocks).unwrap());
    config
}

/// Four replicas, divided into optimizer instances.
fn in_instances(instances: u32) -> Config {
    let mut config = summing(4, None);
    config.optimizer.shard = OptimizerShard::Replicas;
    config.mesh.optimizer_instances = instances;
    config
}

/// With tensor parallelism, which computes the same with all weights on all ranks of a group.
fn tensor_parallel(tensor: u32, mut config: Config) -> Config {
    config.mesh.tp = tensor;
    let how = Some(TensorParallel::AlikeTokens);
    let rule = WeightRule { pattern: "*".to_owned(), tensor_parallel: how, ..WeightRule::default() };
    config.weights.push(rule);
    config
}

/// A sharded weight and a replicated one, of which the first is frozen or both train.
const SHARDED: [Drawn; 2] = [(8, 4, Format::F32, true), (8, 4, Format::F32, false)];
const REPLICATED: [Drawn; 1] = [(8, 4, Format::F32, false)];

/// What an import of parts that 4 ranks saved warns of, on as many.
fn warned(weights: &[Drawn], saved: Config, session: Config) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let parts = PartFiles::new(folder.path());
    block_on(start_with(saved, weights, 4).save_parts(&parts, &Default::default())).unwrap();
    let mut session = start_with(session, weights, 4);
    warnings(|| block_on(session.import_parts(&parts)).map(drop).unwrap())
}

#[test]
fn an_import_warns_of_sums_over_other_replicas_or_in_other_levels_than_were_saved() {
    let flat = || summing(1, Some(&[]));
    for (weights, saved, session) in [
        (&SHARDED[..], flat(), summing(1, Some(&[2]))),
        (&SHARDED, summing(1, Some(&[2])), flat()),
        (&SHARDED, flat(), summing(2, None)),
        (&SHARDED, summing(2, None), flat()),
        (&SHARDED, summing(2, None), summing(4, None)),
        (&SHARDED, in_instances(1), in_instances(2)),
        (&SHARDED, in_instances(2), in_instances(1)),
        (&SHARDED, in_instances(2), summing(4, None)),
        (&SHARDED, summing(4, None), in_instances(2)),
        (&REPLICATED, summing(1, Some(&[2])), flat()),
        (&SHARDED, summing(2, None), summing(2, Some(&[2]))),
        (&SHARDED, freezing("w0", flat()), freezing("w0", summing(1, Some(&[2])))),
    ] {
        let warned = warned(weights, saved, session);
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(
            warned[0].contains(
                "set optimizer.shard, mesh.dp_replicate, mesh.optimizer_instances and mesh.levels to those"
            ),
            "{warned:?}"
        );
    }
}

#[test]
fn an_import_warns_of_other_tensor_parallelism_than_was_saved() {
    let parallel = |tensor| tensor_parallel(tensor, summing(1, Some(&[])));
    for (saved, session) in [(1, 2), (2, 4), (4, 1)] {
        let warned = warned(&SHARDED, parallel(saved), parallel(session));
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(warned[0].contains("set mesh.tp, mesh.dp_replicate and mesh.levels to those"), "{warned:?}");
    }
    assert_eq!(warned(&SHARDED, parallel(2), parallel(2)), [""; 0]);
}

#[test]
fn an_import_warns_of_other_scale_groups_than_were_saved_and_of_no_others() {
    const NVFP4: Drawn = (32, 32, Format::NVFP4_2D, true);
    let grouped = |groups: [&str; 3]| {
        let mut config = config();
        let rules = groups.into_iter().enumerate().filter(|(_, group)| !group.is_empty());
        config.weights = rules
            .map(|(number, group)| WeightRule {
                pattern: format!("w{number}"),
                scale_group: Some(group.to_owned()),
                ..WeightRule::default()
            })
            .collect();
        config
    };
    let weights = [NVFP4; 3];
    for (saved, session, first) in [
        (["a", "a", ""], ["", "", ""], "`w1`"),
        (["", "", ""], ["", "a", "a"], "`w2`"),
        (["a", "a", ""], ["a", "", "a"], "`w1`"),
    ] {
        let warned = warned(&weights, grouped(saved), grouped(session));
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(
            warned[0].starts_with(first) && warned[0].contains("set scale_group to what was"),
            "{warned:?}"
        );
    }
    // Another name, and a group of one weight, are no other scale.
    for (saved, session) in [(["a", "a", ""], ["b", "b", "a"]), (["", "", ""], ["a", "", ""])] {
        assert_eq!(warned(&weights, grouped(saved), grouped(session)), [""; 0]);
    }
    let bf16 = [(32, 32, Format::Bf16, true); 3];
    assert_eq!(warned(&bf16, grouped(["a", "a", ""]), grouped([""; 3])), [""; 0]);
}

#[test]
fn an_import_warns_of_nothing_where_sums_have_the_same_order() {
    let frozen = |config| freezing("w0", config);
    for (weights, saved, session) in [
        (&SHARDED[..], summing(1, None), summing(1, Some(&[]))),
        (&SHARDED, summing(1, Some(&[2])), summing(1, Some(&[2]))),
        (&SHARDED, in_instances(1), summing(4, None)),
        (&SHARDED, in_instances(2), in_instances(2)),
        (&SHARDED, freezing("w1", summing(2, None)), freezing("w1", summing(2, Some(&[2])))),
        (&REPLICATED, summing(1, None), summing(2, None)),
        (&SHARDED, frozen(summing(1, None)), frozen(summing(2, None))),
    ] {
        assert_eq!(warned(weights, saved, session), [""; 0]);
    }
}
