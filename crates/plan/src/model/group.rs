//! Groups of ranks: their names, and what a name means in numbers.
//!
//! Law: plans, programs and ops name a [`Group`] and no rank; [`Mesh::strides`](super::Mesh::strides) is the one place
//! that says which ranks a name means. They are `count` ranks, `stride` apart, and each rank's own position among them
//! is a digit of its number. So [`Strides`] divide the ranks into groups of equal size, of which each rank is in one,
//! if there are a multiple of `stride · count` ranks.

use serde::Serialize;

use warpweft_base::id::{LevelId, RankId};

/// Which ranks take part in a collective, as seen from any one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Group {
    /// Those of the rank's own replica: together they hold every weight once. With tensor parallelism, of these the
    /// ones that have the same parts of weights.
    Shard,
    /// Those that hold the same shard, one of each replica.
    Replicate,
    /// Of those, the ones of the rank's own optimizer instance ([`Mesh::with_instances`](super::Mesh::with_instances)).
    ReplicateInInstance,
    /// Those at one place of all optimizer instances: they keep the same optimizer state.
    Instances,
    /// All ranks.
    World,
    /// All ranks of the rank's own replica, whatever parts of weights they have. Without tensor parallelism these are
    /// those of [`Group::Shard`].
    Replica,
    /// Those that compute the parts of one layer: a tensor-parallel group. Without tensor parallelism each rank is
    /// alone in its own.
    Tensor,
    /// Those that share the tokens of a text: a context-parallel group. Without context parallelism each rank is alone
    /// in its own.
    Context,
    /// Those whose sums of a gradient this level adds up, of several levels ([`Mesh::tree`](super::Mesh::tree)): at the
    /// first, the rank's own block of its replica; at the others, the ranks at its place in the blocks of the level
    /// before. With tensor parallelism, of these the ones that have the same parts of weights.
    Level(LevelId),
    /// The same for a weight that tensor parallelism does not cut, whose rows all ranks of a replica have.
    ReplicaLevel(LevelId),
    /// Those that hold all experts between them, of each one shard: an expert-parallel group. Without expert
    /// parallelism each rank is alone in its own.
    Expert,
    /// Those that the rows of one expert are sharded over.
    ExpertShard,
    /// Those that hold the same shard of the same expert.
    ExpertReplica,
    /// Of those, the ones of the rank's own optimizer instance.
    ExpertReplicaInInstance,
    /// Those that hold rows of the same expert, of all copies.
    ExpertRows,
    /// As [`Group::Level`], for the weights of experts.
    ExpertLevel(LevelId),
    /// As [`Group::Level`], of the world in place of a replica: for weights that every rank has whole.
    WorldLevel(LevelId),
}

impl Group {
    /// Whether these are all ranks; a plan then leaves the group out.
    #[must_use]
    pub const fn is_world(&self) -> bool {
        matches!(self, Self::World)
    }

    /// The ranks at one place of all groups that hold the same as these: of weights that are sharded over this group,
    /// those that have the same rows.
    #[must_use]
    pub const fn copies(self) -> Self {
        match self {
            Self::ExpertShard | Self::ExpertLevel(_) => Self::ExpertReplica,
            _ => Self::Replicate,
        }
    }

    /// Which level of a tree they sum at, of those that have several.
    #[must_use]
    pub const fn level(self) -> Option<LevelId> {
        match self {
            Self::Level(level)
            | Self::ReplicaLevel(level)
            | Self::ExpertLevel(level)
            | Self::WorldLevel(level) => Some(level),
            _ => None,
        }
    }

    /// Whether these are ranks that have the same shard, or the same slice of one: all or some of those.
    #[must_use]
    pub const fn is_of_copies(self) -> bool {
        matches!(
            self,
            Self::Replicate
                | Self::ReplicateInInstance
                | Self::Instances
                | Self::ExpertReplica
                | Self::ExpertReplicaInInstance
        )
    }

    /// Whether these are the ranks of a replica; a reduction then leaves the group out.
    #[must_use]
    pub const fn is_shard(&self) -> bool {
        matches!(self, Self::Shard)
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shard => formatter.write_str("shard"),
            Self::Replicate => formatter.write_str("replicate"),
            Self::ReplicateInInstance => formatter.write_str("replicate_in_instance"),
            Self::Instances => formatter.write_str("instances"),
            Self::World => formatter.write_str("world"),
            Self::Replica => formatter.write_str("replica"),
            Self::Tensor => formatter.write_str("tensor"),
            Self::Context => formatter.write_str("context"),
            Self::Expert => formatter.write_str("expert"),
            Self::ExpertShard => formatter.write_str("expert_shard"),
            Self::ExpertReplica => formatter.write_str("expert_replica"),
            Self::ExpertReplicaInInstance => formatter.write_str("expert_replica_in_instance"),
            Self::ExpertRows => formatter.write_str("expert_rows"),
            Self::Level(level) | Self::ReplicaLevel(level) | Self::ExpertLevel(level) => level.fmt(formatter),
            Self::WorldLevel(level) => write!(formatter, "world {level}"),
        }
    }
}

/// Groups of `count` ranks that are `stride` apart, in a world that they divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Strides {
    stride: u32,
    count: u32,
}

impl Strides {
    /// So many ranks, so far apart. A rank alone has a distance to nobody, so all groups of one are equal.
    #[must_use]
    pub(super) const fn new(stride: u32, count: u32) -> Self {
        if count > 1 { Self { stride, count } } else { Self { stride: 1, count: 1 } }
    }

    /// The difference between the numbers of one member and the next.
    #[must_use]
    pub const fn stride(self) -> u32 {
        self.stride
    }

    /// How many ranks a group has.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// The place of `rank` among the members of its group.
    #[must_use]
    pub const fn position(self, rank: RankId) -> u32 {
        rank.number() / self.stride % self.count
    }

    /// The first rank of `rank`'s group.
    #[must_use]
    pub const fn first(self, rank: RankId) -> RankId {
        RankId::new(rank.number() - self.position(rank) * self.stride)
    }

    /// The ranks of `rank`'s group, in rank order.
    pub fn members(self, rank: RankId) -> impl Iterator<Item = RankId> + use<> {
        let first = self.first(rank).number();
        (0..self.count).map(move |position| RankId::new(first + position * self.stride))
    }

    /// Whether both ranks are of one group.
    #[must_use]
    pub fn bring_together(self, one: RankId, other: RankId) -> bool {
        self.first(one) == self.first(other)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every rank is in one group, all groups are of one size and in rank order, and all members of a group see the
        /// same one.
        #[test]
        fn strides_part_every_world_that_they_divide(
            stride in 1..9u32,
            count in 1..9u32,
            times in 1..5u32,
        ) {
            let strides = Strides::new(stride, count);
            let ranks = || (0..stride * count * times).map(RankId::new);
            let mut groups: BTreeSet<Vec<RankId>> = BTreeSet::new();
            for rank in ranks() {
                let members: Vec<RankId> = strides.members(rank).collect();
                prop_assert!(members.is_sorted() && members.len() == count as usize);
                prop_assert_eq!(members[strides.position(rank) as usize], rank);
                prop_assert_eq!(members[0], strides.first(rank));
                for other in ranks() {
                    prop_assert_eq!(strides.bring_together(rank, other), members.contains(&other));
                }
                groups.insert(members);
            }
            let mut all: Vec<RankId> = groups.into_iter().flatten().collect();
            all.sort();
            prop_assert_eq!(all, ranks().collect::<Vec<_>>());
        }
    }

    #[test]
    fn groups_of_one_rank_are_equal_whatever_their_stride() {
        assert_eq!(Strides::new(8, 1), Strides::new(1, 1));
    }
}
