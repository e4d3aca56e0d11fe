//! What the trainer's own rule of updates may touch where it needs whole matrices.
//!
//! Laws:
//! - Such a rule has three parts. It *prepares* the rank's rows of what each matrix is made of; the library brings the
//!   rows of one matrix together on one rank, where the rule *transforms* it; the library brings the rows back, and the
//!   rule *updates* by them ([`UpdateContext::transformed`](super::UpdateContext::transformed)).
//! - The first part gets main grads to read and what is kept beside masters to update, the second one matrix and
//!   nothing else. Neither gets a master, and neither a plane, a buffer, or a row of another rank that was not
//!   prepared.
//! - EX-4: the first part asks for the rows of every weight of which the rank has some, the second for what becomes of
//!   its matrix. Both are spoiled first if the plan is bound so, and nothing of them may be left as it was.

use super::error::ComputeError;
use super::filled::refuse_left_out;
use super::lent::Lent;
use super::update::UpdatedWeight;
use super::{Compute, Surface};
use crate::layout::Region;
use crate::op::Vote;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::ElementType;

/// Rows of one weight to be prepared, bound to memory.
#[derive(Debug)]
#[doc(hidden)]
pub struct BoundRows {
    pub weight: UpdatedWeight,
    pub kept: Vec<Region>,
    pub main_grad: Region,
    pub prepared: Region,
    pub lent: Lent,
}

/// The first part of a rule, bound to the arena.
#[derive(Debug)]
#[doc(hidden)]
pub struct BoundPreparation {
    pub program: String,
    pub name: String,
    /// In the order of the weights' ids.
    pub rows: Vec<BoundRows>,
    pub vote: Region,
    /// Whether rows are spoiled before they are prepared.
    pub spoiled: bool,
}

/// The second part of a rule, bound to the arena.
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
        closures: &mut dyn Compute<S>,
    ) -> Result<(), ComputeError> {
        self.rows.iter().for_each(|rows| rows.lent.begin());
        let mut spoiled = self.rows.iter().filter(|_| self.spoiled);
        spoiled.clone().try_for_each(|rows| surface.spoil(rows.prepared))?;
        closures.prepare(&PrepareContext { rank, bound: self, surface })?;
        if let Some(rows) = self.rows.iter().find(|rows| rows.weight.rows > 0 && !rows.lent.is_marked()) {
            return Err(ComputeError::NotPrepared { weight: rows.weight.name.clone() });
        }
        spoiled.try_for_each(|rows| {
            let said = || (self.name.clone(), self.operand_at(rows.prepared));
            refuse_left_out(surface, rows.prepared, ElementType::F32, said)
        })
    }

    /// The operand that begins where `region` does.
    pub(super) fn operand_at(&self, region: Region) -> String {
        let begins = |(_, part): &(&str, &Region)| part.bytes > 0 && part.offset == region.offset;
        for BoundRows { weight, kept, main_grad, prepared, .. } in &self.rows {
            let lists = ["first state", "second state"].into_iter().zip(kept);
            let mut parts = [("prepared rows", prepared), ("main grad", main_grad)].into_iter().chain(lists);
            if let Some((what, _)) = parts.find(begins) {
                return format!("the {what} of `{}`", weight.name);
            }
        }
        format!("the memory at byte {}", region.offset)
    }
}

impl BoundTransformation {
    pub(super) fn run<S: Surface>(
        &self,
        rank: RankId,
        surface: &S,
        closures: &mut dyn Compute<S>,
    ) -> Result<(), ComputeError> {
        let Some(matrix) = &self.matrix else { return Ok(()) };
        matrix.lent.begin();
        if self.spoiled {
            surface.spoil(matrix.to)?;
        }
        closures.transform(&TransformContext { rank, bound: self, matrix, surface })?;
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

/// What the first part of a rule may touch, for as long as it runs. See [`Compute::prepare`].
#[derive(Debug)]
pub struct PrepareContext<'a, S: Surface> {
    rank: RankId,
    bound: &'a BoundPreparation,
    surface: &'a S,
}

impl<'a, S: Surface> PrepareContext<'a, S> {
    /// The rank whose rows are prepared.
    #[must_use]
    pub fn rank(&self) -> RankId {
        self.rank
    }

    /// The name of the program whose step it is.
    #[must_use]
    pub fn program(&self) -> &'a str {
        &self.bound.program
    }

    /// The weights whose rows to prepare, in the order of their ids: those of one round.
    pub fn weights(&self) -> impl Iterator<Item = &'a UpdatedWeight> {
        self.bound.rows.iter().map(|rows| &rows.weight)
    }

    /// The gradient, f32 `[rows, columns]`, as [`UpdateContext::main_grad`](super::UpdateContext::main_grad) has it.
    ///
    /// # Errors
    /// [`ComputeError::NotOfUpdate`] for a weight that is not of this round.
    pub fn main_grad(&self, weight: WeightId) -> Result<S::Read<'a, f32>, ComputeError> {
        self.surface.read(self.rows(weight)?.main_grad)
    }

    /// The first list that is kept beside the master, to update; f32 `[rows, columns]`, zeros before the first step.
    ///
    /// # Errors
    /// [`ComputeError::NoState`] if `optimizer.own_states` asks for no list, [`ComputeError::NotOfUpdate`] for a weight
    /// that is not of this round.
    pub fn first_state(&self, weight: WeightId) -> Result<S::Write<'a, f32>, ComputeError> {
        self.kept(weight, 0)
    }

    /// The second list, like [`PrepareContext::first_state`].
    ///
    /// # Errors
    /// [`ComputeError::NoState`] unless `optimizer.own_states` is 2, [`ComputeError::NotOfUpdate`] for a weight that is
    /// not of this round.
    pub fn second_state(&self, weight: WeightId) -> Result<S::Write<'a, f32>, ComputeError> {
        self.kept(weight, 1)
    }

    /// The rank's rows of the matrix that is to be made whole, to overwrite; f32 `[rows, columns]`. On a GPU they begin
    /// where those of the weight before end, which may be a multiple of 4 bytes and no more.
    ///
    /// # Errors
    /// [`ComputeError::NotOfUpdate`] for a weight that is not of this round.
    pub fn prepared(&self, weight: WeightId) -> Result<S::Write<'a, f32>, ComputeError> {
        let rows = self.rows(weight)?;
        rows.lent.mark();
        self.surface.write(rows.prepared)
    }

    /// The verdict over the step, as [`UpdateContext::vote`](super::UpdateContext::vote) has it.
    ///
    /// # Errors
    /// What the surface says.
    pub fn vote(&self) -> Result<S::Read<'a, Vote>, ComputeError> {
        self.surface.read(self.bound.vote)
    }

    /// What the backend hands to closures besides memory: the stream of the compute lane on a GPU, `()` on the CPU.
    #[must_use]
    pub fn handles(&self) -> &'a S::Handles {
        self.surface.handles()
    }

    fn kept(&self, weight: WeightId, list: usize) -> Result<S::Write<'a, f32>, ComputeError> {
        let BoundRows { weight, kept, .. } = self.rows(weight)?;
        match kept.get(list) {
            Some(region) => self.surface.write(*region),
            None => {
                let (weight, kept) = (weight.name.clone(), kept.len());
                Err(ComputeError::NoState { weight, wanted: list + 1, kept })
            }
        }
    }

    fn rows(&self, weight: WeightId) -> Result<&'a BoundRows, ComputeError> {
        let found = self.bound.rows.binary_search_by_key(&weight, |rows| rows.weight.id);
        let rows = found.ok().map(|at| &self.bound.rows[at]);
        rows.filter(|rows| weight.is_named(&rows.weight.name)).ok_or(ComputeError::NotOfUpdate { weight })
    }
}

/// What the second part of a rule may touch, for as long as it runs. See [`Compute::transform`].
#[derive(Debug)]
pub struct TransformContext<'a, S: Surface> {
    rank: RankId,
    bound: &'a BoundTransformation,
    matrix: &'a BoundMatrix,
    surface: &'a S,
}

impl<'a, S: Surface> TransformContext<'a, S> {
    /// The rank that has the matrix.
    #[must_use]
    pub fn rank(&self) -> RankId {
        self.rank
    }

    /// The name of the program whose step it is.
    #[must_use]
    pub fn program(&self) -> &'a str {
        &self.bound.program
    }

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
        self.surface.read(self.matrix.from)
    }

    /// What the rule makes of it, to overwrite; f32 `[rows, columns]`.
    ///
    /// # Errors
    /// What the surface says.
    pub fn transformed(&self) -> Result<S::Write<'a, f32>, ComputeError> {
        self.matrix.lent.mark();
        self.surface.write(self.matrix.to)
    }

    /// The verdict over the step, as [`UpdateContext::vote`](super::UpdateContext::vote) has it. On a GPU, in a step
    /// that will turn out to be skipped, the matrix holds any bits, and nothing reads what the rule makes of them.
    ///
    /// # Errors
    /// What the surface says.
    pub fn vote(&self) -> Result<S::Read<'a, Vote>, ComputeError> {
        self.surface.read(self.bound.vote)
    }

    /// What the backend hands to closures besides memory: the stream of the compute lane on a GPU, `()` on the CPU.
    #[must_use]
    pub fn handles(&self) -> &'a S::Handles {
        self.surface.handles()
    }
}
