//! What the trainer's own rule of updates may touch, in place of Adam.
//!
//! Laws:
//! - A rule gets the rank's rows of the weights of one bucket and one parameter group, or of one round of these if it
//!   needs their matrices whole: masters and what is kept beside them to update, main grads to read; besides these
//!   the vote and the learning rate. It gets no plane, no buffer, and no row of another rank but those that came of a
//!   whole matrix.
//! - EX-4: it asks for the master of every weight of which the rank has rows.
//! - What is decided from step to step is in memory, which a recorded step reads: the vote, with clip factor and step
//!   count, and the learning rate.

use super::error::ComputeError;
use super::lent::Lent;
use super::{Compute, Surface};
use crate::layout::{Region, WeightLayout};
use crate::model::{Placement, ShardRows};
use crate::op::Vote;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::Shape;

/// A weight that a rule updates, as far as one rank has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpdatedWeight {
    /// The weight.
    pub id: WeightId,
    /// Its name.
    pub name: String,
    /// The shape of the whole weight.
    pub shape: Shape,
    /// Whether the ranks of a replica share it, or each has all of it.
    pub placement: Placement,
    /// Whether the rule gets its matrix whole, on one of the ranks, before it updates rows:
    /// [`ParameterGroup::whole_matrix`](crate::model::ParameterGroup::whole_matrix).
    pub whole_matrix: bool,
    /// The first of the rank's rows within the whole weight.
    pub first_row: usize,
    /// The rank's rows. A rank may have none; then there is nothing to update, and its master need not be asked for.
    pub rows: usize,
    /// Columns of the weight.
    pub columns: usize,
}

impl UpdatedWeight {
    /// The weight of `layout`, of which the rank has `rows`.
    #[must_use]
    pub fn of(id: WeightId, layout: &WeightLayout, rows: ShardRows) -> Self {
        Self {
            id: WeightId::named(&layout.name, id.index()),
            name: layout.name.clone(),
            shape: layout.shard.shape,
            placement: layout.placement,
            whole_matrix: layout.parameters.whole_matrix,
            first_row: rows.begin,
            rows: rows.rows,
            columns: layout.shard.shape.cols,
        }
    }
}

/// State of one weight, bound to memory.
#[derive(Debug)]
#[doc(hidden)]
pub struct BoundState {
    pub weight: UpdatedWeight,
    pub master: Region,
    pub kept: Vec<Region>,
    pub main_grad: Region,
    /// The rank's rows of what was made of the whole matrix, where the rule asks for it.
    pub transformed: Option<Region>,
    pub lent: Lent,
}

/// An update bound to the arena.
#[derive(Debug)]
#[doc(hidden)]
pub struct BoundUpdate {
    pub program: String,
    pub name: String,
    /// In the order of the weights' ids.
    pub states: Vec<BoundState>,
    pub vote: Region,
    pub learning_rate: Region,
    pub learning_rate_scale: f32,
    pub weight_decay: f32,
}

impl BoundUpdate {
    pub(super) fn run<S: Surface>(
        &self,
        rank: RankId,
        surface: &S,
        closures: &mut dyn Compute<S>,
    ) -> Result<(), ComputeError> {
        self.states.iter().for_each(|state| state.lent.begin());
        closures.update(&UpdateContext { rank, bound: self, surface })?;
        match self.states.iter().find(|state| state.weight.rows > 0 && !state.lent.is_marked()) {
            None => Ok(()),
            Some(state) => Err(ComputeError::NotUpdated { weight: state.weight.name.clone() }),
        }
    }

    /// The operand that begins where `region` does.
    pub(super) fn operand_at(&self, region: Region) -> String {
        let begins = |(_, part): &(&str, &Region)| part.bytes > 0 && part.offset == region.offset;
        for BoundState { weight, master, kept, main_grad, transformed, .. } in &self.states {
            let lists = ["first state", "second state"].into_iter().zip(kept);
            let rows = transformed.iter().map(|rows| ("transformed rows", rows));
            let own = [("master", master), ("main grad", main_grad)];
            let mut parts = own.into_iter().chain(lists).chain(rows);
            if let Some((what, _)) = parts.find(begins) {
                return format!("the {what} of `{}`", weight.name);
            }
        }
        format!("the memory at byte {}", region.offset)
    }
}

/// What one update may touch, for as long as it runs. See [`Compute::update`].
#[derive(Debug)]
pub struct UpdateContext<'a, S: Surface> {
    rank: RankId,
    bound: &'a BoundUpdate,
    surface: &'a S,
}

impl<'a, S: Surface> UpdateContext<'a, S> {
    /// The rank whose rows are updated.
    #[must_use]
    pub fn rank(&self) -> RankId {
        self.rank
    }

    /// The name of the program whose step it is.
    #[must_use]
    pub fn program(&self) -> &'a str {
        &self.bound.program
    }

    /// The weights to update, in the order of their ids: those of one format, placement and parameter group, or those
    /// of one round if their matrices were whole before. All others come with updates of their own, in the same step.
    pub fn weights(&self) -> impl Iterator<Item = &'a UpdatedWeight> {
        self.bound.states.iter().map(|state| &state.weight)
    }

    /// The master to update, f32 `[rows, columns]`: the rank's rows.
    ///
    /// # Errors
    /// [`ComputeError::NotOfUpdate`] for a weight that is not of this update.
    pub fn master(&self, weight: WeightId) -> Result<S::Write<'a, f32>, ComputeError> {
        let state = self.state(weight)?;
        state.lent.mark();
        self.surface.write(state.master)
    }

    /// The gradient, f32 `[rows, columns]`, once it is multiplied by [`Vote::factor`]: before that it is the mean over
    /// ranks and micro-batches, added up over accumulated steps, times the loss
    /// scale, and not clipped.
    ///
    /// # Errors
    /// [`ComputeError::NotOfUpdate`] for a weight that is not of this update.
    pub fn main_grad(&self, weight: WeightId) -> Result<S::Read<'a, f32>, ComputeError> {
        self.surface.read(self.state(weight)?.main_grad)
    }

    /// The rank's rows of what [`Compute::transform`] made of the whole matrix, f32 `[rows, columns]`. On a GPU they
    /// begin where those of the weight before end, which may be a multiple of 4 bytes and no more.
    ///
    /// # Errors
    /// [`ComputeError::NoMatrix`] for a weight without [`UpdatedWeight::whole_matrix`], [`ComputeError::NotOfUpdate`]
    /// for one that is not of this update.
    pub fn transformed(&self, weight: WeightId) -> Result<S::Read<'a, f32>, ComputeError> {
        let BoundState { weight, transformed, .. } = self.state(weight)?;
        let missing = || ComputeError::NoMatrix { weight: weight.name.clone() };
        self.surface.read(transformed.ok_or_else(missing)?)
    }

    /// The first list that is kept beside the master, to update; f32 `[rows, columns]`, zeros before the first step.
    ///
    /// # Errors
    /// [`ComputeError::NoState`] if `optimizer.own_states` asks for no list, [`ComputeError::NotOfUpdate`] for a weight
    /// that is not of this update.
    pub fn first_state(&self, weight: WeightId) -> Result<S::Write<'a, f32>, ComputeError> {
        self.kept(weight, 0)
    }

    /// The second list, like [`UpdateContext::first_state`].
    ///
    /// # Errors
    /// [`ComputeError::NoState`] unless `optimizer.own_states` is 2, [`ComputeError::NotOfUpdate`] for a weight that is
    /// not of this update.
    pub fn second_state(&self, weight: WeightId) -> Result<S::Write<'a, f32>, ComputeError> {
        self.kept(weight, 1)
    }

    /// The verdict over the step, one value: whether it [skips](Vote::skips), the [factor](Vote::factor) on
    /// gradients, and how many steps the optimizer has taken with this one.
    ///
    /// On the CPU a rule is not called in a step that is skipped. On a GPU it is, unless a closure of this very
    /// rank has failed, because of all else the host does not know then: its kernels read the vote and leave
    /// everything as it is.
    ///
    /// # Errors
    /// What the surface says.
    pub fn vote(&self) -> Result<S::Read<'a, Vote>, ComputeError> {
        self.surface.read(self.bound.vote)
    }

    /// The learning rate of the step, one f32, to be multiplied by [`UpdateContext::learning_rate_scale`].
    ///
    /// # Errors
    /// What the surface says.
    pub fn learning_rate(&self) -> Result<S::Read<'a, f32>, ComputeError> {
        self.surface.read(self.bound.learning_rate)
    }

    /// What the weights' parameter group has as a factor on the learning rate; constant over steps.
    #[must_use]
    pub fn learning_rate_scale(&self) -> f32 {
        self.bound.learning_rate_scale
    }

    /// The weight decay λ of the weights: that of their parameter group, or `optimizer.weight_decay`; constant over
    /// steps.
    #[must_use]
    pub fn weight_decay(&self) -> f32 {
        self.bound.weight_decay
    }

    /// What the backend hands to closures besides memory: the stream of the compute lane on a GPU, `()` on the CPU.
    #[must_use]
    pub fn handles(&self) -> &'a S::Handles {
        self.surface.handles()
    }

    fn kept(&self, weight: WeightId, list: usize) -> Result<S::Write<'a, f32>, ComputeError> {
        let BoundState { weight, kept, .. } = self.state(weight)?;
        match kept.get(list) {
            Some(region) => self.surface.write(*region),
            None => {
                let (weight, kept) = (weight.name.clone(), kept.len());
                Err(ComputeError::NoState { weight, wanted: list + 1, kept })
            }
        }
    }

    fn state(&self, weight: WeightId) -> Result<&'a BoundState, ComputeError> {
        let found = self.bound.states.binary_search_by_key(&weight, |state| state.weight.id);
        let state = found.ok().map(|at| &self.bound.states[at]);
        state.filter(|state| weight.is_named(&state.weight.name)).ok_or(ComputeError::NotOfUpdate { weight })
    }
}
