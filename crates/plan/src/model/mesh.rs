//! The ranks of a world: shards of a weight along one axis, replicas along the other.
//!
//! Law: rank = replica · shards + shard. So the ranks of a replica are numbered one after the other, and
//! share a host where a host has as many ranks as a replica. Every replica holds every weight; ranks at the
//! same place in all replicas hold the same bits. Which ranks a [`Group`] means is said by [`Mesh::strides`] and nowhere
//! else: everything that needs their numbers, or how many they are, asks there.

use serde::{Serialize, Serializer};

use super::{DeclareError, Group, Strides};
use warpweft_base::id::RankId;

/// The ranks a model is sharded over, and how often it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    shards: u32,
    replicas: u32,
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
    ///
    /// # Errors
    /// As [`Mesh::new`]; [`DeclareError::Replicas`] when the ranks cannot be divided among that many
    /// replicas.
    pub fn hybrid(ranks: u32, replicas: u32) -> Result<Self, DeclareError> {
        match (ranks, ranks.checked_rem(replicas)) {
            (0, _) => Err(DeclareError::NoRanks),
            (1..=Self::MAX_RANKS, Some(0)) => Ok(Self { shards: ranks / replicas, replicas }),
            (1..=Self::MAX_RANKS, _) => Err(DeclareError::Replicas { ranks, replicas }),
            _ => Err(DeclareError::TooManyRanks { ranks, most: Self::MAX_RANKS }),
        }
    }

    /// How many ranks, in all replicas.
    #[must_use]
    pub const fn ranks(self) -> u32 {
        self.shards * self.replicas
    }

    /// How many ranks a sharded weight is cut over: those of one replica.
    #[must_use]
    pub const fn shards(self) -> u32 {
        self.shards
    }

    /// How many replicas of the model there are.
    #[must_use]
    pub const fn replicas(self) -> u32 {
        self.replicas
    }

    /// Which shard `rank` holds, counted from 0.
    #[must_use]
    pub const fn shard_of(self, rank: RankId) -> u32 {
        rank.number() % self.shards
    }

    /// The replica that `rank` belongs to, counted from 0.
    #[must_use]
    pub const fn replica_of(self, rank: RankId) -> u32 {
        rank.number() / self.shards
    }

    /// All ranks in order.
    pub fn iter(self) -> impl Iterator<Item = RankId> {
        (0..self.ranks()).map(RankId::new)
    }

    /// The ranks that a group means.
    #[must_use]
    pub const fn strides(self, group: Group) -> Strides {
        match group {
            Group::Shard => Strides::new(1, self.shards),
            Group::Replicate => Strides::new(self.shards, self.replicas),
            Group::World => Strides::new(1, self.ranks()),
        }
    }

    /// Every group that plans for this mesh may name. Some may have the same members.
    pub fn groups(self) -> impl Iterator<Item = Group> {
        [Group::World, Group::Shard, Group::Replicate].into_iter()
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
        if self.replicas == 1 { Group::World } else { Group::Shard }
    }
}

/// `1 rank`, `4 ranks`, or `8 ranks (4 shards × 2 replicas)`.
impl std::fmt::Display for Mesh {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks = self.ranks();
        write!(formatter, "{ranks} rank{}", if ranks == 1 { "" } else { "s" })?;
        if self.replicas > 1 {
            write!(formatter, " ({} shards × {} replicas)", self.shards, self.replicas)?;
        }
        Ok(())
    }
}

/// The ranks, and the replicas where there are several.
impl Serialize for Mesh {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written {
            ranks: u32,
            #[serde(skip_serializing_if = "Option::is_none")]
            replicas: Option<u32>,
        }
        let replicas = (self.replicas > 1).then_some(self.replicas);
        Written { ranks: self.ranks(), replicas }.serialize(serializer)
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
        for (ranks, replicas) in [(1, 1), (4, 1), (4, 2), (6, 3), (3, 3), (12, 2)] {
            let mesh = Mesh::hybrid(ranks, replicas).unwrap();
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
    fn groups_are_alike_exactly_where_they_have_the_same_members() {
        for (ranks, replicas) in [(1, 1), (4, 1), (4, 2), (4, 4), (6, 3)] {
            let mesh = Mesh::hybrid(ranks, replicas).unwrap();
            for (one, other) in mesh.groups().flat_map(|one| mesh.groups().map(move |other| (one, other))) {
                let same = mesh.iter().all(|rank| mesh.members(rank, one).eq(mesh.members(rank, other)));
                assert_eq!(mesh.alike(one, other), same, "{mesh}: {one} and {other}");
            }
        }
    }

    /// PL-1. With one replica, what is written is the same as before there were replicas.
    #[test]
    fn a_mesh_of_one_replica_is_written_as_its_ranks() {
        let text = |mesh: Mesh| serde_json::to_string(&mesh).unwrap();
        assert_eq!(text(Mesh::new(4).unwrap()), r#"{"ranks":4}"#);
        assert_eq!(text(Mesh::hybrid(4, 2).unwrap()), r#"{"ranks":4,"replicas":2}"#);
        assert_eq!(Mesh::new(1).unwrap().to_string(), "1 rank");
        assert_eq!(Mesh::new(4).unwrap().to_string(), "4 ranks");
        assert_eq!(Mesh::hybrid(4, 2).unwrap().to_string(), "4 ranks (2 shards × 2 replicas)");
    }
}
