//! Row shards: which rows of a weight belong to which rank.
//!
//! Law: with tensor parallelism a weight is first cut into parts ([`TensorCut`]), and what is said of a weight here
//! holds of the rank's part. Every rank's shard has the same *stored* rows, a multiple of the format's row tile, so
//! collectives move equal parts; the *real* rows of the last ranks may be fewer, or none. Stored rows beyond the real
//! ones are zero. Every replica of a mesh holds all rows, cut alike. This is the only place where a rank number turns
//! into an offset: plans carry none.
//!
//! Sizes saturate where padding and ranks take them beyond what can be addressed; planning refuses every
//! saturated size.

use serde::Serialize;

use super::{Group, Mesh, Placement, Strides, TensorCut, TensorParallel, WeightSpec};
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

/// A block of a weight, in the weight's own rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its first row and its first column.
    pub first: Shape,
    /// How many rows and columns it has; no rows for a rank beyond the end of the weight.
    pub shape: Shape,
}

/// How one weight is cut over a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ShardLayout {
    /// Logical shape of the weight that a rank computes with: all of it, or with tensor parallelism its part.
    pub shape: Shape,
    /// Rows stored by every rank, padding included.
    pub rows_per_rank: usize,
    /// Number of ranks of a replica that hold a shard; 1 for a replicated weight.
    pub ranks: u32,
    /// How it is cut by tensor parallelism, where the mesh has that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<TensorCut>,
}

impl ShardLayout {
    /// The cut of `weight` over `mesh`: the smallest equal parts that are whole row tiles.
    #[must_use]
    pub fn new(weight: &WeightSpec, mesh: Mesh) -> Self {
        let tensor = (mesh.tensor() > 1).then_some(TensorCut {
            how: weight.tensor,
            ranks: mesh.tensor(),
            whole: weight.shape,
        });
        let over = tensor.map_or(Group::Shard, |cut| cut.group());
        let (ranks, tile) = match weight.placement {
            Placement::Sharded => (mesh.size(over), weight.format.row_tile()),
            Placement::Replicated => (1, 1),
        };
        let how = tensor.and_then(|cut| cut.how);
        let shape = how.map_or(weight.shape, |how| how.part(weight.shape, mesh.tensor()));
        let rows = shape.rows.div_ceil(ranks as usize);
        let rows_per_rank = rows.checked_next_multiple_of(tile).unwrap_or(usize::MAX);
        Self { shape, rows_per_rank, ranks, tensor }
    }

    /// The ranks that the rows are sharded over.
    #[must_use]
    pub fn group(&self) -> Group {
        self.tensor.map_or(Group::Shard, |cut| cut.group())
    }

    /// How often a sum of its gradients over all ranks counts a token.
    #[must_use]
    pub fn counts_tokens(&self) -> u32 {
        self.tensor.map_or(1, |cut| cut.counts_tokens())
    }

    /// The shape of the weight that is declared and in files: of all parts together.
    #[must_use]
    pub fn whole(&self) -> Shape {
        self.tensor.map_or(self.shape, |cut| cut.whole)
    }

    /// How many ranks, the first of a mesh, have all of the weight together: each a block that no other of them has
    /// ([`ShardLayout::block_of`]).
    #[must_use]
    pub fn owners(&self) -> u32 {
        self.ranks.saturating_mul(self.parts())
    }

    /// Into how many parts tensor parallelism cuts it; 1 if it does not.
    fn parts(&self) -> u32 {
        self.tensor.filter(|cut| cut.group() == Group::Shard).map_or(1, |cut| cut.ranks)
    }

    /// Which of the shards `rank` holds; 0 of a replicated weight.
    #[must_use]
    pub fn position(&self, rank: RankId) -> u32 {
        // The ranks of a tensor-parallel group that have parts of their own stand between two shards of one part.
        Strides::new(self.parts(), self.ranks).position(rank)
    }

    /// Where in the weight of the declaration the rows lie that `rank` owns.
    #[must_use]
    pub fn block_of(&self, rank: RankId) -> Block {
        let ShardRows { begin, rows } = self.rows_of(rank);
        let part = |cut: TensorCut| rank.index().checked_rem(cut.ranks as usize).unwrap_or(0);
        let (row, col) = match self.tensor.map(|cut| (cut.how, part(cut))) {
            Some((Some(TensorParallel::ColumnParallel), part)) => (part * self.shape.rows, 0),
            Some((Some(TensorParallel::RowParallel), part)) => (0, part * self.shape.cols),
            _ => (0, 0),
        };
        let first = Shape { rows: row + begin, cols: col };
        Block { first, shape: Shape { rows, cols: self.shape.cols } }
    }

    /// The rows `rank` owns, as do the ranks at its place in other replicas. Every rank of a replicated
    /// weight owns all of them.
    #[must_use]
    pub fn rows_of(&self, rank: RankId) -> ShardRows {
        let position = self.position(rank) as usize;
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
            let first = RankId::new(rank.number() % mesh.shards());
            assert_eq!(layout.rows_of(rank), layout.rows_of(first), "{rank}");
        }
        let alone = ShardLayout::new(&weight(19, Format::F32), Mesh::hybrid(3, 3).unwrap());
        assert!((0..3).all(|rank| alone.rows_of(RankId::new(rank)).rows == 19));
    }

    /// Of every replica, whatever the tensor parallelism.
    #[test]
    fn the_blocks_of_a_replica_are_disjoint_and_cover_the_weight() {
        let hows = [
            TensorParallel::ColumnParallel,
            TensorParallel::RowParallel,
            TensorParallel::SplitTokens,
            TensorParallel::AlikeTokens,
        ];
        for ((ranks, replicas, tensor), how) in [(4, 1, 2), (8, 2, 2), (8, 1, 4), (4, 1, 4), (2, 1, 1)]
            .into_iter()
            .flat_map(|mesh| hows.map(|how| (mesh, how)))
        {
            let mesh = Mesh::of(ranks, replicas, tensor, None).unwrap();
            let spec = WeightSpec { tensor: Some(how), ..weight(20, Format::F32) };
            let layout = ShardLayout::new(&spec, mesh);
            assert_eq!(layout.whole(), spec.shape);
            assert_eq!(layout.owners(), ranks / replicas);
            for replica in 0..replicas {
                let mut owners = vec![0; spec.shape.elements()];
                for rank in mesh.iter().filter(|rank| mesh.replica_of(*rank) == replica) {
                    let Block { first, shape } = layout.block_of(rank);
                    for row in first.rows..first.rows + shape.rows {
                        (first.cols..first.cols + shape.cols)
                            .for_each(|col| owners[row * spec.shape.cols + col] += 1);
                    }
                }
                assert!(owners.iter().all(|owners| *owners == 1), "{mesh}, {how:?}");
            }
        }
    }
}
