//! In which order gradients are summed: levels of blocks of ranks.
//!
//! Law: the tree over a group is the same for every weight whose rows are sharded over that group, or that all of its
//! ranks have whole, and each of its sums adds in rank order. A mesh keeps no blocks that do not divide the world
//! ([`Mesh::with_levels`]), so all blocks of a level have as many ranks.

use super::Mesh;
use crate::model::{Group, Levels, Strides};
use warpweft_base::id::LevelId;

/// Ranks that the rows of weights are sharded over: so far apart, and all of them within so many in a row.
#[derive(Clone, Copy)]
struct Reach {
    apart: u32,
    within: u32,
}

impl Mesh {
    /// Over which groups, one after the other, gradients of a weight are summed, whose rows are sharded `over` a group,
    /// [`Group::Shard`], [`Group::Replica`] or [`Group::ExpertShard`], or that all ranks of [`Group::World`] have
    /// whole: over all its ranks at once; or with levels over those in a block, then over those at one place of the
    /// blocks of the level before, and so on. Each adds in rank order.
    pub fn tree(self, over: Group) -> impl ExactSizeIterator<Item = Group> {
        let depth = self.depth(over);
        let group = move |level| match over {
            _ if depth == 1 => over,
            Group::Replica => Group::ReplicaLevel(LevelId::at(level)),
            Group::ExpertShard => Group::ExpertLevel(LevelId::at(level)),
            Group::World => Group::WorldLevel(LevelId::at(level)),
            _ => Group::Level(LevelId::at(level)),
        };
        (0..depth).map(group)
    }

    /// How many sums one after the other the [`tree`](Mesh::tree) over a group is.
    #[must_use]
    pub fn depth(self, over: Group) -> usize {
        self.levels_of(self.reach(over)).blocks().len() + 1
    }

    /// How many slices of a gradient a rank has for each rank of a group of the [`tree`](Mesh::tree): its sum over that
    /// group has as many slices, each of a rank's rows.
    #[must_use]
    pub const fn slices(self, group: Group) -> u32 {
        match group {
            Group::Level(level) | Group::ReplicaLevel(level) | Group::ExpertLevel(level) => {
                let reach = self.reach(group);
                reach.within / self.block(level.index(), reach)
            }
            Group::Shard | Group::Replicate | Group::World | Group::Replica => 1,
            // An all-reduce leaves all of a gradient.
            Group::WorldLevel(_) => 1,
            Group::Context | Group::Tensor | Group::ReplicateInInstance | Group::Instances => 1,
            Group::Expert | Group::ExpertShard | Group::ExpertReplica => 1,
            Group::ExpertReplicaInInstance | Group::ExpertRows => 1,
        }
    }

    /// The ranks whose sums a level adds up.
    pub(super) const fn level(self, group: Group) -> Strides {
        let level = match group.level() {
            Some(level) => level.index(),
            None => 0,
        };
        let reach = self.reach(group);
        let below = if level == 0 { reach.apart } else { self.block(level - 1, reach) };
        Strides::new(below, self.block(level, reach) / below)
    }

    /// Ranks of a block of a level in which several of those meet; above the last that is all of them.
    const fn block(self, level: usize, reach: Reach) -> u32 {
        match self.levels_of(reach).block(level) {
            Some(ranks) => ranks,
            None => reach.within,
        }
    }

    const fn levels_of(self, reach: Reach) -> Levels {
        self.levels.above(reach.apart).below(reach.within)
    }

    /// Of the ranks whose sums belong to a group: all that a row's shards are over.
    const fn reach(self, group: Group) -> Reach {
        match group {
            Group::Replica | Group::ReplicaLevel(_) => Reach { apart: 1, within: self.of_replica() },
            Group::ExpertShard | Group::ExpertLevel(_) => {
                Reach { apart: self.expert, within: self.of_experts() }
            }
            Group::World | Group::WorldLevel(_) => Reach { apart: 1, within: self.ranks() },
            _ => Reach { apart: self.tensor, within: self.of_replica() },
        }
    }
}
