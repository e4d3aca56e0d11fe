//! Ranks of a world at equal distances: those of a group, or those of them that share an NCCL communicator.
//!
//! Law: all members number each other alike, in rank order.

use warpweft_base::id::RankId;
use warpweft_plan::model::Strides;

/// `count` ranks of the world from `first` on, `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Members {
    first: RankId,
    step: usize,
    count: usize,
}

impl Members {
    /// The ranks of `rank`'s group.
    pub(crate) const fn of(group: Strides, rank: RankId) -> Self {
        Self { first: group.first(rank), step: group.stride() as usize, count: group.count() as usize }
    }

    /// Of these, `count` from number `first` on, `step` numbers apart.
    pub(crate) fn part(self, first: usize, step: usize, count: usize) -> Self {
        Self { first: self.rank(first), step: self.step * step, count }
    }

    /// The member that makes the communicator's name.
    pub(crate) const fn first(self) -> RankId {
        self.first
    }

    pub(crate) const fn count(self) -> usize {
        self.count
    }

    /// In order.
    pub(crate) fn iter(self) -> impl Iterator<Item = RankId> {
        (0..self.count).map(move |number| self.rank(number))
    }

    /// The member with this number.
    pub(crate) fn rank(self, number: usize) -> RankId {
        RankId::at(self.first.index() + number * self.step)
    }

    /// The member's number.
    pub(crate) const fn number(self, rank: RankId) -> usize {
        (rank.index() - self.first.index()) / self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_plan::model::Mesh;

    #[test]
    fn the_ranks_of_a_group_are_the_mesh_s_and_number_each_other_as_there() {
        for (ranks, replicas, tensor) in
            [(1, 1, 1), (4, 1, 1), (4, 2, 1), (4, 4, 1), (6, 3, 1), (6, 2, 1), (8, 2, 2), (8, 1, 4)]
        {
            let mesh = Mesh::of(ranks, replicas, tensor, None).unwrap();
            for (rank, group) in mesh.iter().flat_map(|rank| mesh.groups().map(move |group| (rank, group))) {
                let members = Members::of(mesh.strides(group), rank);
                assert_eq!(members.iter().collect::<Vec<_>>(), mesh.members(rank, group).collect::<Vec<_>>());
                assert_eq!(members.number(rank), mesh.position(rank, group) as usize);
                assert_eq!(members.rank(members.number(rank)), rank);
            }
        }
    }
}
