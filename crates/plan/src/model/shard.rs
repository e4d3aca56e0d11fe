//! Row shards: which rows of a weight belong to which rank.
//!
//! Law: with tensor parallelism a weight is first cut into parts ([`TensorCut`]), and what is said of a weight here
//! holds of the rank's part. Every rank's shard has the same *stored* rows, a multiple of the format's row tile, so
//! collectives move equal parts; the *real* rows of the last ranks may be fewer, or none. Stored rows beyond the
//! real ones are zero. Every replica of a mesh holds all rows, cut alike. Where optimizer state is sharded over the
//! replicas too ([`ShardLayout::over_replicas`]), what replicas hold of one shard are its *slices*, one after the
//! other: as many whole row tiles each. Replicas of another optimizer instance have the same ones again. This is
//! the only place where a rank number turns into an offset: plans carry none.
//!
//! Sizes saturate where padding and ranks take them beyond what can be addressed; planning refuses every
//! saturated size.

use std::ops::Range;

use serde::Serialize;

use super::{Group, Mesh, Placement, Segments, Strides, TensorCut, TensorParallel, WeightSpec};
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
    /// Rows of every rank's shard, padding included.
    pub rows_per_rank: usize,
    /// Number of ranks of a replica that hold a shard; 1 for a replicated weight.
    pub ranks: u32,
    /// How it is cut by tensor parallelism, where the mesh has that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<TensorCut>,
    /// How many ranks have other experts in its place, where it is an expert's and the mesh has axes for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert: Option<u32>,
    /// How many replicas have slices of each shard, those of an optimizer instance; 1 where every replica has all
    /// of it.
    #[serde(skip_serializing_if = "is_one")]
    pub slices: u32,
}

/// Whether each replica has all of a shard; a plan then leaves that out.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one(slices: &u32) -> bool {
    *slices == 1
}

impl ShardLayout {
    /// The cut of `weight` over `mesh`: the smallest equal parts that are whole row tiles.
    #[must_use]
    pub fn new(weight: &WeightSpec, mesh: Mesh) -> Self {
        let tensor = (mesh.tensor() > 1).then_some(TensorCut {
            how: weight.tensor,
            ranks: mesh.tensor(),
            whole: weight.shape,
            segments: weight.segments,
        });
        let expert = (weight.expert && mesh.has_experts()).then_some(mesh.expert());
        let over = group_of(expert, tensor);
        let (ranks, tile) = match weight.placement {
            Placement::Sharded => (mesh.size(over), weight.format.row_tile()),
            Placement::Replicated => (1, 1),
        };
        let how = tensor.and_then(|cut| cut.how);
        let shape = how.map_or(weight.shape, |how| how.part(weight.shape, mesh.tensor()));
        let rows = shape.rows.div_ceil(ranks as usize);
        let rows_per_rank = rows.checked_next_multiple_of(tile).unwrap_or(usize::MAX);
        Self { shape, rows_per_rank, ranks, tensor, expert, slices: 1 }
    }

    /// The same with each shard in so many slices, one for each replica: the smallest equal ones that are whole row
    /// tiles of `tile` rows. As it is, where a slice is no smaller than the shard, or all of them have more than twice
    /// its rows: gathers and sums would move what is padded.
    #[must_use]
    pub fn over_replicas(self, slices: u32, tile: usize) -> Self {
        let shard = self.shape.rows.div_ceil(self.ranks as usize).div_ceil(slices as usize);
        let slice = shard.checked_next_multiple_of(tile).unwrap_or(usize::MAX);
        let rows_per_rank = slice.saturating_mul(slices as usize);
        if slice >= self.rows_per_rank || rows_per_rank > self.rows_per_rank.saturating_mul(2) {
            return self;
        }
        Self { rows_per_rank, slices, ..self }
    }

    /// The ranks that the rows are sharded over.
    #[must_use]
    pub fn group(&self) -> Group {
        group_of(self.expert, self.tensor)
    }

    /// The ranks that have the same rows of it, of their shard or of their slice of that.
    #[must_use]
    pub fn copies(&self) -> Group {
        if self.slices > 1 { Group::Instances } else { self.group().copies() }
    }

    /// The ranks that have slices of the same shard between them; with one slice they have the shard.
    #[must_use]
    pub fn slicers(&self, mesh: Mesh) -> Group {
        match self.group().copies() {
            copies if mesh.instances() == 1 => copies,
            Group::ExpertReplica => Group::ExpertReplicaInInstance,
            _ => Group::ReplicateInInstance,
        }
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

    /// How many ranks, the first of a mesh, have all of the weight together: each blocks that no other of them has
    /// ([`ShardLayout::blocks_of`]). Of an expert's weight they have those of all experts in its place.
    #[must_use]
    pub fn owners(&self) -> u32 {
        self.of_replica().saturating_mul(self.slices)
    }

    /// How many ranks of a replica have all of the weight together.
    #[must_use]
    pub fn of_replica(&self) -> u32 {
        self.ranks.saturating_mul(self.parts())
    }

    /// Which slice of its shard `rank` holds.
    #[must_use]
    pub fn slice_of(&self, rank: RankId) -> usize {
        (rank.number() / self.of_replica().max(1) % self.slices.max(1)) as usize
    }

    /// The rank that has this slice of this shard of a part.
    #[must_use]
    pub fn owner(&self, part: usize, position: usize, slice: usize) -> RankId {
        let before = slice.saturating_mul(self.of_replica() as usize);
        let place = position.saturating_mul(self.parts() as usize).saturating_add(part);
        RankId::at(before.saturating_add(place))
    }

    /// The ranks that own rows of a part, in the order of these.
    pub fn owners_of(&self, part: usize) -> impl Iterator<Item = RankId> + use<> {
        let (layout, slices) = (*self, self.slices as usize);
        (0..self.ranks as usize)
            .flat_map(move |position| (0..slices).map(move |slice| layout.owner(part, position, slice)))
    }

    /// Into how many parts tensor parallelism cuts it, or how many experts are in its place on other ranks; 1 if it is
    /// the same on all.
    #[must_use]
    pub fn parts(&self) -> u32 {
        if let Some(experts) = self.expert {
            return experts;
        }
        self.tensor.filter(|cut| cut.group() == Group::Shard).map_or(1, |cut| cut.ranks)
    }

    /// Which of the shards `rank` holds; 0 of a replicated weight.
    #[must_use]
    pub fn position(&self, rank: RankId) -> u32 {
        // The ranks of a tensor-parallel group that have parts of their own, or other experts, stand between two
        // shards of one part.
        Strides::new(self.parts(), self.ranks).position(rank)
    }

    /// Where in the weight of the declaration the rows lie that `rank` owns, one block after the other: none for a rank
    /// without rows, and several only of a fused weight, of whose segments the rank has some.
    pub fn blocks_of(&self, rank: RankId) -> impl Iterator<Item = Block> + Clone + use<> {
        self.blocks(self.part_of(rank), self.rows_of(rank))
    }

    /// The same of all ranks with a part, by its number.
    pub fn blocks_of_part(&self, part: usize) -> impl Iterator<Item = Block> + Clone + use<> {
        self.blocks(part, ShardRows { begin: 0, rows: self.shape.rows })
    }

    /// Of which columns the ranks have the values that have the same part as `rank`.
    #[must_use]
    pub fn columns_of(&self, rank: RankId) -> Range<usize> {
        let first = self.first_column(self.part_of(rank));
        first..first + self.shape.cols
    }

    /// The row in the weight of the declaration that is a row of what `rank` owns, by its number there.
    #[must_use]
    pub fn row_of(&self, rank: RankId, row: usize) -> usize {
        let mut before = 0;
        for Block { first, shape } in self.blocks_of(rank) {
            if row < before + shape.rows {
                return first.rows + row - before;
            }
            before += shape.rows;
        }
        row
    }

    /// Which part `rank` has.
    fn part_of(&self, rank: RankId) -> usize {
        self.tensor.and_then(|cut| rank.index().checked_rem(cut.ranks as usize)).unwrap_or(0)
    }

    fn first_column(&self, part: usize) -> usize {
        let is_cut = self.tensor.is_some_and(|cut| cut.how == Some(TensorParallel::RowParallel));
        if is_cut { part * self.shape.cols } else { 0 }
    }

    /// These rows of a part.
    fn blocks(
        &self,
        part: usize,
        ShardRows { begin, rows }: ShardRows,
    ) -> impl Iterator<Item = Block> + Clone + use<> {
        let (cols, end) = (self.shape.cols, begin + rows);
        let first_column = self.first_column(part);
        let cut = self.tensor.filter(|cut| cut.how == Some(TensorParallel::ColumnParallel));
        let (part, ranks) = cut.map_or((0, 1), |cut| (part, cut.ranks as usize));
        let segments = cut.map_or(Segments::NONE, |cut| cut.segments).or_whole(self.whole().rows);
        // Where a segment begins in the part, and in the weight.
        let own = segments.iter().scan((0, 0), move |(in_part, in_whole), rows| {
            let own = rows.checked_div(ranks).unwrap_or(0);
            let run = (*in_part, own, *in_whole + part * own);
            (*in_part, *in_whole) = (*in_part + own, *in_whole + rows);
            Some(run)
        });
        own.filter_map(move |(first, rows, in_whole)| {
            let (from, to) = (first.max(begin), (first + rows).min(end));
            let rows = to.checked_sub(from).filter(|rows| *rows > 0)?;
            let first = Shape { rows: in_whole + from - first, cols: first_column };
            Some(Block { first, shape: Shape { rows, cols } })
        })
    }

    /// The rows `rank` owns: of its shard, or of its slice of that. Its [copies](Self::copies) own them too. Every
    /// rank of a replicated weight owns all of them.
    #[must_use]
    pub fn rows_of(&self, rank: RankId) -> ShardRows {
        let (position, rows) = (self.position(rank) as usize, self.stored().rows);
        let before = position.saturating_mul(self.rows_per_rank);
        let begin = before.saturating_add(rows.saturating_mul(self.slice_of(rank))).min(self.shape.rows);
        let end = begin.saturating_add(rows).min(self.shape.rows);
        ShardRows { begin, rows: end - begin }
    }

    /// Shape of what each rank stores, padding included: of its shard, or of its slice of that.
    #[must_use]
    pub fn stored(&self) -> Shape {
        Shape { rows: self.rows_per_rank / self.slices.max(1) as usize, cols: self.shape.cols }
    }

    /// Shape of a shard, padding included: of all its slices one after the other.
    #[must_use]
    pub fn published(&self) -> Shape {
        Shape { rows: self.rows_per_rank, cols: self.shape.cols }
    }

    /// Over which groups, one after the other, its gradients are summed: those of the mesh's [tree](Mesh::tree), and
    /// the replicas of an optimizer instance where each sums a slice of its own. Over its [copies](Self::copies) sums
    /// are added up after that.
    pub fn tree(&self, mesh: Mesh) -> impl Iterator<Item = Group> + use<> {
        mesh.tree(self.group()).chain((self.slices > 1).then_some(self.slicers(mesh)))
    }

    /// How many sums one after the other that is.
    #[must_use]
    pub fn depth(&self, mesh: Mesh) -> usize {
        mesh.depth(self.group()) + usize::from(self.slices > 1)
    }

    /// The shape of what a rank sums over a group of that tree for one rank of the group.
    #[must_use]
    pub fn summed_over(&self, group: Group) -> Shape {
        if group.is_of_copies() { self.stored() } else { self.published() }
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

/// The ranks that rows are sharded over.
fn group_of(expert: Option<u32>, tensor: Option<TensorCut>) -> Group {
    match expert {
        Some(_) => Group::ExpertShard,
        None => tensor.map_or(Group::Shard, |cut| cut.group()),
    }
}

#[cfg(test)]
mod tests;
