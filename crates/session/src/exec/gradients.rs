//! Non-finite gradients of a step, as one rank knows them.
//!
//! Laws:
//! - **EX-2** The call that wrote one is known on its rank alone, and the row in which the sum has one on the
//!   ranks that own it. Every rank of every process gets what each of them knows.
//! - Main grads are searched only after a step that was skipped without a loss scale, and only if no call of
//!   any rank is known to have written such a gradient, in that step or in one before it of the same sum. All ranks
//!   search or none: they exchange one number after every step that may need it, whatever its loss scale.

use super::stored_state::StoredState;
use super::{ExecError, FoundValue, Handover, Rank};
use warpweft_backend::rendezvous::{Reader, Truncated, Writer};
use warpweft_backend::{Activity, Backend, Inspection};
use warpweft_base::id::{CallId, ProgramId, WeightId};
use warpweft_plan::layout::Content;
use warpweft_plan::op::Vote;
use warpweft_plan::plan::StepPlan;

/// One rank's findings about gradients of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gradients {
    /// What its calls wrote.
    pub inspection: Inspection,
    /// The first value of the rank's main grads that is not finite, if it was searched for and found.
    pub main_grad: Option<FoundValue>,
}

impl Gradients {
    pub(super) fn encode(&self, writer: &mut Writer) {
        match self.inspection {
            Inspection::None => writer.byte(0),
            Inspection::Finite => writer.byte(1),
            Inspection::NonFinite { call, weight } => {
                writer.byte(2).number(call.number()).number(weight.number())
            }
        };
        writer.byte(u8::from(self.main_grad.is_some()));
        self.main_grad.iter().for_each(|found| found.encode(writer));
    }

    /// What [`Gradients::encode`] wrote, of a step of this plan.
    pub(super) fn decode(reader: &mut Reader<'_>, plan: &StepPlan) -> Result<Self, Truncated> {
        let weights = plan.weights.layouts.len();
        let inspection = match reader.byte()? {
            0 => Inspection::None,
            1 => Inspection::Finite,
            2 => {
                let (call, weight) = (CallId::new(reader.number()?), WeightId::new(reader.number()?));
                if call.index() >= plan.calls.len() || weight.index() >= weights {
                    return Err(Truncated);
                }
                Inspection::NonFinite { call, weight }
            }
            _ => return Err(Truncated),
        };
        let main_grad = match reader.byte()? {
            0 => None,
            _ => Some(FoundValue::decode(reader, weights)?),
        };
        Ok(Self { inspection, main_grad })
    }
}

impl<B: Backend> Rank<B> {
    /// What there is to know of the gradients of the step that has just ended, whose vote is in `handover`.
    ///
    /// # Errors
    /// What the backend refuses, and ranks that do not come.
    pub(super) fn gradients(
        &mut self,
        program: ProgramId,
        handover: &Handover,
    ) -> Result<Gradients, ExecError> {
        let installed = &self.programs[program.index()];
        let inspection = self.backend.take_inspection(&installed.bound);
        if installed.plan.writes_gradients() {
            self.wrote_non_finite &= installed.plan.accumulation.continues();
            self.wrote_non_finite |= matches!(inspection, Inspection::NonFinite { .. });
        }
        let may_hold_one = |vote: Vote| vote.verdict == Vote::NON_FINITE && !vote.norm.is_finite();
        if !handover.last.vote.is_some_and(may_hold_one) {
            return Ok(Gradients { inspection, main_grad: None });
        }
        let is_explained = self.wrote_non_finite || handover.coming.loss_scale != 1.0;
        let exchange = || self.world.exchange(self.id(), u64::from(is_explained));
        if self.meter.within(Activity::Waiting, exchange)?.contains(&1) {
            return Ok(Gradients { inspection, main_grad: None });
        }
        let weights = (0..self.prologue.plan.weights.layouts.len()).map(WeightId::at);
        let trained = weights.filter(|weight| !self.is_frozen(*weight));
        let main_grad = self.first_found(trained, |weight| {
            let rows = self.values(Content::MainGrad(weight), weight)?;
            Ok(self.first_beyond(weight, &rows, f32::MAX))
        })?;
        Ok(Gradients { inspection, main_grad })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use warpweft_format::Format;
    use warpweft_plan::model::{Mesh, Model, Phase, StepProgram};
    use warpweft_plan::plan::Policy;

    /// EX-2
    #[test]
    fn what_a_rank_knows_of_gradients_arrives_and_what_is_torn_or_of_no_call_is_refused() {
        let mut model = Model::builder();
        let w = model.sharded("w", 16, 16, Format::Bf16).unwrap();
        let mut program = StepProgram::builder("train", &model.build());
        program.call("back", Phase::Backward).gradient(w).add().unwrap();
        let program = program.build_training().unwrap();
        let plan =
            StepPlan::build(&program, &Policy::from(&Config::default()), Mesh::new(1).unwrap()).unwrap();
        let found = FoundValue { weight: w, row: 3, column: 7, value: f32::INFINITY };
        let written = |call| Inspection::NonFinite { call: CallId::new(call), weight: w };
        for inspection in [Inspection::None, Inspection::Finite, written(0)] {
            for main_grad in [None, Some(found)] {
                let known = Gradients { inspection, main_grad };
                let mut writer = Writer::default();
                known.encode(&mut writer);
                let bytes = writer.take();
                let mut reader = Reader::new(&bytes);
                assert_eq!(Gradients::decode(&mut reader, &plan), Ok(known));
                assert_eq!(reader.end(), Ok(()));
                for end in 0..bytes.len() {
                    assert!(Gradients::decode(&mut Reader::new(&bytes[..end]), &plan).is_err(), "{end}");
                }
            }
        }
        let mut writer = Writer::default();
        Gradients { inspection: written(1), main_grad: None }.encode(&mut writer);
        assert!(Gradients::decode(&mut Reader::new(&writer.take()), &plan).is_err());
    }
}
