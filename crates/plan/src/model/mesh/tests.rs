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
    for (ranks, replicas, tensor) in
        [(1, 1, 1), (4, 1, 1), (4, 2, 1), (6, 3, 1), (3, 3, 1), (12, 2, 1), (12, 2, 3), (8, 1, 4)]
    {
        let mesh = Mesh::of(ranks, replicas, tensor, None).unwrap();
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
    let mesh = Mesh::hybrid(16, 2).unwrap().with_tensor(2).unwrap();
    assert_eq!((mesh.ranks(), mesh.shards(), mesh.tensor(), mesh.replicas()), (16, 4, 2, 2));
    let of = |group| mesh.members(RankId::new(11), group).map(RankId::number).collect::<Vec<_>>();
    assert_eq!(of(Group::Tensor), [10, 11]);
    assert_eq!(of(Group::Shard), [9, 11, 13, 15]);
    assert_eq!(of(Group::Replica), [8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!(of(Group::Replicate), [3, 11]);
    assert_eq!((mesh.replica_of(RankId::new(11)), mesh.replica_group()), (1, Group::Replica));
    assert_eq!(mesh.to_string(), "16 ranks (4 shards × tp 2 × 2 replicas)");
    assert_eq!(serde_json::to_string(&mesh).unwrap(), r#"{"ranks":16,"replicas":2,"tensor":2}"#);
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
fn a_level_that_cuts_a_replica_with_tensor_parallelism_is_refused() {
    let mesh = Mesh::hybrid(32, 2).unwrap().with_tensor(4).unwrap();
    let refused = mesh.with_levels(Levels::new(&[8]).unwrap()).unwrap_err();
    assert_eq!(refused, DeclareError::TensorLevels { given: vec![8], tensor: 4 });
    for levels in [&[][..], &[16]] {
        assert_eq!(mesh.with_levels(Levels::new(levels).unwrap()).unwrap().depth(), 1);
    }
}

#[test]
fn groups_are_alike_exactly_where_they_have_the_same_members() {
    for (ranks, replicas) in [(1, 1), (4, 1), (4, 2), (4, 4), (6, 3)] {
        let mesh = Mesh::hybrid(ranks, replicas).unwrap();
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
    for (ranks, replicas, levels) in
        [(16, 1, &[8][..]), (16, 1, &[2, 4, 8]), (24, 2, &[4]), (512, 1, &[8, 128]), (8, 1, &[])]
    {
        let mesh = Mesh::hybrid(ranks, replicas).unwrap();
        let mesh = mesh.with_levels(Levels::new(levels).unwrap()).unwrap();
        let left = mesh.tree(Group::Shard).fold(mesh.shards(), |slices, group| {
            assert_eq!(slices, mesh.slices(group) * mesh.size(group), "{mesh}, {group}");
            mesh.slices(group)
        });
        assert_eq!((left, mesh.depth()), (1, levels.len() + 1));
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
            Err(DeclareError::Level { level: block, ranks, replicas, next })
        );
        assert!(with(ranks, replicas, next).is_ok());
    }
    for (ranks, replicas, block) in [(24, 4, 6), (24, 4, 12), (24, 4, 100), (24, 4, 3)] {
        let levels = with(ranks, replicas, block).unwrap().levels();
        assert_eq!(levels.blocks().len(), usize::from(block < ranks / replicas));
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
