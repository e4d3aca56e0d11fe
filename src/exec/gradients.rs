//! What a rank knows of gradients of a step that are not finite.
//!
//! Laws:
//! - **EX-2** The call that wrote one is known on its rank alone, and the row in which the sum has one on the
//!   ranks that own it. Every rank of every process gets what each of them knows.
//! - A main grad is searched only behind a step that was skipped, and only by a rank none of whose calls is known to
//!   have written such a gradient.

use super::{ExecError, FoundValue, Rank};
use crate::backend::{Backend, Inspection};
use crate::id::{CallId, WeightId};
use crate::layout::Content;
use crate::op::Vote;
use crate::plan::StepPlan;
use crate::rendezvous::{Reader, Truncated, Writer};

/// What one rank knows of gradients of a step.
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
    /// What there is to know of the gradients of the step that has just ended, given its vote.
    ///
    /// # Errors
    /// What the backend refuses.
    pub(super) fn gradients(&self, bound: &B::Bound, vote: Option<Vote>) -> Result<Gradients, ExecError> {
        let inspection = self.backend.take_inspection(bound);
        let is_skipped = vote.is_some_and(|vote| vote.verdict == Vote::NON_FINITE);
        if !is_skipped || matches!(inspection, Inspection::NonFinite { .. }) {
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
    use crate::format::Format;
    use crate::model::{Mesh, Model, Phase, StepProgram};
    use crate::plan::Policy;

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
