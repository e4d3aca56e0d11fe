//! One task of the trainer's own rule, whichever part of it that is.
//!
//! Law: backends carry out, name and report all parts alike; only here does it matter which part one is.

use super::error::ComputeError;
use super::matrix::{BoundPreparation, BoundTransformation};
use super::update::BoundUpdate;
use super::{Borrower, Compute, Surface};
use crate::layout::Region;
use warpweft_base::id::RankId;

/// A part of a rule, bound to the arena.
#[derive(Debug)]
pub enum RuleTask {
    /// Prepares rows of matrices.
    Prepare(BoundPreparation),
    /// Transforms a matrix.
    Transform(BoundTransformation),
    /// Updates weights.
    Update(BoundUpdate),
}

impl RuleTask {
    /// Carries out the task on `rank` by the rule of its closures, which gets its memory from `surface`.
    ///
    /// # Errors
    /// What the rule or the surface says; [`ComputeError::NotUpdated`] for a master, [`ComputeError::NotPrepared`] for
    /// rows and [`ComputeError::NotTransformed`] for a matrix that it did not ask for.
    pub fn run<S: Surface>(
        &self,
        rank: RankId,
        surface: &S,
        closures: &mut dyn Compute<S>,
    ) -> Result<(), ComputeError> {
        match self {
            Self::Prepare(bound) => bound.run(rank, surface, closures),
            Self::Transform(bound) => bound.run(rank, surface, closures),
            Self::Update(bound) => bound.run(rank, surface, closures),
        }
    }
}

impl Borrower for RuleTask {
    fn name(&self) -> &str {
        match self {
            Self::Prepare(bound) => &bound.name,
            Self::Transform(bound) => &bound.name,
            Self::Update(bound) => &bound.name,
        }
    }

    fn name_at(&self, region: Region) -> String {
        match self {
            Self::Prepare(bound) => bound.operand_at(region),
            Self::Transform(bound) => bound.operand_at(region),
            Self::Update(bound) => bound.operand_at(region),
        }
    }
}
