//! Row shards: which rows of a weight belong to which rank.
//!
//! Law: every rank's shard has the same *stored* rows, a multiple of the format's row tile, so collectives
//! move equal parts; the *real* rows of the last ranks may be fewer, or none. Stored rows beyond the real
//! ones are zero. Every replica of a mesh holds all rows, cut alike. This is the only place where a rank
//! number turns into an offset: plans carry none.
//!
//! Sizes saturate where padding and ranks take them beyond what can be addressed; planning refuses every
//! saturated size.

use serde::Serialize;

use super::{Mesh, Placement, WeightSpec};
use warpweft_base::id::RankId;
use warpweft_format::Shape;

/// Rows of one shard within the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRows {
    /// First row of the weight that the shard holds.
    pub begin: usize,
    /// Real rows; zero for a rank beyond the end of the weight.
    pub rows: usize,
}

/// How one weight is cut over a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ShardLayout {
    /// Logical shape of the whole weight.
    pub shape: Shape,
    /// Rows stored by every rank, padding included.
    pub rows_per_rank: usize,
    /// Number of ranks of a replica that hold a shard; 1 for a replicated weight.
    pub ranks: u32,
}

impl ShardLayout {
    /// The cut of `weight` over `mesh`: the smallest equal parts that are whole row tiles.
    #[must_use]
    pub fn new(weight: &WeightSpec, mesh: Mesh) -> Self {
        let (ranks, tile) = match weight.placement {
            Placement::Sharded => (mesh.shards(), weight.format.row_tile()),
            Placement::Replicated => (1, 1),
        };
        let rows = weight.shape.rows.div_ceil(ranks as usize);
        let rows_per_rank = rows.checked_next_multiple_of(tile).unwrap_or(usize::MAX);
        Self { shape: weight.shape, rows_per_rank, ranks }
    }

    /// The rows `rank` owns, as do the ranks at its place in other replicas. Every rank of a replicated
    /// weight owns all of them.
    #[must_use]
    pub fn rows_of(&self, rank: RankId) -> ShardRows {
        let position = rank.index().checked_rem(self.ranks as usize).unwrap_or(0);
        let begin = position.saturating_mul(self.rows_per_rank).min(self.shape.rows);
        let end = begin.saturating_add(self.rows_per_rank).min(self.shape.rows);
        ShardRows { begin, rows: end - begin }
    }

    /// Shape of what each rank stores, padding included.
    #[must_use]
    pub fn stored(&self) -> Shape {
        Shape { rows: self.rows_per_rank, cols: self.shape.cols }
    }

    /// Rows of all shards one after the other; at least the rows of the weight.
    #[must_use]
    pub fn padded_rows(&self) -> usize {
        self.rows_per_rank.saturating_mul(self.ranks as usize)
    }

    /// Shape of all shards one after the other.
    #[must_use]
    pub fn padded(&self) -> Shape {
        Shape { rows: self.padded_rows(), cols: self.shape.cols }
    }
}

#[cfg(test)]
mod tests {
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
            let first = RankId::new(mesh.shard_of(rank));
            assert_eq!(layout.rows_of(rank), layout.rows_of(first), "{rank}");
        }
        let alone = ShardLayout::new(&weight(19, Format::F32), Mesh::hybrid(3, 3).unwrap());
        assert!((0..3).all(|rank| alone.rows_of(RankId::new(rank)).rows == 19));
    }
}
