//! Compares replicas bit for bit.
//!
//! Law: masters and what is kept beside them are compared bit for bit, by digests: those of a sharded weight over
//! the ranks at one place of all replicas, or where replicas have slices at one place of all optimizer instances,
//! those of a replicated weight over all ranks. Nothing is changed, and every rank finds the same. Planes are
//! compared where they are in the place of a master, of frozen weights; those of weights that train follow from the
//! masters in every step.

use super::barrier::{Barrier, Work};
use super::stored_state::StoredState;
use super::{ExecError, Handover, Rank};
use crate::checkpoint::StatePart;
use warpweft_backend::Backend;
use warpweft_base::digest::Digest;
use warpweft_base::id::{RankId, WeightId};
use warpweft_plan::model::{Group, Placement};

/// Bytes between two signs of life: a fraction of a second's work.
const PIECE: usize = 64 << 20;

/// Two ranks that hold other values of the same rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unequal {
    /// Of which weight.
    pub weight: WeightId,
    /// Which list.
    pub part: StatePart,
    /// The first rank of the group.
    pub first: RankId,
    /// The first one that is unlike it.
    pub other: RankId,
}

/// A list that others hold too.
struct Copied {
    weight: WeightId,
    part: StatePart,
    group: Group,
    digest: u64,
}

impl<B: Backend> Rank<B> {
    /// Leaves in `handover` the first list, in the order of weights, of which two ranks hold other values.
    ///
    /// # Errors
    /// What the backend refuses, and the end of the world.
    pub fn compare_replicas(&mut self, handover: &mut Handover) -> Result<(), ExecError> {
        handover.part.unequal = None;
        let barrier = Barrier::new(&self.world, self.id(), Work::ComparesReplicas);
        let copied = self.copied(&barrier)?;
        for group in [Group::Replicate, Group::ExpertReplica, Group::Instances, Group::World] {
            let of_group = || copied.iter().filter(|list| list.group == group);
            // All of them at once, and one by one only where they differ, which every rank sees.
            let mut all = Digest::default();
            of_group().for_each(|list| all.add(&list.digest.to_le_bytes()));
            if self.unlike(&barrier, all.short(), group)?.is_none() {
                continue;
            }
            for Copied { weight, part, digest, .. } in of_group() {
                if let Some([first, other]) = self.unlike(&barrier, *digest, group)? {
                    handover.part.unequal = Some(Unequal { weight: *weight, part: *part, first, other });
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The lists of the rank that other ranks hold too: the same ones on every rank.
    fn copied(&self, barrier: &Barrier<'_>) -> Result<Vec<Copied>, ExecError> {
        let weights = &self.prologue.plan.weights;
        let mut copied = Vec::new();
        for (number, layout) in weights.layouts.iter().enumerate() {
            let group = match layout.placement {
                Placement::Sharded => layout.shard.copies(),
                Placement::Replicated => Group::World,
            };
            if weights.mesh.size(group) == 1 {
                continue;
            }
            let weight = WeightId::at(number);
            if layout.is_planes_alone() {
                let (part, sum) = (StatePart::Master, self.sum_of_tiles(weight, &|| barrier.alive())?);
                let scale = self.tensor_scale(weight)?.to_bits().to_le_bytes();
                let digest = Digest::from_iter([&sum.to_le_bytes()[..], &scale]).short();
                copied.push(Copied { weight, part, group, digest });
                continue;
            }
            for part in StatePart::kept(weights.lists_of(layout)) {
                let values = self.rows(weight, part)?;
                let mut digest = Digest::default();
                for piece in bytemuck::cast_slice::<f32, u8>(&values).chunks(PIECE) {
                    barrier.alive()?;
                    digest.more(piece);
                }
                copied.push(Copied { weight, part, group, digest: digest.short() });
            }
        }
        Ok(copied)
    }

    /// The first rank that is unlike the first of its group, after that one: of all such groups, so every rank gets
    /// the same.
    fn unlike(
        &self,
        barrier: &Barrier<'_>,
        own: u64,
        group: Group,
    ) -> Result<Option<[RankId; 2]>, ExecError> {
        let told = barrier.agree(Ok(own))?;
        let told = told.map_err(|(other, reason)| ExecError::World {
            rank: self.id(),
            reason: format!("{other} does not compare replicas: {reason}"),
        })?;
        let mesh = self.prologue.plan.weights.mesh;
        let first_of = |rank: RankId| mesh.members(rank, group).next().unwrap_or(rank);
        let pairs = mesh.iter().map(|rank| [first_of(rank), rank]);
        // A rank that is driven alone, like the simulator's, gets no report of others.
        let differ = |pair: &[RankId; 2]| {
            let [first, other] = pair.map(|rank| told.get(rank.index()));
            first.zip(other).is_some_and(|(first, other)| first != other)
        };
        Ok({ pairs }.find(differ))
    }
}
