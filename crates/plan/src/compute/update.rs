//! The update of a custom optimizer: what it may touch.
//!
//! Laws:
//! - An optimizer gets the rank's rows of the weights of one bucket and one parameter group, or of one round of these
//!   if it takes their matrices whole: masters and what is kept beside them to update, main grads to read; besides
//!   these the vote and the hyperparameters. It gets no plane, no buffer, and no row of another rank but those that
//!   came of a whole matrix.
//! - EX-4: it requests the master of every weight of which the rank has rows.
//! - What is decided from step to step is in memory, which a captured step reads: the vote, with clip factor and step
//!   count, and the hyperparameters.

use std::ops::{Deref, Range};

use super::error::ComputeError;
use super::optimizer_base::{BoundRows, OptimizerContext, rows_of};
use super::{Optimizer, Surface};
use crate::layout::{Region, WeightLayout};
use crate::model::{Block, Hyperparameters, Placement};
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::Shape;

/// A weight that a custom optimizer updates, as far as one rank has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpdatedWeight {
    /// The weight.
    pub id: WeightId,
    /// Its name.
    pub name: String,
    /// The shape of the whole weight, as it is declared.
    pub shape: Shape,
    /// Whether the ranks of a replica share it, or each has all of it.
    pub placement: Placement,
    /// Whether the optimizer gets its matrix whole, on one of the ranks, before it updates rows:
    /// [`ParameterGroup::whole_matrix`](crate::model::ParameterGroup::whole_matrix).
    pub whole_matrix: bool,
    /// The rank's rows within the whole weight, one range after the other: none where it has no rows, and several only
    /// of a fused weight whose segments tensor parallelism cuts each by itself.
    pub row_ranges: Vec<Range<usize>>,
    /// The first of the rank's rows within the whole weight; where there are several [ranges](Self::row_ranges), the
    /// others do not follow it.
    pub first_row: usize,
    /// The rank's rows. A rank may have none; then there is nothing to update, and its master need not be requested.
    pub rows: usize,
    /// The first of the rank's columns: 0, but of a row-parallel weight where the mesh has tensor parallelism.
    pub first_column: usize,
    /// The rank's columns.
    pub columns: usize,
}

impl UpdatedWeight {
    /// The weight of `layout`, of which the rank has these blocks of these columns.
    #[must_use]
    pub fn of(
        id: WeightId,
        layout: &WeightLayout,
        blocks: impl Iterator<Item = Block>,
        columns: Range<usize>,
    ) -> Self {
        let row_ranges: Vec<_> =
            blocks.map(|block| block.first.rows..block.first.rows + block.shape.rows).collect();
        Self {
            id: WeightId::named(&layout.name, id.index()),
            name: layout.name.clone(),
            shape: layout.shard.whole(),
            placement: layout.placement,
            whole_matrix: layout.parameters.whole_matrix,
            first_row: row_ranges.first().map_or(0, |rows| rows.start),
            rows: row_ranges.iter().map(ExactSizeIterator::len).sum(),
            row_ranges,
            first_column: columns.start,
            columns: columns.len(),
        }
    }
}

/// State of one weight, bound to memory.
#[derive(Debug)]
#[doc(hidden)]
pub struct BoundState {
    pub rows: BoundRows,
    pub master: Region,
    /// The rank's rows of what was made of the whole matrix, where the optimizer takes it.
    pub transformed: Option<Region>,
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
}

impl BoundUpdate {
    pub(super) fn run<S: Surface>(
        &self,
        rank: RankId,
        surface: &S,
        optimizer: &mut dyn Optimizer<S>,
    ) -> Result<(), ComputeError> {
        self.states.iter().for_each(|state| state.rows.lent.begin());
        let states = optimizer.states();
        let base = OptimizerContext { rank, program: &self.program, vote: self.vote, states, surface };
        optimizer.update(&UpdateContext { base, bound: self })?;
        let left = |state: &&BoundState| state.rows.weight.rows > 0 && !state.rows.lent.is_marked();
        match self.states.iter().find(left) {
            None => Ok(()),
            Some(state) => Err(ComputeError::NotUpdated { weight: state.rows.weight.name.clone() }),
        }
    }

    /// The operand that begins where `region` does.
    pub(super) fn operand_at(&self, region: Region) -> String {
        let found = self.states.iter().find_map(|BoundState { rows, master, transformed }| {
            let returned = transformed.map(|rows| ("transformed rows", rows));
            let others: Vec<_> = [("master", *master)].into_iter().chain(returned).collect();
            rows.operand_at(region, &others)
        });
        found.unwrap_or_else(|| format!("the memory at byte {}", region.offset))
    }
}

/// What one update may touch, for as long as it runs. See [`Optimizer::update`].
#[derive(Debug)]
pub struct UpdateContext<'a, S: Surface> {
    base: OptimizerContext<'a, S>,
    bound: &'a BoundUpdate,
}

impl<'a, S: Surface> Deref for UpdateContext<'a, S> {
    type Target = OptimizerContext<'a, S>;

    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

impl<'a, S: Surface> UpdateContext<'a, S> {
    /// The weights to update, in the order of their ids: those of one format, placement and parameter group, or those
    /// of one round if their matrices were whole before. All others come with updates of their own, in the same step.
    pub fn weights(&self) -> impl Iterator<Item = &'a UpdatedWeight> {
        self.bound.states.iter().map(|state| &state.rows.weight)
    }

    /// The master to update, f32 `[rows, columns]`: the rank's rows.
    ///
    /// # Errors
    /// [`ComputeError::NotOfUpdate`] for a weight that is not of this update.
    pub fn master(&self, weight: WeightId) -> Result<S::Write<'a, f32>, ComputeError> {
        let state = self.bound_state(weight)?;
        state.rows.lent.mark();
        self.base.surface.write(state.master)
    }

    /// The gradient, f32 `[rows, columns]`, once it is multiplied by [`Vote::factor`](crate::op::Vote::factor): before
    /// that it is the mean over ranks and micro-batches, added up over the steps of gradient accumulation, times the
    /// loss scale, and not clipped.
    ///
    /// # Errors
    /// [`ComputeError::NotOfUpdate`] for a weight that is not of this update.
    pub fn main_grad(&self, weight: WeightId) -> Result<S::Read<'a, f32>, ComputeError> {
        self.base.main_grad_of(&self.bound_state(weight)?.rows)
    }

    /// The rank's rows of what [`Optimizer::transform`] made of the whole matrix, f32 `[rows, columns]`. On a GPU they
    /// begin where those of the weight before end, which may be a multiple of 4 bytes and no more.
    ///
    /// # Errors
    /// [`ComputeError::NoMatrix`] for a weight without [`UpdatedWeight::whole_matrix`], [`ComputeError::NotOfUpdate`]
    /// for one that is not of this update.
    pub fn transformed(&self, weight: WeightId) -> Result<S::Read<'a, f32>, ComputeError> {
        let BoundState { rows, transformed, .. } = self.bound_state(weight)?;
        let missing = || ComputeError::NoMatrix { weight: rows.weight.name.clone() };
        self.base.surface.read(transformed.ok_or_else(missing)?)
    }

    /// A list of state by the name that [`Optimizer::states`] gives it, to update; f32 `[rows, columns]`, zeros before
    /// the first step.
    ///
    /// # Errors
    /// [`ComputeError::NoState`] for a name that the optimizer does not give, [`ComputeError::NotOfUpdate`] for a
    /// weight that is not of this update.
    pub fn state(&self, weight: WeightId, name: &str) -> Result<S::Write<'a, f32>, ComputeError> {
        self.base.state_of(&self.bound_state(weight)?.rows, name)
    }

    /// What the step goes by for a weight, one value: learning rate, weight decay and betas, as set on the session
    /// for all weights or for this one, with what the weight's parameter group says.
    ///
    /// # Errors
    /// [`ComputeError::NotOfUpdate`] for a weight that is not of this update.
    pub fn hyperparameters(&self, weight: WeightId) -> Result<S::Read<'a, Hyperparameters>, ComputeError> {
        self.base.hyperparameters_of(&self.bound_state(weight)?.rows)
    }

    fn bound_state(&self, weight: WeightId) -> Result<&'a BoundState, ComputeError> {
        rows_of(&self.bound.states, weight, |state| &state.rows)
    }
}
