//! State validation: a session whose optimizer left values from which no training goes on.
//!
//! Law: the step that left them says so, in every process alike, and so does every step and export that is requested
//! after it, until an import has put other weights in place. Until then the weights are neither trained on nor saved.
//! Main grads are still handed out, which may show where it comes from.

use crate::checkpoint::StatePart;
use crate::exec::{Diverged, FoundValue, RankReport, Stray};
use crate::session::{Session, SessionError};
use warpweft_base::id::RankId;
use warpweft_plan::layout::Weights;

/// A master or a moment from which no training goes on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StrayValue {
    /// The weight.
    pub weight: String,
    /// What of it.
    pub part: StatePart,
    /// In a word: a master, a moment, or a state of a custom optimizer.
    pub list: &'static str,
    /// The row of the whole weight, counted from 0.
    pub row: usize,
    /// The column, counted from 0.
    pub column: usize,
    /// The value. A finite one is rounded to infinity where it is kept or cast in bf16.
    pub value: f32,
}

/// The first step that left such a value, since masters were last set.
#[derive(Clone, Debug)]
pub(in crate::session) struct Divergence {
    step: u64,
    rank: RankId,
    value: Option<StrayValue>,
}

impl Divergence {
    /// What all ranks say of a step together: the first value, in the order of ranks, that somebody holds.
    pub(in crate::session) fn of(step: u64, ranks: &[RankReport], weights: &Weights) -> Option<Self> {
        let told = || ranks.iter().enumerate().filter_map(|(rank, report)| Some((rank, report.diverged?)));
        let (rank, Diverged { stray }) =
            told().find(|(_, diverged)| diverged.stray.is_some()).or_else(|| told().next())?;
        let named = |Stray { part, found: FoundValue { weight, row, column, value } }| StrayValue {
            weight: weights.layout(weight).name.clone(),
            part,
            list: part.in_words(weights.state),
            row,
            column,
            value,
        };
        Some(Self { step, rank: RankId::at(rank), value: stray.map(named) })
    }

    pub(in crate::session) fn error(&self) -> SessionError {
        let Self { step, rank, value } = self.clone();
        SessionError::Diverged { step, rank, value }
    }
}

impl Session {
    /// May weights be trained on, or saved?
    pub(in crate::session) fn check_finite(&self) -> Result<(), SessionError> {
        self.diverged.as_ref().map_or(Ok(()), |diverged| Err(diverged.error()))
    }
}

/// What happened, in words.
pub(in crate::session) fn described(step: u64, rank: RankId, value: Option<&StrayValue>) -> String {
    let Some(StrayValue { weight, list, row, column, value, .. }) = value else {
        return format!(
            "step {step} left masters or moments that are not finite; {rank} noticed, and did not find which"
        );
    };
    let rounded = if value.is_finite() { ", which bf16 rounds to infinity" } else { "" };
    format!(
        "step {step} left {rank} the {list} {value:?} of `{weight}` in row {row}, column {column}{rounded}"
    )
}
