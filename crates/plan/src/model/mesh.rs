//! The ranks of a world: replicas of the model, shards of a weight, and tensor parallelism.
//!
//! Law: rank = (replica · shards + shard) · tensor + part. So the ranks of a tensor-parallel group, and those of a
//! replica, are numbered one after the other, and share a host where a host has as many. Every replica holds every
//! weight; ranks at the same place in all replicas hold the same bits. Which ranks a [`Group`] means is said by
//! [`Mesh::strides`] and nowhere else: everything that needs their numbers, or how many they are, asks there. In which
//! order gradients are summed over a replica is said by [`Mesh::tree`]: a mesh of up to 8 ranks has one level by
//! itself, all ranks in order; so far a mesh with tensor parallelism always has.

use serde::{Serialize, Serializer};

use super::{DeclareError, Group, Levels, Strides};
use warpweft_base::id::{LevelId, RankId};

/// The ranks a model is sharded over, and how often it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    shards: u32,
    replicas: u32,
    /// Ranks of a tensor-parallel group.
    tensor: u32,
    /// Those that cut a replica.
    levels: Levels,
}

impl Mesh {
    /// The most ranks of a mesh: 65,536.
    ///
    /// Backends and sessions keep tables with an entry per rank, and a process that cannot get the memory for
    /// them is aborted. No data-parallel group comes near this number, so a larger one is a mistake, and is
    /// reported as one.
    pub const MAX_RANKS: u32 = 1 << 16;

    /// A mesh of `ranks` data-parallel ranks that hold one copy of the model together.
    ///
    /// # Errors
    /// [`DeclareError::NoRanks`] for zero, [`DeclareError::TooManyRanks`] beyond [`Mesh::MAX_RANKS`].
    pub fn new(ranks: u32) -> Result<Self, DeclareError> {
        Self::hybrid(ranks, 1)
    }

    /// A mesh of `ranks` data-parallel ranks in all that hold `replicas` replicas of the model: hybrid sharding.
    /// It sums in [`Levels::USUAL`], where these cut it evenly, and otherwise in one.
    ///
    /// # Errors
    /// As [`Mesh::new`]; [`DeclareError::Replicas`] when the ranks cannot be divided among that many
    /// replicas.
    pub fn hybrid(ranks: u32, replicas: u32) -> Result<Self, DeclareError> {
        match (ranks, ranks.checked_rem(replicas)) {
            (0, _) => Err(DeclareError::NoRanks),
            (1..=Self::MAX_RANKS, Some(0)) => {
                let flat = Self { shards: ranks / replicas, replicas, tensor: 1, levels: Levels::FLAT };
                Ok(flat.with_levels(Levels::USUAL).unwrap_or(flat))
            }
            (1..=Self::MAX_RANKS, _) => Err(DeclareError::Replicas { ranks, replicas }),
            _ => Err(DeclareError::TooManyRanks { ranks, most: Self::MAX_RANKS }),
        }
    }

    /// As [`Mesh::hybrid`], with tensor parallelism and with the levels that were chosen, if some were.
    ///
    /// # Errors
    /// As [`Mesh::hybrid`], [`Mesh::with_tensor`] and [`Mesh::with_levels`].
    pub fn of(ranks: u32, replicas: u32, tensor: u32, levels: Option<Levels>) -> Result<Self, DeclareError> {
        let usual = Self::hybrid(ranks, replicas)?.with_tensor(tensor)?;
        levels.map_or(Ok(usual), |levels| usual.with_levels(levels))
    }

    /// The same ranks and replicas, in which each `tensor` ranks in a row are a tensor-parallel group.
    ///
    /// # Errors
    /// [`DeclareError::Tensor`] when the ranks of a replica cannot be divided into such groups.
    pub fn with_tensor(self, tensor: u32) -> Result<Self, DeclareError> {
        let of_replica = self.of_replica();
        match of_replica.checked_rem(tensor) {
            Some(0) if tensor == self.tensor => Ok(self),
            Some(0) => Ok(Self { shards: of_replica / tensor, tensor, levels: Levels::FLAT, ..self }),
            _ => Err(DeclareError::Tensor { tensor, of_replica }),
        }
    }

    /// The same mesh with these levels. Those that do not cut a replica change nothing.
    ///
    /// # Errors
    /// [`DeclareError::Level`] for blocks that neither are parts of a replica of equal size, nor consist of as
    /// many whole replicas each, nor hold all ranks; [`DeclareError::TensorLevels`] for any level that cuts a replica
    /// with tensor parallelism.
    pub fn with_levels(self, levels: Levels) -> Result<Self, DeclareError> {
        let (ranks, replicas) = (self.ranks(), self.replicas);
        if self.tensor > 1 && levels.below(self.of_replica()) != Levels::FLAT {
            return Err(DeclareError::TensorLevels { given: levels.blocks().to_vec(), tensor: self.tensor });
        }
        match levels.blocks().iter().find(|block| !self.is_cut_evenly(**block)) {
            None => Ok(Self { levels: levels.below(self.of_replica()), ..self }),
            Some(level) => {
                let next = (*level..ranks).find(|block| self.is_cut_evenly(*block)).unwrap_or(ranks);
                Err(DeclareError::Level { level: *level, ranks, replicas, next })
            }
        }
    }

    const fn is_cut_evenly(self, block: u32) -> bool {
        let of_replica = self.of_replica();
        let whole = block.is_multiple_of(of_replica) && self.ranks().is_multiple_of(block);
        block >= self.ranks() || of_replica.is_multiple_of(block) || whole
    }

    const fn of_replica(self) -> u32 {
        self.shards * self.tensor
    }

    /// The levels that cut a replica.
    #[must_use]
    pub const fn levels(self) -> Levels {
        self.levels
    }

    /// How many ranks, in all replicas.
    #[must_use]
    pub const fn ranks(self) -> u32 {
        self.of_replica() * self.replicas
    }

    /// How many ranks of a replica the rows of a weight's tensor-parallel part are sharded over; without tensor
    /// parallelism all of them, and those of a weight.
    #[must_use]
    pub const fn shards(self) -> u32 {
        self.shards
    }

    /// How many replicas of the model there are.
    #[must_use]
    pub const fn replicas(self) -> u32 {
        self.replicas
    }

    /// How many ranks compute the parts of one layer; 1 without tensor parallelism.
    #[must_use]
    pub const fn tensor(self) -> u32 {
        self.tensor
    }

    /// The replica that `rank` belongs to, counted from 0.
    #[must_use]
    pub const fn replica_of(self, rank: RankId) -> u32 {
        rank.number() / self.of_replica()
    }

    /// All ranks in order.
    pub fn iter(self) -> impl Iterator<Item = RankId> {
        (0..self.ranks()).map(RankId::new)
    }

    /// The ranks that a group means.
    #[must_use]
    pub const fn strides(self, group: Group) -> Strides {
        match group {
            Group::Shard => Strides::new(self.tensor, self.shards),
            Group::Replicate => Strides::new(self.of_replica(), self.replicas),
            Group::World => Strides::new(1, self.ranks()),
            Group::Model => Strides::new(1, self.of_replica()),
            Group::Tensor => Strides::new(1, self.tensor),
            Group::Level(level) => {
                let below = if level.index() == 0 { 1 } else { self.block(level.index() - 1) };
                Strides::new(below, self.block(level.index()) / below)
            }
        }
    }

    /// Ranks of a block of a level, which above the last is all of a replica.
    const fn block(self, level: usize) -> u32 {
        match self.levels.block(level) {
            Some(ranks) => ranks,
            None => self.shards,
        }
    }

    /// Over which groups, one after the other, gradients of a weight are summed over a replica, whose rows are sharded
    /// `over` a group: over all its ranks at once; or with levels over the ranks of a block, then over those at one
    /// place of the blocks of the level before, and so on. Each adds in rank order.
    pub fn tree(self, over: Group) -> impl ExactSizeIterator<Item = Group> {
        let levels = self.levels.blocks().len();
        let group = move |level| if levels == 0 { over } else { Group::Level(LevelId::at(level)) };
        (0..self.depth()).map(group)
    }

    /// How many sums one after the other a [`tree`](Mesh::tree) is.
    #[must_use]
    pub fn depth(self) -> usize {
        self.levels.blocks().len() + 1
    }

    /// How many slices of a gradient a rank has for each rank of a group of the [`tree`](Mesh::tree): its sum over that
    /// group has as many slices, each of a rank's rows.
    #[must_use]
    pub const fn slices(self, group: Group) -> u32 {
        match group {
            Group::Level(level) => self.shards / self.block(level.index()),
            Group::Shard | Group::Replicate | Group::World | Group::Model | Group::Tensor => 1,
        }
    }

    /// Every group that plans for this mesh may name. Some may have the same members.
    pub fn groups(self) -> impl Iterator<Item = Group> {
        let levels = self.tree(Group::Shard).filter(|group| !group.is_shard());
        let named = [Group::World, Group::Shard, Group::Replicate].into_iter();
        named.chain(levels).chain([Group::Model, Group::Tensor])
    }

    /// How many ranks a group has.
    #[must_use]
    pub const fn size(self, group: Group) -> u32 {
        self.strides(group).count()
    }

    /// The ranks of `rank`'s group, in rank order.
    pub fn members(self, rank: RankId, group: Group) -> impl Iterator<Item = RankId> + use<> {
        self.strides(group).members(rank)
    }

    /// The place of `rank` among the [`members`](Mesh::members) of its group.
    #[must_use]
    pub const fn position(self, rank: RankId, group: Group) -> u32 {
        self.strides(group).position(rank)
    }

    /// Whether both groups bring the same ranks together. With one replica the shard group is the world; with
    /// one shard the replicate group is.
    #[must_use]
    pub fn alike(self, one: Group, other: Group) -> bool {
        self.strides(one) == self.strides(other)
    }

    /// The group of a replica's ranks, called the world where there is one replica.
    #[must_use]
    pub const fn replica_group(self) -> Group {
        match (self.replicas, self.tensor) {
            (1, _) => Group::World,
            (_, 1) => Group::Shard,
            _ => Group::Model,
        }
    }
}

/// `1 rank`, `4 ranks`, or `16 ranks (4 shards × 2 tensor × 2 replicas)`.
impl std::fmt::Display for Mesh {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks = self.ranks();
        write!(formatter, "{ranks} rank{}", if ranks == 1 { "" } else { "s" })?;
        let Self { shards, replicas, tensor, .. } = self;
        match (tensor > &1, replicas > &1) {
            (false, false) => Ok(()),
            (false, true) => write!(formatter, " ({shards} shards × {replicas} replicas)"),
            (true, false) => write!(formatter, " ({shards} shards × {tensor} tensor)"),
            (true, true) => write!(formatter, " ({shards} shards × {tensor} tensor × {replicas} replicas)"),
        }
    }
}

/// The ranks, the replicas and the tensor-parallel ranks where there are several, and levels where there are some.
impl Serialize for Mesh {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written {
            ranks: u32,
            #[serde(skip_serializing_if = "Option::is_none")]
            replicas: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            tensor: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            levels: Option<Levels>,
        }
        let replicas = (self.replicas > 1).then_some(self.replicas);
        let tensor = (self.tensor > 1).then_some(self.tensor);
        let levels = Some(self.levels).filter(|levels| *levels != Levels::FLAT);
        Written { ranks: self.ranks(), replicas, tensor, levels }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
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
            assert!(
                message.contains(&ranks.to_string()) && message.contains(&replicas.to_string()),
                "{message}"
            );
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
                        assert!(
                            mesh.members(*member, group).eq(members.iter().copied()),
                            "{group} of {rank}"
                        );
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
        assert_eq!(of(Group::Model), [8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(of(Group::Replicate), [3, 11]);
        assert_eq!((mesh.replica_of(RankId::new(11)), mesh.replica_group()), (1, Group::Model));
        assert_eq!(mesh.to_string(), "16 ranks (4 shards × 2 tensor × 2 replicas)");
        assert_eq!(serde_json::to_string(&mesh).unwrap(), r#"{"ranks":16,"replicas":2,"tensor":2}"#);
    }

    #[test]
    fn tensor_parallel_groups_that_do_not_divide_a_replica_are_refused() {
        let mesh = Mesh::hybrid(12, 2).unwrap();
        for tensor in [0, 4, 5, 12] {
            assert_eq!(mesh.with_tensor(tensor), Err(DeclareError::Tensor { tensor, of_replica: 6 }));
        }
        assert_eq!(mesh.with_tensor(3).unwrap().with_tensor(1), Ok(mesh));
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
}
