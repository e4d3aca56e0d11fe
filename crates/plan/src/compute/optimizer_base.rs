//! The base of all contexts of a custom optimizer.
//!
//! Law: rank, program, vote and handles are the same for all parts of a step. The rows of a weight are lent to the
//! parts that work on rows alone, with the state that the optimizer names.

use super::error::ComputeError;
use super::lent::Lent;
use super::{Surface, UpdatedWeight};
use crate::layout::{Region, STATES};
use crate::model::Hyperparameters;
use crate::op::Vote;
use warpweft_base::id::{RankId, WeightId};

/// The rank's rows of one weight, bound to memory.
#[derive(Debug)]
#[doc(hidden)]
pub struct BoundRows {
    pub weight: UpdatedWeight,
    pub kept: Vec<Region>,
    pub main_grad: Region,
    pub hyperparameters: Region,
    /// What must be requested: the master of an update, prepared rows.
    pub lent: Lent,
}

impl BoundRows {
    /// What begins where `region` does, of the rows or of `others`, in words.
    pub(super) fn operand_at(&self, region: Region, others: &[(&'static str, Region)]) -> Option<String> {
        let begins = |part: Region| part.bytes > 0 && part.offset == region.offset;
        let name = &self.weight.name;
        if let Some((what, _)) = others.iter().find(|(_, part)| begins(*part)) {
            return Some(format!("the {what} of `{name}`"));
        }
        if begins(self.main_grad) {
            return Some(format!("the main grad of `{name}`"));
        }
        let list = self.kept.iter().position(|part| begins(*part))?;
        Some(format!("the {} of `{name}`", STATES.get(list)?))
    }
}

/// What all contexts of a custom optimizer share.
#[derive(Debug)]
pub struct OptimizerContext<'a, S: Surface> {
    pub(super) rank: RankId,
    pub(super) program: &'a str,
    pub(super) vote: Region,
    pub(super) states: &'static [&'static str],
    pub(super) surface: &'a S,
}

impl<'a, S: Surface> OptimizerContext<'a, S> {
    /// The rank whose rows these are, or which has the matrix.
    #[must_use]
    pub fn rank(&self) -> RankId {
        self.rank
    }

    /// The name of the program whose step it is.
    #[must_use]
    pub fn program(&self) -> &'a str {
        self.program
    }

    /// The verdict over the step, one value: whether it [skips](Vote::skips), the [factor](Vote::factor) on
    /// gradients, and how many steps the optimizer has taken with this one.
    ///
    /// On the CPU an optimizer is not called in a step that is skipped. On a GPU it is, unless a closure of this very
    /// rank has failed, because of all else the host does not know then: its kernels read the vote and leave
    /// everything as it is. A matrix holds any bits then, and nothing reads what becomes of them.
    ///
    /// # Errors
    /// What the surface says.
    pub fn vote(&self) -> Result<S::Read<'a, Vote>, ComputeError> {
        self.surface.read(self.vote)
    }

    /// What the backend hands to closures besides memory: the stream of the compute lane on a GPU, `()` on the CPU.
    #[must_use]
    pub fn handles(&self) -> &'a S::Handles {
        self.surface.handles()
    }

    pub(super) fn hyperparameters_of(
        &self,
        rows: &BoundRows,
    ) -> Result<S::Read<'a, Hyperparameters>, ComputeError> {
        self.surface.read(rows.hyperparameters)
    }

    pub(super) fn main_grad_of(&self, rows: &BoundRows) -> Result<S::Read<'a, f32>, ComputeError> {
        self.surface.read(rows.main_grad)
    }

    pub(super) fn state_of(&self, rows: &BoundRows, name: &str) -> Result<S::Write<'a, f32>, ComputeError> {
        let list = self.states.iter().position(|state| *state == name);
        match list.and_then(|list| rows.kept.get(list)) {
            Some(region) => self.surface.write(*region),
            None => Err(ComputeError::NoState {
                weight: rows.weight.name.clone(),
                state: name.to_owned(),
                kept: self.states.iter().take(rows.kept.len()).map(|state| (*state).to_owned()).collect(),
            }),
        }
    }
}

/// The rows of a weight among those of a task, which are in the order of the weights' ids.
pub(super) fn rows_of<T>(
    all: &[T],
    weight: WeightId,
    rows: impl Fn(&T) -> &BoundRows,
) -> Result<&T, ComputeError> {
    let found = all.binary_search_by_key(&weight, |one| rows(one).weight.id);
    let found = found.ok().map(|at| &all[at]);
    found.filter(|one| weight.is_named(&rows(one).weight.name)).ok_or(ComputeError::NotOfUpdate { weight })
}
