//! Whole-matrix optimizers such as Muon: the contexts of their parts.
//!
//! Laws:
//! - Such an optimizer has three parts. It *prepares* the rank's rows of what each matrix is made of; the library
//!   brings the rows of one matrix together on one rank, where it is *transformed*; the library brings the rows back,
//!   and the optimizer *updates* by them ([`UpdateContext::transformed`](super::UpdateContext::transformed)).
//! - The first part gets main grads to read and what is kept beside masters to update, the second one matrix and
//!   nothing else. Neither gets a master, and neither a plane, a buffer, or a row of another rank that was not
//!   prepared.
//! - EX-4: the first part requests the rows of every weight of which the rank has some, the second for what becomes of
//!   its matrix. Both are spoiled first if the plan is bound so, and nothing of them may be left as it was.

use std::ops::Deref;

use super::error::ComputeError;
use super::filled::refuse_left_out;
use super::lent::Lent;
use super::optimizer_base::{BoundRows, OptimizerContext, rows_of};
use super::update::UpdatedWeight;
use super::{Optimizer, Surface};
use crate::layout::Region;
use crate::model::Hyperparameters;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::ElementType;

/// Rows of one weight to be prepared, bound to memory.
#[derive(Debug)]
#[doc(hidden)]
pub struct BoundPrepared {
    pub rows: BoundRows,
    pub prepared: Region,
}

/// The first part of an optimizer, bound to the arena.
#[derive(Debug)]
#[doc(hidden)]
pub struct BoundPreparation {
    pub program: String,
    pub name: String,
    /// In the order of the weights' ids.
    pub rows: Vec<BoundPrepared>,
    pub vote: Region,
    /// Whether rows are spoiled before they are prepared.
    pub spoiled: bool,
}

/// The second part of an optimizer, bound to the arena.
#[derive(Debug)]
#[doc(hidden)]
pub struct BoundTransformation {
    pub program: String,
    pub name: String,
    /// Absent on a rank for which the round has no matrix.
    pub matrix: Option<BoundMatrix>,
    pub vote: Region,
    /// Whether the result is spoiled before the matrix is transformed.
    pub spoiled: bool,
}

/// A matrix to be transformed.
#[derive(Debug)]
#[doc(hidden)]
pub struct BoundMatrix {
    pub weight: UpdatedWeight,
    pub from: Region,
    pub to: Region,
    pub lent: Lent,
}

impl BoundPreparation {
    pub(super) fn run<S: Surface>(
        &self,
        rank: RankId,
        surface: &S,
        optimizer: &mut dyn Optimizer<S>,
    ) -> Result<(), ComputeError> {
        self.rows.iter().for_each(|one| one.rows.lent.begin());
        let mut spoiled = self.rows.iter().filter(|_| self.spoiled);
        spoiled.clone().try_for_each(|one| surface.spoil(one.prepared))?;
        let states = optimizer.states();
        let base = OptimizerContext { rank, program: &self.program, vote: self.vote, states, surface };
        optimizer.prepare(&PrepareContext { base, bound: self })?;
        let left = |one: &&BoundPrepared| one.rows.weight.rows > 0 && !one.rows.lent.is_marked();
        if let Some(one) = self.rows.iter().find(left) {
            return Err(ComputeError::NotPrepared { weight: one.rows.weight.name.clone() });
        }
        spoiled.try_for_each(|one| {
            let said = || (self.name.clone(), self.operand_at(one.prepared));
            refuse_left_out(surface, one.prepared, ElementType::F32, said)
        })
    }

    /// The operand that begins where `region` does.
    pub(super) fn operand_at(&self, region: Region) -> String {
        let at = |one: &BoundPrepared| one.rows.operand_at(region, &[("prepared rows", one.prepared)]);
        self.rows.iter().find_map(at).unwrap_or_else(|| format!("the memory at byte {}", region.offset))
    }
}

impl BoundTransformation {
    pub(super) fn run<S: Surface>(
        &self,
        rank: RankId,
        surface: &S,
        optimizer: &mut dyn Optimizer<S>,
    ) -> Result<(), ComputeError> {
        let Some(matrix) = &self.matrix else { return Ok(()) };
        matrix.lent.begin();
        if self.spoiled {
            surface.spoil(matrix.to)?;
        }
        let states = optimizer.states();
        let base = OptimizerContext { rank, program: &self.program, vote: self.vote, states, surface };
        optimizer.transform(&TransformContext { base, matrix })?;
        if !matrix.lent.is_marked() {
            return Err(ComputeError::NotTransformed { weight: matrix.weight.name.clone() });
        }
        if self.spoiled {
            let said = || (self.name.clone(), self.operand_at(matrix.to));
            refuse_left_out(surface, matrix.to, ElementType::F32, said)?;
        }
        Ok(())
    }

    /// The operand that begins where `region` does.
    pub(super) fn operand_at(&self, region: Region) -> String {
        match &self.matrix {
            Some(matrix) if matrix.from.offset == region.offset => {
                format!("the matrix of `{}`", matrix.weight.name)
            }
            Some(matrix) if matrix.to.offset == region.offset => {
                format!("the transformed matrix of `{}`", matrix.weight.name)
            }
            _ => format!("the memory at byte {}", region.offset),
        }
    }
}

/// What the first part of an optimizer may touch, for as long as it runs. See [`Optimizer::prepare`].
#[derive(Debug)]
pub struct PrepareContext<'a, S: Surface> {
    base: OptimizerContext<'a, S>,
    bound: &'a BoundPreparation,
}

impl<'a, S: Surface> Deref for PrepareContext<'a, S> {
    type Target = OptimizerContext<'a, S>;

    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

impl<'a, S: Surface> PrepareContext<'a, S> {
    /// The weights whose rows to prepare, in the order of their ids: those of one round.
    pub fn weights(&self) -> impl Iterator<Item = &'a UpdatedWeight> {
        self.bound.rows.iter().map(|one| &one.rows.weight)
    }

    /// The gradient, f32 `[rows, columns]`, as [`UpdateContext::main_grad`](super::UpdateContext::main_grad) has it.
    ///
    /// # Errors
    /// [`ComputeError::NotOfUpdate`] for a weight that is not of this round.
    pub fn main_grad(&self, weight: WeightId) -> Result<S::Read<'a, f32>, ComputeError> {
        self.base.main_grad_of(&self.bound_rows(weight)?.rows)
    }

    /// What the step goes by for a weight, as [`UpdateContext::hyperparameters`](super::UpdateContext::hyperparameters)
    /// has it.
    ///
    /// # Errors
    /// [`ComputeError::NotOfUpdate`] for a weight that is not of this round.
    pub fn hyperparameters(&self, weight: WeightId) -> Result<S::Read<'a, Hyperparameters>, ComputeError> {
        self.base.hyperparameters_of(&self.bound_rows(weight)?.rows)
    }

    /// A list of state by its name, as [`UpdateContext::state`](super::UpdateContext::state) has it.
    ///
    /// # Errors
    /// [`ComputeError::NoState`] for a name that the optimizer does not give, [`ComputeError::NotOfUpdate`] for a
    /// weight that is not of this round.
    pub fn state(&self, weight: WeightId, name: &str) -> Result<S::Write<'a, f32>, ComputeError> {
        self.base.state_of(&self.bound_rows(weight)?.rows, name)
    }

    /// The rank's rows of the matrix that is to be made whole, to overwrite; f32 `[rows, columns]`. On a GPU they begin
    /// where those of the weight before end, which may be a multiple of 4 bytes and no more.
    ///
    /// # Errors
    /// [`ComputeError::NotOfUpdate`] for a weight that is not of this round.
    pub fn prepared(&self, weight: WeightId) -> Result<S::Write<'a, f32>, ComputeError> {
        let one = self.bound_rows(weight)?;
        one.rows.lent.mark();
        self.base.surface.write(one.prepared)
    }

    fn bound_rows(&self, weight: WeightId) -> Result<&'a BoundPrepared, ComputeError> {
        rows_of(&self.bound.rows, weight, |one| &one.rows)
    }
}

/// What the second part of an optimizer may touch, for as long as it runs. See [`Optimizer::transform`].
#[derive(Debug)]
pub struct TransformContext<'a, S: Surface> {
    base: OptimizerContext<'a, S>,
    matrix: &'a BoundMatrix,
}

impl<'a, S: Surface> Deref for TransformContext<'a, S> {
    type Target = OptimizerContext<'a, S>;

    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

impl<'a, S: Surface> TransformContext<'a, S> {
    /// The weight whose matrix it is. Its `first_row` is 0, and its `rows` are all rows.
    #[must_use]
    pub fn weight(&self) -> &'a UpdatedWeight {
        &self.matrix.weight
    }

    /// What all ranks prepared, f32 `[rows, columns]`.
    ///
    /// # Errors
    /// What the surface says.
    pub fn matrix(&self) -> Result<S::Read<'a, f32>, ComputeError> {
        self.base.surface.read(self.matrix.from)
    }

    /// What becomes of it, to overwrite; f32 `[rows, columns]`.
    ///
    /// # Errors
    /// What the surface says.
    pub fn transformed(&self) -> Result<S::Write<'a, f32>, ComputeError> {
        self.matrix.lent.mark();
        self.base.surface.write(self.matrix.to)
    }
}
