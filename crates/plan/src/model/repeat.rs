//! Micro-batches: a program whose calls are repeated within one step.
//!
//! Law: a step runs all calls once per micro-batch, micro-batch after micro-batch, in declared order. Weights
//! and carried buffers continue from one micro-batch to the next; every other buffer begins anew in each. A
//! step is one optimizer step: the gradients of all micro-batches are added, and the mean is taken over ranks
//! and micro-batches.

use super::{Call, DeclareError, ProgramBuilder, StepProgram};
use warpweft_base::id::{CallId, MicroBatchId};

impl ProgramBuilder {
    /// The most micro-batches a step may have.
    pub const MAX_MICRO_BATCHES: u32 = 4096;

    /// Repeats all calls `count` times in every step, once per micro-batch; 1 unless set.
    ///
    /// Sizes of buffers are those of one micro-batch. For an input with `elements` elements the user
    /// writes `[count, elements]` before a step; of an output it reads the same number, micro-batch after
    /// micro-batch.
    ///
    /// # Errors
    /// [`DeclareError::MicroBatches`] for none, or more than [`ProgramBuilder::MAX_MICRO_BATCHES`].
    pub fn micro_batches(&mut self, count: u32) -> Result<(), DeclareError> {
        if !(1..=Self::MAX_MICRO_BATCHES).contains(&count) {
            return Err(DeclareError::MicroBatches { count, most: Self::MAX_MICRO_BATCHES });
        }
        self.micro_batches = count;
        Ok(())
    }
}

impl StepProgram {
    /// The most calls of one step, micro-batches counted; a program of more cannot be built.
    pub const MAX_RUNS: usize = 1 << 18;

    /// How often a step repeats the calls.
    #[must_use]
    pub fn micro_batches(&self) -> u32 {
        self.micro_batches
    }

    /// How many calls one step has, micro-batches counted.
    #[must_use]
    pub fn run_count(&self) -> usize {
        self.calls().len().saturating_mul(self.micro_batches as usize)
    }

    /// The calls of one step in the order in which they run: all of them for every micro-batch, so
    /// [`StepProgram::run_count`] of them.
    #[must_use]
    pub fn runs(&self) -> Vec<Call> {
        let micro_batches = (0..self.micro_batches).map(MicroBatchId::new);
        micro_batches
            .flat_map(|micro_batch| self.calls().iter().map(move |call| Call { micro_batch, ..call.clone() }))
            .collect()
    }
}

impl Call {
    /// The call's name, followed by the micro-batch if that is not the first.
    #[must_use]
    pub fn label(&self) -> String {
        match self.micro_batch.number() {
            0 => self.name.clone(),
            _ => format!("{} in {}", self.name, self.micro_batch),
        }
    }

    /// The number of the call as it was declared, if `run` is its number in the step.
    #[doc(hidden)]
    pub fn declared(run: CallId, runs: usize, micro_batches: u32) -> CallId {
        CallId::at(run.index() % (runs / micro_batches.max(1) as usize).max(1))
    }
}
