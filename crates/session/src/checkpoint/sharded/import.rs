//! Import of a sharded checkpoint into ranks.
//!
//! Law: a rank gets the rows it owns, judged, whatever number of ranks wrote them. What the checkpoint claims was
//! judged before.

use std::collections::HashMap;
use std::sync::Arc;

use super::index::IndexedWeight;
use super::rows_of_parts::Opened;
use super::{PartFiles, SavedParts};
use crate::checkpoint::fits_session::{CarriedClaim, Claims, WeightClaim};
use crate::checkpoint::gather_and_scatter::{Taken, delayed_here, rank_part};
use crate::checkpoint::identity;
use crate::checkpoint::ranks::{Alive, PartReader, RankPart, WeightShard};
use crate::checkpoint::state_validation::{self, ValuesOf};
use crate::checkpoint::{CheckpointError, OptimizerIdentity, StatePart};
use warpweft_base::id::RankId;
use warpweft_plan::layout::{Region, WeightLayout, Weights};
use warpweft_plan::plan::StepPlan;

/// One import.
#[derive(Debug)]
pub(crate) struct Import {
    opened: Opened,
    programs: Vec<Arc<StepPlan>>,
    restarts: bool,
    zeros: bool,
    /// What is taken for masters.
    values: StatePart,
    /// The weights that are taken; all if `None`.
    taken: Option<Taken>,
}

impl Import {
    /// Judges what the checkpoint claims.
    ///
    /// # Errors
    /// Why there is none, or how it does not fit.
    pub(crate) fn open(
        files: &PartFiles,
        programs: Vec<Arc<StepPlan>>,
        ranks: usize,
        optimizer_identity: &OptimizerIdentity,
        taken: Option<Taken>,
    ) -> Result<Self, CheckpointError> {
        let opened = Opened::open(&files.folder)?;
        let restarts = files.restarts || taken.is_some();
        let values = opened.weights_of(files.state.as_deref())?;
        let import = Self { opened, programs, restarts, zeros: files.zeros, values, taken };
        let fits = import.claims().check(&import.programs, optimizer_identity, ranks, import.taken.as_ref());
        fits.map_err(CheckpointError::unfit)?;
        Ok(import)
    }

    /// As [`Claims::thawed`].
    pub(crate) fn thawed(&self) -> Vec<String> {
        self.claims().thawed(&self.programs, self.taken.as_ref())
    }

    /// What the checkpoint says of itself.
    pub(crate) fn saved(&self) -> SavedParts {
        SavedParts::of(self.opened.index.clone())
    }

    /// The first weight that shares its scale of the tensor with other weights than when it was saved, if
    /// any. Of weights that have another format now nothing is said: their bits differ anyway.
    pub(crate) fn scaled_otherwise(&self) -> Option<String> {
        let weights = &self.programs.first()?.weights;
        let index = &self.opened.index;
        let saved: HashMap<&str, &IndexedWeight> =
            index.weights.iter().map(|weight| (weight.name.as_str(), weight)).collect();
        // The first of the weights that share a scale, in the session's order, says which ones do.
        let (mut firsts_then, mut firsts_now) = (HashMap::new(), HashMap::new());
        for (number, (weight, place)) in weights.in_files().into_iter().enumerate() {
            let layout = weights.layout(weight);
            let name = layout.name_at(place);
            let Some(saved) = saved.get(&*name) else { continue };
            if layout.frozen || saved.frozen.is_some() || saved.format != layout.format {
                continue;
            }
            let then = saved.scale_group.clone();
            let then = then.map_or(number, |group| *firsts_then.entry(group).or_insert(number));
            let now = weights.scale_group_at(weight, place);
            let now = now.map_or(number, |group| *firsts_now.entry(group).or_insert(number));
            if then != now {
                return Some(name.into_owned());
            }
        }
        None
    }

    fn claims(&self) -> Claims<'_> {
        let index = &self.opened.index;
        let weights = index.weights.iter().map(|weight| WeightClaim {
            name: &weight.name,
            shape: weight.shape(),
            lists: if self.restarts { 0 } else { usize::from(weight.lists) },
            frozen: weight.frozen.is_some(),
        });
        let carried = index.carried.iter().map(|buffer| CarriedClaim {
            name: &buffer.name,
            ranks: index.ranks as usize,
            bytes: Some(buffer.bytes),
        });
        Claims {
            optimizer_step: self.optimizer_step(),
            optimizer_identity: index.optimizer_identity.as_ref().filter(|_| !self.restarts),
            weights: weights.collect(),
            carried: (!self.zeros).then(|| carried.collect()),
        }
    }

    const fn optimizer_step(&self) -> u32 {
        if self.restarts { 0 } else { self.opened.index.optimizer_step }
    }

    /// A rank's block of one weight.
    fn shard(
        &self,
        weights: &Weights,
        layout: &WeightLayout,
        saved: &IndexedWeight,
        rank: RankId,
        alive: &Alive<'_>,
    ) -> Result<WeightShard, CheckpointError> {
        if saved.frozen.is_some() {
            let stays = WeightShard::that_stays(weights, layout, rank);
            return Ok(WeightShard { frozen: saved.frozen, ..stays });
        }
        let of_rank = Some((&layout.shard, rank));
        let name = layout.name_at(rank);
        let of = ValuesOf { weight: &name, columns: layout.shard.shape.cols, of_rank };
        let read = |part| self.opened.blocks(saved, part, layout.shard.blocks_of(rank), alive);
        let via = self.programs.first().map(|plan| plan.policy.settings.via).unwrap_or_default();
        let master = read(self.values)?;
        // Before more is read.
        state_validation::check_master(of, &master, layout.format, via).map_err(CheckpointError::unfit)?;
        let begins_anew = self.restarts || usize::from(saved.lists) < weights.lists_of(layout);
        let states = StatePart::kept(weights.lists_of(layout)).skip(1).map(|part| match begins_anew {
            true => Ok(vec![0.0; master.len()]),
            false => read(part),
        });
        let states = states.collect::<Result<Vec<_>, _>>()?;
        // A session without delayed scaling does not read it.
        let delayed = match weights.delayed(layout.bucket) {
            Some(_) => self.opened.delayed(saved, alive)?,
            None => None,
        };
        state_validation::check_beside_master(of, (weights, layout), &states, delayed.as_ref())
            .map_err(CheckpointError::unfit)?;
        let delayed = delayed.map(|given| delayed_here(&given, saved.format, layout, weights));
        Ok(WeightShard { master, states, delayed, ..WeightShard::default() })
    }
}

impl PartReader for Import {
    fn digest(&self) -> u64 {
        let taken = self.taken.as_ref().map_or(0, identity::of_taken);
        let values = match self.values {
            StatePart::Master => 0,
            StatePart::State(list) => list.index() as u64 + 1,
        };
        self.opened.digest ^ taken ^ values << 2 ^ u64::from(self.restarts) << 1 ^ u64::from(self.zeros)
    }

    fn read(&self, rank: RankId, alive: &Alive<'_>) -> Result<RankPart, CheckpointError> {
        let index = &self.opened.index;
        let saved: HashMap<&str, &IndexedWeight> =
            index.weights.iter().map(|weight| (weight.name.as_str(), weight)).collect();
        let shard = |weights: &Weights, layout: &WeightLayout| {
            let name = layout.name_at(rank);
            let saved = saved.get(&*name);
            let saved =
                saved.ok_or_else(|| CheckpointError::unfit(format!("`{name}` is not in the checkpoint")))?;
            self.shard(weights, layout, saved, rank, alive)
        };
        let buffer = |name: &str, region: Region| {
            let saved = index.carried.iter().find(|buffer| buffer.name == name).filter(|_| !self.zeros);
            saved.map_or_else(|| Ok(vec![0; region.bytes]), |buffer| self.opened.carried(buffer, rank, alive))
        };
        let part = rank_part(&self.programs, rank, self.taken.as_ref(), shard, buffer)?;
        Ok(RankPart { optimizer_step: self.optimizer_step(), ..part })
    }
}

/// What a process hands its ranks that refuses: others wait for their word.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) CheckpointError);

impl PartReader for Refused {
    fn digest(&self) -> u64 {
        0
    }

    fn read(&self, _: RankId, _: &Alive<'_>) -> Result<RankPart, CheckpointError> {
        Err(self.0.clone())
    }
}
