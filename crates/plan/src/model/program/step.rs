//! The checked program.
//!
//! Law: a value of [`StepProgram`] has passed every check of its builder, and nobody changes its buffers and calls
//! afterwards.
//! Buffers and calls keep the numbers under which they were added.

use serde::Serialize;

use super::accumulation::Accumulation;
use super::call::Call;
use crate::model::names::{NameIndex, names};
use crate::model::{BufferSpec, DeclareError, Model};
use warpweft_base::id::{BufferId, CallId};

/// A checked step program over one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepProgram {
    pub(in crate::model) micro_batches: u32,
    pub(super) name: String,
    pub(super) model: Model,
    pub(super) buffers: Vec<BufferSpec>,
    pub(super) calls: Vec<Call>,
    #[serde(skip)]
    pub(super) buffer_names: NameIndex,
    #[serde(skip)]
    pub(super) call_names: NameIndex,
    pub(super) updates_weights: bool,
    pub(super) accumulates: bool,
    pub(super) accumulation: Accumulation,
}

impl StepProgram {
    /// The program's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The weights it runs over.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// All buffers, in the order of their ids.
    #[must_use]
    pub fn buffers(&self) -> &[BufferSpec] {
        &self.buffers
    }

    /// All calls as declared, in program order; a step repeats them ([`StepProgram::runs`]).
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Every call with its id.
    pub fn entries(&self) -> impl Iterator<Item = (CallId, &Call)> {
        self.calls.iter().enumerate().map(|(position, call)| (CallId::at(position), call))
    }

    /// Does a step of this program end in an optimizer step?
    #[must_use]
    pub fn updates_weights(&self) -> bool {
        self.updates_weights
    }

    /// The id of the buffer called `name`.
    ///
    /// # Errors
    /// [`DeclareError::Unknown`] lists the names that exist.
    pub fn buffer(&self, name: &str) -> Result<BufferId, DeclareError> {
        self.buffer_names.find(name).map(|position| BufferId::named(name, position)).ok_or_else(|| {
            DeclareError::Unknown {
                kind: "buffer",
                name: name.to_owned(),
                declared: names(self.buffers.iter().map(|spec| spec.name.as_str())),
            }
        })
    }

    /// The id of the call called `name`.
    ///
    /// # Errors
    /// [`DeclareError::Unknown`] lists the names that exist.
    pub fn call(&self, name: &str) -> Result<CallId, DeclareError> {
        self.call_names.find(name).map(CallId::at).ok_or_else(|| DeclareError::Unknown {
            kind: "call",
            name: name.to_owned(),
            declared: names(self.calls.iter().map(|call| call.name.as_str())),
        })
    }
}
