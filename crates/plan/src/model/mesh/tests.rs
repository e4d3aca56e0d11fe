//! Meshes: their groups, levels, and how they are written.

use super::*;

#[test]
fn a_mesh_without_ranks_is_refused() {
    assert_eq!(Mesh::new(0), Err(DeclareError::NoRanks));
    assert_eq!(Mesh::hybrid(0, 2), Err(DeclareError::NoRanks));
}

#[test]
fn a_mesh_of_absurdly_many_ranks_is_refused() {
    let most = Mesh::MAX_RANKS;
    assert_eq!(Mesh::new(most).unwrap().ranks(), most);
    for ranks in [most + 1, 4_000_000_000, u32::MAX] {
        assert_eq!(Mesh::new(ranks), Err(DeclareError::TooManyRanks { ranks, most }));
        assert_eq!(Mesh::hybrid(ranks, 2), Err(DeclareError::TooManyRanks { ranks, most }));
    }
}

#[test]
fn replicas_that_do_not_divide_the_ranks_are_refused_with_both_numbers() {
    for (ranks, replicas) in [(4, 3), (4, 0), (2, 4), (7, u32::MAX)] {
        let error = Mesh::hybrid(ranks, replicas).unwrap_err();
        assert_eq!(error, DeclareError::Replicas { ranks, replicas });
        let message = error.to_string();
        assert!(message.contains(&ranks.to_string()) && message.contains(&replicas.to_string()), "{message}");
    }
}

#[test]
fn every_group_parts_the_ranks_and_keeps_their_order() {
    for (ranks, replicas, context, tensor) in [
        (1, 1, 1, 1),
        (4, 1, 1, 1),
        (4, 2, 1, 1),
        (6, 3, 1, 1),
        (3, 3, 1, 1),
        (12, 2, 3, 1),
        (12, 2, 1, 3),
        (8, 1, 2, 4),
        (48, 2, 2, 3),
        (64, 2, 2, 4),
        (64, 1, 1, 16),
    ] {
        let mesh = Mesh::of(ranks, replicas, tensor, None).unwrap().with_context(context).unwrap();
        let mesh = mesh.with_instances(replicas).unwrap();
        for group in mesh.groups() {
            for rank in mesh.iter() {
                let members: Vec<RankId> = mesh.members(rank, group).collect();
                assert!(members.is_sorted() && members.len() == mesh.size(group) as usize);
                assert_eq!(members[mesh.position(rank, group) as usize], rank);
                for member in &members {
                    assert!(mesh.members(*member, group).eq(members.iter().copied()), "{group} of {rank}");
                }
            }
        }
    }
}

#[test]
fn tensor_parallel_groups_part_the_ranks_of_a_replica_among_shards() {
    let mesh = Mesh::hybrid(16, 2).unwrap().with_tensor(2).unwrap().with_context(2).unwrap();
    assert_eq!((mesh.ranks(), mesh.shards(), mesh.tensor(), mesh.replicas()), (16, 4, 2, 2));
    assert_eq!(mesh.context(), 2);
    let of = |group| mesh.members(RankId::new(11), group).map(RankId::number).collect::<Vec<_>>();
    assert_eq!(of(Group::Tensor), [10, 11]);
    assert_eq!(of(Group::Shard), [9, 11, 13, 15]);
    assert_eq!(of(Group::Context), [9, 11]);
    assert_eq!(of(Group::Replica), [8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(of(Group::Replicate), [3, 11]);
    assert_eq!((mesh.replica_of(RankId::new(11)), mesh.replica_group()), (1, Group::Replica));
    assert_eq!(mesh.to_string(), "16 ranks (2 shards × cp 2 × tp 2 × 2 replicas)");
    assert_eq!(
        serde_json::to_string(&mesh).unwrap(),
        r#"{"ranks":16,"replicas":2,"context":2,"tensor":2,"levels":[8]}"#
    );
}

#[test]
fn tensor_parallel_groups_that_do_not_divide_a_replica_are_refused() {
    let mesh = Mesh::hybrid(12, 2).unwrap();
    for tensor in [0, 4, 5, 12] {
        assert_eq!(mesh.with_tensor(tensor), Err(DeclareError::Tensor { tensor, of_replica: 6 }));
    }
    assert_eq!(mesh.with_tensor(3).unwrap().with_tensor(1), Ok(mesh));
    let leveled = Mesh::new(16).unwrap();
    assert_eq!(leveled.with_tensor(2).unwrap().with_tensor(1), Ok(leveled));
}

#[test]
fn texts_are_shared_by_a_divisor_of_the_shards() {
    let mesh = Mesh::hybrid(24, 2).unwrap().with_tensor(2).unwrap();
    for context in [0, 4, 5, 12] {
        assert_eq!(mesh.with_context(context), Err(DeclareError::Context { context, shards: 6 }));
    }
    assert_eq!(mesh.with_context(3).unwrap().with_context(1), Ok(mesh));
}

#[test]
fn with_tensor_parallelism_a_level_adds_the_ranks_of_its_block_that_have_the_same_part() {
    let tree = |mesh: Mesh, over| mesh.tree(over).map(|group| mesh.strides(group)).collect::<Vec<_>>();
    let of = |stride, count| Strides::new(stride, count);
    let with = |tensor, levels: &[u32]| {
        let mesh = Mesh::hybrid(64, 2).unwrap().with_tensor(tensor).unwrap();
        mesh.with_levels(Levels::new(levels).unwrap()).unwrap()
    };
    let trees = |tensor, levels: &[u32]| {
        (tree(with(tensor, levels), Group::Shard), tree(with(tensor, levels), Group::Replica))
    };
    assert_eq!(trees(2, &[8]), (vec![of(2, 4), of(8, 4)], vec![of(1, 8), of(8, 4)]));
    // A block in which no rank meets another that has the same part adds nothing.
    assert_eq!(trees(8, &[8]), (vec![of(8, 4)], vec![of(1, 8), of(8, 4)]));
    assert_eq!(trees(8, &[4]), (vec![of(8, 4)], vec![of(1, 4), of(4, 8)]));
    assert_eq!(
        trees(8, &[2, 8, 16]),
        (vec![of(8, 2), of(16, 2)], vec![of(1, 2), of(2, 4), of(8, 2), of(16, 2)])
    );
    assert_eq!(trees(2, &[]), (vec![of(2, 16)], vec![of(1, 32)]));
    assert_eq!(with(2, &[8]).levels(), Mesh::of(64, 2, 2, None).unwrap().levels());
}

#[test]
fn groups_are_alike_exactly_where_they_have_the_same_members() {
    for (ranks, replicas) in [(1, 1), (4, 1), (4, 2), (4, 4), (6, 3)] {
        let mesh = Mesh::hybrid(ranks, replicas).and_then(|mesh| mesh.with_instances(replicas)).unwrap();
        for (one, other) in mesh.groups().flat_map(|one| mesh.groups().map(move |other| (one, other))) {
            let same = mesh.iter().all(|rank| mesh.members(rank, one).eq(mesh.members(rank, other)));
            assert_eq!(mesh.alike(one, other), same, "{mesh}: {one} and {other}");
        }
    }
}

#[test]
fn ranks_are_summed_in_blocks_of_eight_where_these_cut_a_replica_evenly() {
    let tree = |ranks, replicas| {
        let mesh = Mesh::hybrid(ranks, replicas).unwrap();
        mesh.tree(Group::Shard).map(|group| mesh.strides(group)).collect::<Vec<_>>()
    };
    let of = |stride, count| Strides::new(stride, count);
    for (ranks, replicas) in [(1, 1), (8, 1), (8, 4), (16, 2), (64, 8), (12, 1), (36, 2)] {
        assert_eq!(tree(ranks, replicas), [of(1, ranks / replicas)], "{ranks}, {replicas}");
    }
    assert_eq!(tree(16, 1), [of(1, 8), of(8, 2)]);
    assert_eq!(tree(128, 2), [of(1, 8), of(8, 8)]);
}

/// What a rank keeps at a level, it gives parts of at the next, until its own rows are left.
#[test]
fn each_level_leaves_as_many_slices_as_the_next_gives_and_the_last_leaves_one() {
    let meshes = [
        (16, 1, 1, &[8][..]),
        (16, 1, 1, &[2, 4, 8]),
        (24, 2, 1, &[4]),
        (512, 1, 1, &[8, 128]),
        (8, 1, 1, &[]),
        (64, 2, 2, &[8]),
        (64, 1, 8, &[2, 4, 16]),
        (24, 2, 3, &[6]),
    ];
    for (ranks, replicas, tensor, levels) in meshes {
        let mesh = Mesh::of(ranks, replicas, tensor, Some(Levels::new(levels).unwrap())).unwrap();
        for over in [Group::Shard, Group::Replica] {
            let left = mesh.tree(over).fold(mesh.size(over), |slices, group| {
                assert_eq!(slices, mesh.slices(group) * mesh.size(group), "{mesh}, {group}");
                mesh.slices(group)
            });
            assert_eq!((left, mesh.tree(over).len()), (1, mesh.depth(over)));
        }
        assert_eq!(mesh.depth(Group::Replica), levels.len() + 1);
    }
}

#[test]
fn blocks_that_cut_ranks_unevenly_are_refused_with_the_next_that_do_not() {
    let with = |ranks, replicas, block| {
        let mesh = Mesh::hybrid(ranks, replicas).unwrap();
        mesh.with_levels(Levels::new(&[block]).unwrap())
    };
    for (ranks, replicas, block, next) in [(12, 1, 8, 12), (24, 1, 5, 6), (24, 4, 7, 12), (24, 4, 4, 6)] {
        assert_eq!(
            with(ranks, replicas, block),
            Err(DeclareError::Level {
                level: block,
                ranks,
                replicas,
                tensor: 1,
                experts: (1, ranks / replicas),
                next
            })
        );
        assert!(with(ranks, replicas, next).is_ok());
    }
    let cut = Mesh::of(48, 2, 4, Some(Levels::new(&[6]).unwrap()));
    assert_eq!(
        cut,
        Err(DeclareError::Level { level: 6, ranks: 48, replicas: 2, tensor: 4, experts: (1, 24), next: 8 })
    );
    for (ranks, replicas, block) in [(24, 4, 6), (24, 4, 12), (24, 4, 100), (24, 4, 3)] {
        let levels = with(ranks, replicas, block).unwrap().levels();
        assert_eq!(levels.blocks().len(), usize::from(block < ranks));
    }
}

/// PL-1. With one replica, what is written is the same as before there were replicas.
#[test]
fn a_mesh_of_one_replica_is_written_as_its_ranks() {
    let text = |mesh: Mesh| serde_json::to_string(&mesh).unwrap();
    assert_eq!(text(Mesh::new(4).unwrap()), r#"{"ranks":4}"#);
    assert_eq!(text(Mesh::hybrid(4, 2).unwrap()), r#"{"ranks":4,"replicas":2}"#);
    assert_eq!(text(Mesh::hybrid(32, 2).unwrap()), r#"{"ranks":32,"replicas":2,"levels":[8]}"#);
    assert_eq!(text(Mesh::new(16).unwrap().with_levels(Levels::FLAT).unwrap()), r#"{"ranks":16}"#);
    assert_eq!(Mesh::new(1).unwrap().to_string(), "1 rank");
    assert_eq!(Mesh::new(4).unwrap().to_string(), "4 ranks");
    assert_eq!(Mesh::hybrid(4, 2).unwrap().to_string(), "4 ranks (2 shards × 2 replicas)");
}

/// The second factoring of the same rank numbers.
#[test]
fn groups_of_experts_part_the_ranks_whatever_the_replicas() {
    let mesh = Mesh::hybrid(16, 2).unwrap().with_experts(4, Some(2)).unwrap();
    assert_eq!((mesh.expert(), mesh.expert_shards(), mesh.has_experts()), (4, 2, true));
    let of = |group| mesh.members(RankId::new(11), group).map(RankId::number).collect::<Vec<_>>();
    assert_eq!(of(Group::Expert), [8, 9, 10, 11]);
    assert_eq!(of(Group::ExpertShard), [11, 15]);
    assert_eq!(of(Group::ExpertReplica), [3, 11]);
    assert_eq!(of(Group::ExpertRows), [3, 7, 11, 15]);
    assert_eq!(mesh.to_string(), "16 ranks (8 shards × 2 replicas; ep 4 × ep_shard 2 × ep_replicate 2)");
    let written = r#"{"ranks":16,"replicas":2,"expert":4,"expert_shards":2,"levels":[8]}"#;
    assert_eq!(serde_json::to_string(&mesh).unwrap(), written);
    for (ranks, replicas, tensor, ep, shards) in [
        (16, 2, 1, 8, None),
        (16, 4, 1, 8, Some(2)),
        (24, 2, 2, 3, Some(4)),
        (3072, 48, 1, 64, Some(2)),
        (64, 1, 4, 2, None),
    ] {
        let mesh = Mesh::of(ranks, replicas, tensor, None).unwrap().with_experts(ep, shards);
        let Ok(mesh) = mesh else { panic!("{mesh:?}") };
        let mesh = mesh.with_instances(if replicas % 2 == 0 { 2 } else { 1 }).unwrap_or(mesh);
        for group in mesh.groups() {
            let mut met = vec![0; ranks as usize];
            for rank in mesh.iter().filter(|rank| mesh.position(*rank, group) == 0) {
                mesh.members(rank, group).for_each(|member| met[member.index()] += 1);
            }
            assert!(met.iter().all(|times| *times == 1), "{mesh}: {group}");
        }
        let (shards, copies) = (mesh.size(Group::ExpertShard), mesh.size(Group::ExpertReplica));
        assert_eq!(mesh.size(Group::Expert) * shards * copies, ranks);
    }
    assert_eq!(mesh.with_experts(1, None), Ok(Mesh::hybrid(16, 2).unwrap()));
}

/// Rank 11 is in the second of four replicas, and in the first instance of two replicas each.
#[test]
fn optimizer_instances_are_blocks_of_replicas_and_of_copies_of_experts() {
    let mesh = Mesh::hybrid(32, 4).and_then(|mesh| mesh.with_experts(4, Some(1))).unwrap();
    let one = mesh;
    let mesh = mesh.with_instances(2).unwrap();
    let of = |mesh: Mesh, group| mesh.members(RankId::new(11), group).map(RankId::number).collect::<Vec<_>>();
    assert_eq!(of(mesh, Group::Replicate), [3, 11, 19, 27]);
    assert_eq!(of(mesh, Group::ReplicateInInstance), [3, 11]);
    assert_eq!(of(mesh, Group::Instances), [11, 27]);
    assert_eq!(of(mesh, Group::ExpertReplica), [3, 7, 11, 15, 19, 23, 27, 31]);
    assert_eq!(of(mesh, Group::ExpertReplicaInInstance), [3, 7, 11, 15]);
    assert_eq!(of(one, Group::ReplicateInInstance), of(one, Group::Replicate));
    assert_eq!(of(one, Group::Instances), [11]);
    assert_eq!(
        mesh.to_string(),
        "32 ranks (8 shards × 4 replicas in 2 optimizer instances; ep 4 × ep_shard 1 × ep_replicate 8)"
    );
    let mesh = Mesh::hybrid(32, 4).unwrap();
    assert_eq!(mesh.with_instances(1), Ok(mesh), "byte for byte the mesh that says nothing of them");
    let written = r#"{"ranks":32,"replicas":4,"instances":2,"levels":[8]}"#;
    assert_eq!(serde_json::to_string(&mesh.with_instances(2).unwrap()).unwrap(), written);
    let reset = mesh.with_instances(2).and_then(|mesh| mesh.with_tensor(2)).unwrap();
    assert_eq!(reset.instances(), 1, "other axes are chosen first");
}

#[test]
fn optimizer_instances_that_do_not_divide_replicas_and_copies_are_refused_with_the_number_that_would_do() {
    let refused = |mesh: Mesh, instances| match mesh.with_instances(instances) {
        Err(DeclareError::Instances { fewer, .. }) => fewer,
        other => panic!("{other:?}"),
    };
    let mesh = Mesh::hybrid(24, 12).unwrap();
    assert_eq!([0, 5, 8, 24, u32::MAX].map(|instances| refused(mesh, instances)), [1, 4, 6, 12, 12]);
    let words = mesh.with_instances(5).unwrap_err().to_string();
    assert!(words.contains("12 replicas cannot be divided into 5 optimizer instances; set"), "{words}");
    let experts = mesh.with_experts(2, Some(2)).unwrap();
    assert_eq!(refused(experts, 12), 6, "there are six copies of experts");
    let words = experts.with_instances(4).unwrap_err().to_string();
    assert!(words.contains("set mesh.optimizer_instances to 3"), "{words}");
    assert!(words.contains("12 replicas and 6 copies of experts"), "{words}");
}

#[test]
fn experts_that_do_not_divide_the_ranks_are_refused_with_the_number_that_would_do() {
    let refused = |mesh: Mesh, ep, shards| match mesh.with_experts(ep, shards) {
        Err(DeclareError::Experts { key, number, .. }) => (key, number),
        other => panic!("{other:?}"),
    };
    let mesh = Mesh::hybrid(24, 2).unwrap();
    assert_eq!(refused(mesh, 5, None), ("ep", 4));
    assert_eq!(refused(mesh, 0, None), ("ep", 1));
    assert_eq!(refused(mesh, 48, Some(1)), ("ep", 24));
    assert_eq!(refused(mesh, 8, None), ("ep_shard", 1));
    assert_eq!(refused(mesh, 4, Some(5)), ("ep_shard", 3));
    assert_eq!(refused(mesh, 4, Some(0)), ("ep_shard", 1));
}

/// Gradients of experts have a tree of their own, over ranks that are `ep` apart and go beyond a replica.
#[test]
fn levels_cut_experts_by_the_blocks_that_cut_the_world() {
    let mesh = |ep, shards, levels: &[u32]| {
        let mesh = Mesh::hybrid(64, 4).unwrap().with_experts(ep, Some(shards)).unwrap();
        mesh.with_levels(Levels::new(levels).unwrap())
    };
    let tree = |mesh: Mesh, over| mesh.tree(over).map(|group| mesh.strides(group)).collect::<Vec<_>>();
    let of = |stride, count| Strides::new(stride, count);
    let wide = mesh(2, 32, &[8, 32]).unwrap();
    assert_eq!(tree(wide, Group::Shard), [of(1, 8), of(8, 2)]);
    assert_eq!(tree(wide, Group::ExpertShard), [of(2, 4), of(8, 4), of(32, 2)]);
    let few = mesh(8, 2, &[8]).unwrap();
    assert_eq!(tree(few, Group::ExpertShard), [of(8, 2)]);
    for mesh in [wide, few] {
        for over in [Group::Shard, Group::Replica, Group::ExpertShard] {
            let left = mesh.tree(over).fold(mesh.size(over), |slices, group| {
                assert_eq!(slices, mesh.slices(group) * mesh.size(group), "{mesh}, {group}");
                mesh.slices(group)
            });
            assert_eq!(left, 1);
        }
    }
    let odd = Mesh::hybrid(48, 1).unwrap().with_experts(3, None).unwrap();
    let error = odd.with_levels(Levels::new(&[8]).unwrap()).unwrap_err();
    let DeclareError::Level { level: 8, experts: (3, 16), next: 12, .. } = error else { panic!("{error}") };
}

/// Whatever replicas, tensor-parallel groups and experts there are, the world has all blocks that the mesh keeps, and
/// these divide it: what all ranks have is summed over each of them once.
#[test]
fn the_tree_over_the_world_has_every_block_of_the_mesh_and_these_divide_it() {
    let tree = |mesh: Mesh| mesh.tree(Group::World).map(|group| mesh.strides(group)).collect::<Vec<_>>();
    let of = |stride, count| Strides::new(stride, count);
    for (ranks, replicas) in [(1, 1), (8, 1), (8, 4), (12, 1), (36, 2)] {
        assert_eq!(tree(Mesh::hybrid(ranks, replicas).unwrap()), [of(1, ranks)], "{ranks}, {replicas}");
    }
    assert_eq!(tree(Mesh::new(4096).unwrap()), [of(1, 8), of(8, 512)]);
    for replicas in [2, 8, 16, 64] {
        assert_eq!(tree(Mesh::hybrid(64, replicas).unwrap()), [of(1, 8), of(8, 8)], "{replicas}");
    }
    assert_eq!(tree(Mesh::of(64, 2, 16, None).unwrap()), [of(1, 8), of(8, 8)]);
    let levels = Levels::new(&[4, 32]).unwrap();
    assert_eq!(tree(Mesh::of(64, 1, 1, Some(levels)).unwrap()), [of(1, 4), of(4, 8), of(32, 2)]);
    for ranks in 1..=96 {
        let of_ranks = |most| (1..=most).filter(move |number| ranks % number == 0);
        for (replicas, tensor) in of_ranks(ranks).flat_map(|one| of_ranks(8).map(move |two| (one, two))) {
            let Ok(mesh) = Mesh::of(ranks, replicas, tensor, None) else { continue };
            let meshes = of_ranks(8).filter_map(|ep| mesh.with_experts(ep, None).ok()).chain([mesh]);
            for (mesh, block) in meshes.flat_map(|mesh| (2..=ranks).map(move |block| (mesh, block))) {
                let Ok(mesh) = mesh.with_levels(Levels::new(&[block]).unwrap()) else { continue };
                let blocks = mesh.levels();
                assert!(blocks.blocks().iter().all(|block| ranks.is_multiple_of(*block)), "{mesh}: {block}");
                let (groups, depth) = (mesh.tree(Group::World), mesh.depth(Group::World));
                assert_eq!(depth, blocks.blocks().len() + 1);
                let all = groups.map(|group| mesh.size(group)).product::<u32>();
                assert_eq!(all, ranks, "{mesh}, {block}");
            }
        }
    }
}
