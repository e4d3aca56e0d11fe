//! The ranks of a world: replicas of the model, shards of a weight, context parallelism, and tensor parallelism.
//!
//! Law: rank = (replica · shards + shard) · tensor + part, and shard = data shard · context + place in its context.
//! So the ranks of a tensor-parallel group, those that share texts, and those of a replica are numbered one after the
//! other, and share a host where a host has as many. Every replica holds every weight; ranks at the same place in all
//! replicas hold the same bits. Context parallelism splits the tokens of a text and no weight: for weights its ranks
//! are shards like others. The weights of experts divide the same ranks otherwise: rank = (copy · expert shards +
//! expert shard) · ep + place among experts. Which ranks a [`Group`] means is said by [`Mesh::strides`] and nowhere
//! else: everything that needs their numbers, or how many they are, asks there. Optimizer instances are blocks of
//! replicas in a row, of as many each ([`Mesh::with_instances`]). In which order gradients are summed over a replica,
//! or the world, is said by [`Mesh::tree`]: up to 8 ranks have one level by themselves, all ranks in order.

use serde::{Serialize, Serializer};

use super::{DeclareError, Group, Levels, Strides};
use warpweft_base::id::RankId;

/// The ranks a model is sharded over, and how often it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    shards: u32,
    replicas: u32,
    /// Those of the shards that share the tokens of a text.
    context: u32,
    /// Ranks of a tensor-parallel group.
    tensor: u32,
    /// Ranks of an expert-parallel group.
    expert: u32,
    /// Ranks that one expert is sharded over.
    expert_shards: u32,
    /// Blocks of replicas that each keep all optimizer state.
    instances: u32,
    /// Those that cut the world.
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
                let (shards, levels) = (ranks / replicas, Levels::FLAT);
                let flat = Self {
                    shards,
                    replicas,
                    context: 1,
                    tensor: 1,
                    expert: 1,
                    expert_shards: shards,
                    instances: 1,
                    levels,
                };
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

    /// The same ranks and replicas, in which each `tensor` ranks in a row are a tensor-parallel group, without context
    /// and expert parallelism and in one optimizer instance. Levels are those that such a mesh has by itself.
    ///
    /// # Errors
    /// [`DeclareError::Tensor`] when the ranks of a replica cannot be divided into such groups.
    pub fn with_tensor(self, tensor: u32) -> Result<Self, DeclareError> {
        let of_replica = self.of_replica();
        match of_replica.checked_rem(tensor) {
            Some(0) if tensor == self.tensor => Ok(self),
            Some(0) => {
                let shards = of_replica / tensor;
                let flat = Self {
                    shards,
                    context: 1,
                    tensor,
                    expert: 1,
                    expert_shards: of_replica,
                    instances: 1,
                    levels: Levels::FLAT,
                    ..self
                };
                Ok(flat.with_levels(Levels::USUAL).unwrap_or(flat))
            }
            None | Some(_) => Err(DeclareError::Tensor { tensor, of_replica }),
        }
    }

    /// The same mesh, in which each `context` shards in a row share the tokens of a text: context parallelism.
    ///
    /// # Errors
    /// [`DeclareError::Context`] when the shards cannot be divided so.
    pub const fn with_context(self, context: u32) -> Result<Self, DeclareError> {
        match self.shards.checked_rem(context) {
            Some(0) => Ok(Self { context, ..self }),
            _ => Err(DeclareError::Context { context, shards: self.shards }),
        }
    }

    /// The same mesh with these levels. Those that do not cut the world change nothing.
    ///
    /// # Errors
    /// [`DeclareError::Level`] for blocks that neither are parts of a replica of equal size, nor consist of as
    /// many whole replicas each, nor hold all ranks; and for those that cut tensor-parallel groups unevenly.
    pub fn with_levels(self, levels: Levels) -> Result<Self, DeclareError> {
        let (ranks, replicas, tensor) = (self.ranks(), self.replicas, self.tensor);
        match levels.blocks().iter().find(|block| !self.is_cut_evenly(**block)) {
            None => Ok(Self { levels: levels.below(ranks), ..self }),
            Some(level) => {
                let next = (*level..ranks).find(|block| self.is_cut_evenly(*block)).unwrap_or(ranks);
                Err(DeclareError::Level {
                    level: *level,
                    ranks,
                    replicas,
                    tensor,
                    experts: (self.expert, self.expert_shards),
                    next,
                })
            }
        }
    }

    const fn is_cut_evenly(self, block: u32) -> bool {
        let (of_replica, tensor) = (self.of_replica(), self.tensor);
        let whole = block.is_multiple_of(of_replica) && self.ranks().is_multiple_of(block);
        let parts = block.is_multiple_of(tensor) || tensor.is_multiple_of(block);
        block >= self.ranks()
            || (((of_replica.is_multiple_of(block) && parts) || whole)
                && self.is_cut_evenly_for_experts(block))
    }

    /// The same mesh, its replicas divided into optimizer instances: blocks of replicas, and of copies of all experts.
    /// Where optimizer state is sharded over replicas, each instance has all of it, and sums over replicas are
    /// those of instances, added up. With fewer replicas to an instance less of a part is padding, and more is
    /// kept.
    ///
    /// # Errors
    /// [`DeclareError::Instances`] when replicas, or copies of experts, cannot be divided so.
    pub fn with_instances(self, instances: u32) -> Result<Self, DeclareError> {
        let (replicas, copies) = (self.replicas, self.ranks() / self.of_experts());
        let divides = |number: &u32| [replicas, copies].iter().all(|of| of.checked_rem(*number) == Some(0));
        if divides(&instances) {
            return Ok(Self { instances, ..self });
        }
        let fewer = (1..=replicas.min(instances)).rev().find(divides).unwrap_or(1);
        let copies = self.has_experts().then_some(copies);
        Err(DeclareError::Instances { instances, replicas, copies, fewer })
    }

    const fn of_replica(self) -> u32 {
        self.shards * self.tensor
    }

    /// The levels that cut the world: into parts of a replica, or blocks of whole ones.
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

    /// How many times the replicas keep all optimizer state, where it is sharded over them.
    #[must_use]
    pub const fn instances(self) -> u32 {
        self.instances
    }

    /// How many ranks share the tokens of a text; 1 without context parallelism. They are among the
    /// [`shards`](Mesh::shards).
    #[must_use]
    pub const fn context(self) -> u32 {
        self.context
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
            Group::ReplicateInInstance => Strides::new(self.of_replica(), self.replicas / self.instances),
            Group::Instances => Strides::new(self.ranks() / self.instances, self.instances),
            Group::World => Strides::new(1, self.ranks()),
            Group::Replica => Strides::new(1, self.of_replica()),
            Group::Context => Strides::new(self.tensor, self.context),
            Group::Tensor => Strides::new(1, self.tensor),
            Group::Level(_) | Group::ReplicaLevel(_) | Group::ExpertLevel(_) | Group::WorldLevel(_) => {
                self.level(group)
            }
            Group::Expert => Strides::new(1, self.expert),
            Group::ExpertShard => Strides::new(self.expert, self.expert_shards),
            Group::ExpertReplica => Strides::new(self.of_experts(), self.ranks() / self.of_experts()),
            Group::ExpertReplicaInInstance => {
                Strides::new(self.of_experts(), self.ranks() / self.of_experts() / self.instances)
            }
            Group::ExpertRows => Strides::new(self.expert, self.ranks() / self.expert),
        }
    }

    /// Every group that plans for this mesh may name. Some may have the same members.
    pub fn groups(self) -> impl Iterator<Item = Group> {
        let levels = self.tree(Group::Shard).filter(|group| !group.is_shard());
        let of_replica =
            self.tree(Group::Replica).filter(move |group| self.tensor > 1 && *group != Group::Replica);
        let of_experts = self
            .tree(Group::ExpertShard)
            .filter(move |group| self.has_experts() && *group != Group::ExpertShard);
        let of_world = self.tree(Group::World).filter(|group| !group.is_world());
        let named = [Group::World, Group::Shard, Group::Replicate].into_iter();
        let named = named.chain(levels).chain(of_replica).chain(of_experts).chain(of_world);
        let instances = [Group::ReplicateInInstance, Group::Instances, Group::ExpertReplicaInInstance];
        let others = [Group::Replica, Group::Context, Group::Tensor];
        let experts = [Group::Expert, Group::ExpertShard, Group::ExpertReplica, Group::ExpertRows];
        named.chain(others).chain(experts).chain(instances)
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
            _ => Group::Replica,
        }
    }
}

/// `1 rank`, `4 ranks`, or `32 ranks (4 shards × cp 2 × tp 2 × 2 replicas)`.
impl std::fmt::Display for Mesh {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks = self.ranks();
        write!(formatter, "{ranks} rank{}", if ranks == 1 { "" } else { "s" })?;
        let Self { shards, replicas, context, tensor, .. } = *self;
        if shards == ranks && context == 1 && !self.has_experts() {
            return Ok(());
        }
        write!(formatter, " ({} shards", shards / context)?;
        for (axis, ranks) in [("cp", context), ("tp", tensor)].into_iter().filter(|(_, ranks)| *ranks > 1) {
            write!(formatter, " × {axis} {ranks}")?;
        }
        if replicas > 1 {
            write!(formatter, " × {replicas} replicas")?;
        }
        if self.instances > 1 {
            write!(formatter, " in {} optimizer instances", self.instances)?;
        }
        if self.has_experts() {
            write!(formatter, "; ep {} × ep_shard {}", self.expert, self.expert_shards)?;
            match self.size(Group::ExpertReplica) {
                1 => {}
                copies => write!(formatter, " × ep_replicate {copies}")?,
            }
        }
        formatter.write_str(")")
    }
}

/// The ranks; the replicas, the ranks that share a text and the tensor-parallel ranks where there are several;
/// experts' own axes where they have some; optimizer instances where there are several; and levels where there are
/// some.
impl Serialize for Mesh {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written {
            ranks: u32,
            #[serde(skip_serializing_if = "Option::is_none")]
            replicas: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            context: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            tensor: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            expert: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            expert_shards: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            instances: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            levels: Option<Levels>,
        }
        let replicas = (self.replicas > 1).then_some(self.replicas);
        let context = (self.context > 1).then_some(self.context);
        let tensor = (self.tensor > 1).then_some(self.tensor);
        let expert = self.has_experts().then_some(self.expert);
        let expert_shards = self.has_experts().then_some(self.expert_shards);
        let instances = (self.instances > 1).then_some(self.instances);
        let levels = Some(self.levels).filter(|levels| *levels != Levels::FLAT);
        Written { ranks: self.ranks(), replicas, context, tensor, expert, expert_shards, instances, levels }
            .serialize(serializer)
    }
}

mod experts;
mod tree;

#[cfg(test)]
mod tests;
