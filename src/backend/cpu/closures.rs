//! The embedder's closures on the compute lane's thread.
//!
//! Laws:
//! - Closures are made, run and dropped on one thread.
//! - A closure that fails leaves its call in the fault word; while the fault word is set no
//!   closure runs. Everything else of the step runs on, so no peer hangs.
//! - After a panic a closure's state is not trusted: none runs again on this lane, and every later
//!   step faults at its first call.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::memory::Arena;
use super::ops::OpError;
use super::surface::CpuSurface;
use crate::backend::ClosureFault;
use crate::backend::local::ComputeCall;
use crate::compute::{Compute, ComputeContext, ComputeFactory};
use crate::id::RankId;

/// The closures of one lane.
pub(super) enum Closures {
    /// The lane carries none.
    None,
    /// Ready to run.
    Ready(Box<dyn Compute<CpuSurface>>),
    /// One has panicked, saying this.
    Broken(String),
}

impl Closures {
    /// Calls the factory, if there is one.
    ///
    /// # Errors
    /// What the factory said when it panicked.
    pub(super) fn make(factory: Option<ComputeFactory<CpuSurface>>, rank: RankId) -> Result<Self, String> {
        match factory {
            None => Ok(Self::None),
            Some(factory) => match catch_unwind(AssertUnwindSafe(|| factory(rank))) {
                Ok(closures) => Ok(Self::Ready(closures)),
                Err(panic) => Err(format!("the factory of the closures panicked: {}", words(panic.as_ref()))),
            },
        }
    }

    /// Carries out one call, unless the fault word is set. Returns the fault it ended in.
    pub(super) fn run(
        &mut self,
        rank: RankId,
        arena: &Arc<Arena>,
        bound: &ComputeCall,
    ) -> Result<Option<ClosureFault>, OpError> {
        if arena.read::<u32>(bound.fault)?.iter().any(|fault| *fault != 0) {
            return Ok(None);
        }
        let fault = match self {
            Self::None => return Err(OpError::NoClosures),
            Self::Broken(message) => Some((message.clone(), true)),
            Self::Ready(closures) => {
                let surface = CpuSurface::new(Arc::clone(arena), Arc::clone(&bound.call));
                let context = ComputeContext::new(rank, &bound.call, &surface);
                match catch_unwind(AssertUnwindSafe(|| closures.run(&bound.call.call, &context))) {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some((error.to_string(), false)),
                    Err(panic) => Some((words(panic.as_ref()), true)),
                }
            }
        };
        let Some((message, panicked)) = fault else { return Ok(None) };
        arena.write::<u32>(bound.fault)?.fill(bound.call.id.number().saturating_add(1));
        if panicked && let Self::Ready(_) = self {
            *self = Self::Broken(format!("a closure panicked in an earlier step: {message}"));
        }
        Ok(Some(ClosureFault { call: bound.call.id, message, panicked }))
    }
}

/// What a panic said.
pub(super) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}
