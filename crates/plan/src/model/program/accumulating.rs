//! Programs for gradient accumulation.
//!
//! Law: only a program with an optimizer accumulates; buffers and calls of its parts are its own.

use super::accumulation::Accumulation;
use super::step::StepProgram;
use crate::model::DeclareError;

impl StepProgram {
    /// The same program, whose gradients may also be accumulated over several steps before one of the
    /// optimizer (`Session::accumulate`). A session then makes three more
    /// plans of it, and where steps are captured, as many captures of those that run.
    ///
    /// # Errors
    /// [`DeclareError::NothingAccumulates`] of a program that was not built by
    /// [`ProgramBuilder::build_training`](super::ProgramBuilder::build_training).
    pub fn accumulating(mut self) -> Result<Self, DeclareError> {
        if !self.updates_weights {
            return Err(DeclareError::NothingAccumulates { program: self.name });
        }
        self.accumulates = true;
        Ok(self)
    }

    /// May its gradients be added up over several steps?
    #[must_use]
    pub const fn is_accumulating(&self) -> bool {
        self.accumulates
    }

    /// What a step of it is of a step of the optimizer.
    pub(crate) const fn accumulation(&self) -> Accumulation {
        self.accumulation
    }

    /// The program of which a step is this part; what a session plans beside whole steps.
    #[doc(hidden)]
    #[must_use]
    pub fn part(&self, accumulation: Accumulation) -> Self {
        let updates_weights = self.updates_weights && !accumulation.stays_open();
        Self { accumulation, updates_weights, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, Phase};
    use warpweft_format::{ElementType, Format};

    #[test]
    fn only_programs_with_an_optimizer_accumulate() {
        let mut model = Model::builder();
        let weight = model.sharded("w", 16, 16, Format::F32).unwrap();
        let declared = || {
            let mut program = StepProgram::builder("p", &model.clone().build());
            let x = program.input("x", 1, ElementType::F32).unwrap();
            program.call("c", Phase::Backward).reads(x).gradient(weight).add().unwrap();
            program
        };
        let refused = declared().build_gradients().unwrap().accumulating().unwrap_err();
        assert!(matches!(&refused, DeclareError::NothingAccumulates { program } if program == "p"));
        assert!(refused.to_string().contains("build_training"), "{refused}");
        let program = declared().build_training().unwrap().accumulating().unwrap();
        assert!(program.is_accumulating() && program.accumulation().is_whole());
        for (part, updates) in
            [(Accumulation::First, false), (Accumulation::Next, false), (Accumulation::Last, true)]
        {
            assert_eq!(program.part(part).updates_weights(), updates, "{part:?}");
        }
    }
}
