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
use crate::checkpoint::gather_and_scatter::{Taken, delayed_here};
use crate::checkpoint::identity;
use crate::checkpoint::ranks::{Alive, MasterRows, PartReader, RankPart, WeightShard};
use crate::checkpoint::state_validation;
use crate::checkpoint::{CheckpointError, OptimizerIdentity, StatePart};
use warpweft_base::id::RankId;
use warpweft_format::DelayedState;
use warpweft_plan::layout::{WeightLayout, Weights};
use warpweft_plan::plan::{StepPlan, carried};

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
        let fits = match &import.taken {
            None => import.claims().check(&import.programs, optimizer_identity, ranks),
            Some(taken) => import.claims().check_taken(&import.programs, taken),
        };
        fits.map_err(unfit)?;
        Ok(import)
    }

    /// As [`Claims::thawed`].
    pub(crate) fn thawed(&self) -> Vec<String> {
        let plan = self.programs.first().filter(|_| self.taken.is_none());
        plan.map_or_else(Vec::new, |plan| self.claims().thawed(&plan.weights))
    }

    /// What the checkpoint says of itself.
    pub(crate) fn saved(&self) -> SavedParts {
        SavedParts::of(self.opened.index.clone())
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

    /// A rank's rows of one weight.
    fn shard(
        &self,
        weights: &Weights,
        layout: &WeightLayout,
        saved: &IndexedWeight,
        rank: RankId,
        alive: &Alive<'_>,
    ) -> Result<WeightShard, CheckpointError> {
        if saved.frozen.is_some() {
            let stays = WeightShard::that_stays(layout, weights.lists_of(layout), rank);
            return Ok(WeightShard { frozen: saved.frozen, ..stays });
        }
        let wanted = layout.shard.rows_of(rank);
        let rows =
            MasterRows { weight: &layout.name, first_row: wanted.begin, columns: layout.shard.shape.cols };
        let read = |part| self.opened.rows(saved, part, wanted, alive);
        let via = self.programs.first().map(|plan| plan.policy.settings.via).unwrap_or_default();
        let master = read(self.values)?;
        state_validation::check_master(rows, &master, layout.format, via).map_err(unfit)?;
        let begins_anew = self.restarts || usize::from(saved.lists) < weights.lists_of(layout);
        let states = StatePart::kept(weights.lists_of(layout)).skip(1).map(|part| match begins_anew {
            true => Ok(vec![0.0; master.len()]),
            false => read(part),
        });
        let states = states.collect::<Result<Vec<_>, _>>()?;
        state_validation::check_states(rows, &states, weights.state).map_err(unfit)?;
        let delayed = self.delayed(weights, layout, saved, alive)?;
        Ok(WeightShard { master, states, delayed, ..WeightShard::default() })
    }

    fn delayed(
        &self,
        weights: &Weights,
        layout: &WeightLayout,
        saved: &IndexedWeight,
        alive: &Alive<'_>,
    ) -> Result<Option<DelayedState>, CheckpointError> {
        // A session without delayed scaling ignores it.
        if weights.delayed(layout.bucket).is_none() {
            return Ok(None);
        }
        let Some(state) = self.opened.delayed(saved, alive)? else {
            return Ok(None);
        };
        state_validation::check_delayed(&layout.name, &state).map_err(unfit)?;
        Ok(Some(delayed_here(&state, saved.format, layout, weights)))
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
        let mut part = RankPart { optimizer_step: self.optimizer_step(), ..RankPart::default() };
        let index = &self.opened.index;
        let saved: HashMap<&str, &IndexedWeight> =
            index.weights.iter().map(|weight| (weight.name.as_str(), weight)).collect();
        let Some(plan) = self.programs.first() else { return Ok(part) };
        for layout in &plan.weights.layouts {
            if self.taken.as_ref().is_some_and(|taken| !taken.contains(&layout.name)) {
                let lists = plan.weights.lists_of(layout);
                part.shards.push(WeightShard::that_stays(layout, lists, rank));
                continue;
            }
            let saved = saved.get(layout.name.as_str());
            let saved = saved.ok_or_else(|| unfit(format!("`{}` is not in the checkpoint", layout.name)))?;
            part.shards.push(self.shard(&plan.weights, layout, saved, rank, alive)?);
        }
        // Without them, those of the session stay.
        let buffers = if self.taken.is_none() { carried(&self.programs) } else { Vec::new() };
        for (name, region) in buffers {
            let saved = index.carried.iter().find(|buffer| buffer.name == name).filter(|_| !self.zeros);
            let bytes = saved.map(|buffer| self.opened.carried(buffer, rank, alive)).transpose()?;
            part.carried.push(bytes.unwrap_or_else(|| vec![0; region.bytes]));
        }
        Ok(part)
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

fn unfit(reason: String) -> CheckpointError {
    CheckpointError::Unfit { reason }
}
