//! Expert parallelism: the axes that the weights of experts have in the place of the others.
//!
//! Law: ep · ep_shard divides the world, and what is left are copies. Ranks of an expert-parallel group are numbered
//! one after the other. An expert's rows are sharded over ranks that are `ep` apart. Without expert parallelism, an
//! expert's weight is sharded over a replica, as any weight.

use super::Mesh;
use crate::model::{DeclareError, Levels};

impl Mesh {
    /// The same mesh, in which each `ep` ranks in a row share the experts, and each expert is sharded over
    /// `ep_shard` ranks: if that is not said, over as many as a replica leaves. If the axes change, it is one
    /// optimizer instance with the levels that such a mesh has by itself.
    ///
    /// # Errors
    /// [`DeclareError::Experts`] when the ranks cannot be divided so.
    pub fn with_experts(self, ep: u32, ep_shard: Option<u32>) -> Result<Self, DeclareError> {
        let (ranks, of_replica) = (self.ranks(), self.of_replica());
        let divides = |number: u32, of: u32| of.checked_rem(number) == Some(0);
        let fewer =
            |most: u32, of: u32| (1..=most.min(of)).rev().find(|less| divides(*less, of)).unwrap_or(1);
        let refused = |key, number| DeclareError::Experts { ep, ep_shard, ranks, of_replica, key, number };
        if !divides(ep, ranks) {
            return Err(refused("ep", fewer(ep, ranks)));
        }
        let expert_shards = match ep_shard {
            Some(shards) if divides(shards, ranks / ep) => shards,
            Some(shards) => return Err(refused("ep_shard", fewer(shards, ranks / ep))),
            None if divides(ep, of_replica) => of_replica / ep,
            None => return Err(refused("ep_shard", fewer((of_replica / ep).max(1), ranks / ep))),
        };
        if (ep, expert_shards) == (self.expert, self.expert_shards) {
            return Ok(self);
        }
        let flat = Self { expert: ep, expert_shards, instances: 1, levels: Levels::FLAT, ..self };
        Ok(flat.with_levels(Levels::USUAL).unwrap_or(flat))
    }

    /// How many ranks share the experts; 1 without expert parallelism.
    #[must_use]
    pub const fn expert(self) -> u32 {
        self.expert
    }

    /// How many ranks one expert is sharded over.
    #[must_use]
    pub const fn expert_shards(self) -> u32 {
        self.expert_shards
    }

    /// Whether experts have axes that weights have not.
    #[must_use]
    pub const fn has_experts(self) -> bool {
        self.expert > 1 || self.expert_shards != self.of_replica()
    }

    /// Ranks that have all experts once.
    pub(super) const fn of_experts(self) -> u32 {
        self.expert * self.expert_shards
    }

    /// Whether blocks of so many ranks are parts of groups of experts, or whole ones.
    pub(super) const fn is_cut_evenly_for_experts(self, block: u32) -> bool {
        let (ep, all) = (self.expert, self.of_experts());
        (block.is_multiple_of(ep) || ep.is_multiple_of(block))
            && (block.is_multiple_of(all) || all.is_multiple_of(block))
    }
}
