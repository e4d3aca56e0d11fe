//! Shards: that they cover a weight, and which ranks have the same rows.

use super::*;
use warpweft_format::Format;

fn weight(rows: usize, format: Format) -> WeightSpec {
    WeightSpec::sharded("w", rows, 16, format)
}

#[test]
fn shards_are_disjoint_and_cover_the_weight_for_any_number_of_ranks() {
    for ranks in 1..9 {
        for rows in 1..70 {
            let layout = ShardLayout::new(&weight(rows, Format::F32), Mesh::new(ranks).unwrap());
            let mut next = 0;
            for rank in 0..ranks {
                let shard = layout.rows_of(RankId::new(rank));
                assert_eq!(shard.begin, next);
                assert!(shard.rows <= layout.rows_per_rank);
                next = shard.begin + shard.rows;
            }
            assert_eq!(next, rows);
            assert!(layout.padded_rows() >= rows);
        }
    }
}

#[test]
fn every_replica_holds_the_same_cut_of_a_weight() {
    let mesh = Mesh::hybrid(12, 3).unwrap();
    let layout = ShardLayout::new(&weight(19, Format::F32), mesh);
    assert_eq!(layout.ranks, 4);
    for rank in mesh.iter() {
        let first = RankId::new(rank.number() % mesh.shards());
        assert_eq!(layout.rows_of(rank), layout.rows_of(first), "{rank}");
    }
    let alone = ShardLayout::new(&weight(19, Format::F32), Mesh::hybrid(3, 3).unwrap());
    assert!((0..3).all(|rank| alone.rows_of(RankId::new(rank)).rows == 19));
}

/// Slices lie with the replicas of an instance; the other instances have the same ones.
#[test]
fn every_optimizer_instance_has_all_slices_of_a_shard() {
    let mesh = Mesh::hybrid(12, 6).and_then(|mesh| mesh.with_instances(2)).unwrap();
    let layout = ShardLayout::new(&weight(24, Format::F32), mesh);
    let layout = layout.over_replicas(mesh.size(layout.slicers(mesh)), 1);
    assert_eq!((layout.slices, layout.stored().rows, layout.owners()), (3, 4, 6));
    let rows = |rank| layout.rows_of(RankId::new(rank)).begin;
    assert_eq!([0, 1, 2, 3, 4, 5].map(rows), [0, 12, 4, 16, 8, 20]);
    for rank in 0..6 {
        assert_eq!(rows(rank), rows(rank + 6));
        let copies: Vec<RankId> = mesh.members(RankId::new(rank), layout.copies()).collect();
        assert_eq!(copies, [RankId::new(rank), RankId::new(rank + 6)]);
    }
    let groups: Vec<Group> = layout.tree(mesh).collect();
    assert_eq!(groups, [Group::Shard, Group::ReplicateInInstance]);
}

/// Of every replica, whatever the tensor parallelism.
#[test]
fn the_blocks_of_a_replica_are_disjoint_and_cover_the_weight() {
    let fused = Segments::new(&[8, 4, 8]).unwrap();
    let hows = [
        (TensorParallel::ColumnParallel, Segments::NONE),
        (TensorParallel::ColumnParallel, fused),
        (TensorParallel::RowParallel, Segments::NONE),
        (TensorParallel::SplitTokens, Segments::NONE),
        (TensorParallel::AlikeTokens, Segments::NONE),
    ];
    for ((ranks, replicas, tensor), (how, segments)) in
        [(4, 1, 2), (8, 2, 2), (8, 1, 4), (4, 1, 4), (2, 1, 1)]
            .into_iter()
            .flat_map(|mesh| hows.map(|how| (mesh, how)))
    {
        let mesh = Mesh::of(ranks, replicas, tensor, None).unwrap();
        let spec = WeightSpec { tensor: Some(how), segments, ..weight(20, Format::F32) };
        let layout = ShardLayout::new(&spec, mesh);
        assert_eq!(layout.whole(), spec.shape);
        assert_eq!(layout.owners(), ranks / replicas);
        for replica in 0..replicas {
            let mut owners = vec![0; spec.shape.elements()];
            for rank in mesh.iter().filter(|rank| mesh.replica_of(*rank) == replica) {
                let mut rows = 0;
                for Block { first, shape } in layout.blocks_of(rank) {
                    assert_eq!(first.cols..first.cols + shape.cols, layout.columns_of(rank));
                    for row in first.rows..first.rows + shape.rows {
                        layout.columns_of(rank).for_each(|col| owners[row * spec.shape.cols + col] += 1);
                        assert_eq!(layout.row_of(rank, rows + row - first.rows), row);
                    }
                    rows += shape.rows;
                }
                assert_eq!(rows, layout.rows_of(rank).rows);
            }
            assert!(owners.iter().all(|owners| *owners == 1), "{mesh}, {how:?}");
        }
    }
}

/// Of query, key and value each rank has some rows, in their order.
#[test]
fn a_part_of_a_fused_weight_has_its_rows_of_every_segment() {
    let segments = Segments::new(&[8, 4, 4]).unwrap();
    let tensor = Some(TensorParallel::ColumnParallel);
    let spec = WeightSpec { tensor, segments, ..weight(16, Format::F32) };
    // The first row of each block, and the row after it.
    let blocks = |mesh: Mesh, rank| -> Vec<(usize, usize)> {
        let blocks = ShardLayout::new(&spec, mesh).blocks_of(RankId::new(rank));
        blocks.map(|Block { first, shape }| (first.rows, first.rows + shape.rows)).collect()
    };
    let two = Mesh::of(2, 1, 2, None).unwrap();
    assert_eq!(blocks(two, 0), [(0, 4), (8, 10), (12, 14)]);
    assert_eq!(blocks(two, 1), [(4, 8), (10, 12), (14, 16)]);
    let shards = Mesh::of(4, 1, 2, None).unwrap();
    assert_eq!((blocks(shards, 1), blocks(shards, 3)), (vec![(4, 8)], vec![(10, 12), (14, 16)]));
    let whole = blocks(Mesh::new(2).unwrap(), 1);
    assert_eq!(whole, [(8, 16)], "without tensor parallelism it is a weight as any");
}
