//! The user's closures on the thread that owns them.
//!
//! Laws:
//! - Closures are made, run and dropped on one thread.
//! - EX-4: a closure that returns without having requested everything that its call overwrites has failed.
//! - After a panic a closure's state is not trusted: none runs again, and neither does the optimizer. Every later
//!   call faults, and every later update fails, with the name of what panicked and its words.
//!
//! The caller sees to it that no closure runs while the fault word is set, and no custom optimizer in a step that is
//! skipped as far as the host knows, because backends keep fault word and vote in different places.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{BackendError, ClosureFault};
use warpweft_base::id::{CallId, RankId};
use warpweft_base::panics::kept_words;
use warpweft_plan::compute::{Borrower, BoundCall, Compute, ComputeFactory, OptimizerTask, Seat, Surface};

/// The closures of one lane.
pub enum Closures<S: Surface> {
    /// The lane carries none.
    None,
    /// Ready to run.
    Ready(Box<dyn Compute<S>>),
    /// One has panicked: which, and its words.
    Broken(String),
}

impl<S: Surface> Closures<S> {
    /// Calls the factory, if there is one.
    ///
    /// # Errors
    /// What the factory said when it failed or panicked.
    pub fn make(factory: Option<ComputeFactory<S>>, seat: Seat<S::Device>) -> Result<Self, String> {
        match factory {
            None => Ok(Self::None),
            Some(factory) => match catch_unwind(AssertUnwindSafe(|| factory(seat))) {
                Ok(Ok(closures)) => Ok(Self::Ready(closures)),
                Ok(Err(error)) => Err(format!("the factory of the closures failed: {error}")),
                Err(panic) => Err(format!("the factory of the closures panicked: {}", kept_words(panic))),
            },
        }
    }

    /// Carries out one call. Returns the fault it ended in, if any.
    pub fn run(
        &mut self,
        rank: RankId,
        bound: &BoundCall,
        surface: &S,
    ) -> Result<Option<ClosureFault>, BackendError> {
        let fault = match self {
            Self::None => return Err(BackendError::NoClosures),
            Self::Broken(message) => Some((message.clone(), true)),
            Self::Ready(closures) => {
                let run = || bound.run(rank, surface, closures.as_mut());
                match catch_unwind(AssertUnwindSafe(run)) {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some((error.to_string(), false)),
                    Err(panic) => Some((kept_words(panic), true)),
                }
            }
        };
        let Some((message, panicked)) = fault else { return Ok(None) };
        if panicked && let Self::Ready(_) = self {
            *self = Self::Broken(format!("call `{}` panicked before: {message}", bound.call.label()));
        }
        Ok(Some(ClosureFault { call: bound.id, message, panicked }))
    }
}

impl<S: Surface> Closures<S> {
    /// Carries out one task of the custom optimizer.
    pub fn custom_optimizer(
        &mut self,
        rank: RankId,
        task: &OptimizerTask,
        surface: &S,
    ) -> Result<(), BackendError> {
        let closures = match self {
            Self::None => return Err(BackendError::NoClosures),
            Self::Broken(message) => return Err(BackendError::Optimizer(message.clone())),
            Self::Ready(closures) => closures,
        };
        match catch_unwind(AssertUnwindSafe(|| task.run(rank, surface, closures.as_mut()))) {
            Ok(done) => done.map_err(|error| BackendError::Optimizer(error.to_string())),
            Err(panic) => {
                let message = format!("{} panicked: {}", task.name(), kept_words(panic));
                *self = Self::Broken(message.clone());
                Err(BackendError::Optimizer(message))
            }
        }
    }
}

impl<S: Surface> std::fmt::Debug for Closures<S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::None => "no closures",
            Self::Ready(_) => "closures",
            Self::Broken(_) => "broken closures",
        })
    }
}

/// The fault word for a faulted call: its number, counted from 1, so that 0 means no fault.
pub fn fault_word(call: CallId) -> u32 {
    call.number().saturating_add(1)
}
