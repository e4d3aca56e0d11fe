//! Non-finite gradients: of which weight, and from which call on which rank.
//!
//! Laws:
//! - What is named follows from what all ranks know together, so every process names the same (EX-2): the first
//!   call in program order that wrote such a gradient, on the first rank on which it did.
//! - A call is named only for what it wrote itself. Where no rank saw a call write such a gradient, the row of the main
//!   grad is named, and whether gradients were inspected; under a loss scale, whose overflows are routine, nothing is.
//! - A sum over steps is the sum of all of them: what the first of them brought in is what makes its end a
//!   skipped step.

use std::fmt;

use crate::exec::{FoundValue, RankReport};
use crate::session::{Session, SessionError};
use warpweft_backend::Inspection;
use warpweft_base::id::{CallId, RankId, WeightId};
use warpweft_plan::model::Call;
use warpweft_plan::op::Vote;
use warpweft_plan::plan::StepPlan;

/// A gradient that is not finite.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NonFiniteGradient {
    /// The weight.
    pub weight: String,
    /// Where the value comes from.
    pub made_by: MadeBy,
}

/// The origin of a non-finite value of a gradient.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MadeBy {
    /// A call wrote it: the first in program order, on the first rank on which it did.
    #[non_exhaustive]
    Call {
        /// The step: the one that is reported, or one before it whose gradients were accumulated with it.
        step: u64,
        /// The rank.
        rank: RankId,
        /// The call, with its micro-batch.
        call: String,
    },
    /// Every call wrote finite gradients, and their sum is not finite, or one of them or of the sums on the way,
    /// rounded to bf16 or MXFP8. In MXFP8 a block of 32 neighbours of a row is NaN if one of them is not finite.
    #[non_exhaustive]
    Sum {
        /// The first rank that found such a value in the main grads of its rows.
        rank: RankId,
        /// The row of the whole weight, counted from 0.
        row: usize,
        /// The column, counted from 0. Where MXFP8 travels it may be any of the block whose value overflowed.
        column: usize,
        /// The value; there it may be NaN where one overflowed.
        value: f32,
    },
    /// Not known: gradients were not inspected when calls wrote them. Those of the next step will be.
    #[non_exhaustive]
    Unknown {
        /// The first rank that found such a value in the main grads of its rows.
        rank: RankId,
        /// The row of the whole weight, counted from 0.
        row: usize,
        /// The column, counted from 0.
        column: usize,
        /// The value.
        value: f32,
    },
}

impl fmt::Display for NonFiniteGradient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = &self.weight;
        match &self.made_by {
            MadeBy::Call { step, rank, call } => write!(
                out,
                "{rank} wrote a gradient of `{weight}` that is not finite in call `{call}` of step {step}"
            ),
            MadeBy::Sum { rank, row, column, value } => write!(
                out,
                "calls wrote finite gradients of `{weight}`; their sum, or what was rounded to bf16 or MXFP8 on its way, is \
                 {value:?} in row {row}, column {column} (of {rank}); in MXFP8 the column may be any of its block of 32"
            ),
            MadeBy::Unknown { rank, row, column, value } => write!(
                out,
                "the gradient of `{weight}` is {value:?} in row {row}, column {column} (of {rank}); gradients were not \
                 inspected as calls wrote them, those of the next step are"
            ),
        }
    }
}

impl std::error::Error for NonFiniteGradient {}

/// Steps that were skipped, and what is known of the gradients that main grads hold.
#[derive(Debug, Default)]
pub(in crate::session) struct Skips {
    /// How many were skipped one after the other without a loss scale.
    in_a_row: u32,
    /// Was the last step with an optimizer skipped?
    pub(in crate::session) inspects: bool,
    /// The first gradient of those in main grads that a call wrote and that is not finite.
    written: Option<NonFiniteGradient>,
    /// Were all of them inspected?
    is_inspected: bool,
}

impl Skips {
    /// What all ranks know together of gradients that are not finite, once the step has ended by `vote`.
    pub(in crate::session) fn after(
        &mut self,
        plan: &StepPlan,
        step: u64,
        ranks: &[RankReport],
        (vote, loss_scale): (Option<Vote>, f32),
    ) -> Option<NonFiniteGradient> {
        if !plan.writes_gradients() {
            return None;
        }
        if !plan.accumulation.continues() {
            (self.written, self.is_inspected) = (None, true);
        }
        self.is_inspected &= ranks.iter().all(|report| report.gradients.inspection != Inspection::None);
        if self.written.is_none() {
            self.written = written(plan, step, ranks);
        }
        match vote.map(|vote| vote.verdict) {
            None => self.written.clone(),
            Some(Vote::NON_FINITE) => {
                self.inspects = true;
                self.in_a_row = if loss_scale == 1.0 { self.in_a_row.saturating_add(1) } else { 0 };
                self.written.take().or_else(|| in_main_grads(plan, ranks, self.is_inspected))
            }
            Some(Vote::CLEAN) => {
                (self.inspects, self.in_a_row) = (false, 0);
                None
            }
            Some(_) => None,
        }
    }
}

/// The first call in program order that wrote such a gradient, on the first rank on which it did.
fn written(plan: &StepPlan, step: u64, ranks: &[RankReport]) -> Option<NonFiniteGradient> {
    let of_rank = |(rank, report): (usize, &RankReport)| match report.gradients.inspection {
        Inspection::NonFinite { call, weight } => Some((call, RankId::at(rank), weight)),
        Inspection::None | Inspection::Finite => None,
    };
    let all = ranks.iter().enumerate().filter_map(of_rank);
    let (call, rank, weight): (CallId, RankId, WeightId) =
        all.min_by_key(|(call, rank, _)| (*call, *rank))?;
    let call = plan.calls.get(call.index()).map_or_else(String::new, Call::label);
    let weight = plan.weights.layout(weight).name.clone();
    Some(NonFiniteGradient { weight, made_by: MadeBy::Call { step, rank, call } })
}

/// The first value that a rank found in its main grads.
fn in_main_grads(plan: &StepPlan, ranks: &[RankReport], inspected: bool) -> Option<NonFiniteGradient> {
    let of_rank =
        |(rank, report): (usize, &RankReport)| Some((RankId::at(rank), report.gradients.main_grad?));
    let (rank, found) = ranks.iter().enumerate().find_map(of_rank)?;
    let FoundValue { weight, row, column, value } = found;
    let made_by = if inspected {
        MadeBy::Sum { rank, row, column, value }
    } else {
        MadeBy::Unknown { rank, row, column, value }
    };
    Some(NonFiniteGradient { weight: plan.weights.layout(weight).name.clone(), made_by })
}

impl Session {
    /// An error if, without a loss scale, as many steps in a row were skipped as `optimizer.max_skipped` says.
    pub(in crate::session) fn check_skips(
        &self,
        (step, vote): (u64, Option<Vote>),
        gradient: Option<&NonFiniteGradient>,
    ) -> Result<(), SessionError> {
        let is_skipped = vote.is_some_and(|vote| vote.verdict == Vote::NON_FINITE);
        let steps = self.skips.in_a_row;
        if !is_skipped || self.max_skipped == 0 || steps < self.max_skipped {
            return Ok(());
        }
        let norm = vote.map_or(f32::NAN, |vote| vote.norm);
        Err(SessionError::Skipped { step, steps, norm, gradient: gradient.cloned() })
    }
}

/// Why a step was skipped, in words.
pub(in crate::session) fn why(norm: f32, gradient: Option<&NonFiniteGradient>) -> String {
    match gradient {
        Some(gradient) => gradient.to_string(),
        None if norm.is_finite() => format!("f32 cannot hold the square of the gradient norm {norm:?}"),
        None => format!("the gradient norm is {norm:?}, and where the value comes from is not known"),
    }
}
