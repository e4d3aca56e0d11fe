//! Divergence: values after an optimizer step from which no training can resume.
//!
//! Laws:
//! - **EX-5** A step that leaves a master or a moment that is not finite, as it is kept or as it is cast, reports it
//!   itself, in every process alike.
//! - The device says that there is one somewhere, for the price of a comparison. Which it is, the host looks up
//!   after such a step alone: in the rank's own rows, weight by weight, the master first (`found`).

use super::stored_state::StoredState;
use super::{ExecError, FoundValue, Rank};
use crate::checkpoint::StatePart;
use warpweft_backend::Backend;
use warpweft_backend::rendezvous::{Reader, Truncated, Writer};
use warpweft_base::id::StateId;
use warpweft_base::id::WeightId;

/// One value that a rank found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stray {
    /// What of its weight.
    pub part: StatePart,
    /// Where, and which.
    pub found: FoundValue,
}

/// Divergence on a rank: state from which training cannot go on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Diverged {
    /// The first value of the rank's own rows; `None` if none of them is one, and another rank has
    /// brought it an amax without a scale, or if looking for it would have taken too long.
    pub stray: Option<Stray>,
}

impl Diverged {
    /// Writes the report of one rank for another process.
    pub(super) fn encode(told: Option<&Self>, writer: &mut Writer) {
        let Some(Self { stray }) = told else {
            writer.byte(0);
            return;
        };
        writer.byte(1).byte(u8::from(stray.is_some()));
        if let Some(Stray { part, found }) = stray {
            writer.byte(match part {
                StatePart::Master => 0,
                StatePart::State(list) => u8::try_from(list.number() + 1).unwrap_or(u8::MAX),
            });
            found.encode(writer);
        }
    }

    /// Reads what [`Diverged::encode`] wrote, in a session of `weights` weights.
    pub(super) fn decode(reader: &mut Reader<'_>, weights: usize) -> Result<Option<Self>, Truncated> {
        if reader.byte()? == 0 {
            return Ok(None);
        }
        if reader.byte()? == 0 {
            return Ok(Some(Self::default()));
        }
        let part = match reader.byte()? {
            0 => StatePart::Master,
            list => StatePart::State(StateId::new(u32::from(list) - 1)),
        };
        Ok(Some(Self { stray: Some(Stray { part, found: FoundValue::decode(reader, weights)? }) }))
    }
}

impl<B: Backend> Rank<B> {
    /// The divergence that the step that has just ended left, if any.
    ///
    /// # Errors
    /// What the backend refuses.
    pub(super) fn divergence(&self) -> Result<Option<Diverged>, ExecError> {
        if !self.backend.take_diverged() {
            return Ok(None);
        }
        let weights = (0..self.prologue.plan.weights.layouts.len()).map(WeightId::at);
        let kept = StatePart::kept(self.prologue.plan.weights.state.lists());
        let lists = weights.flat_map(|weight| kept.clone().map(move |part| (weight, part)));
        let stray = self.first_found(lists, |(weight, part)| self.stray_of(weight, part))?;
        Ok(Some(Diverged { stray }))
    }

    /// The first of the rank's values of one kind from which no training goes on.
    fn stray_of(&self, weight: WeightId, part: StatePart) -> Result<Option<Stray>, ExecError> {
        let plan = &self.prologue.plan;
        let (layout, values) = (plan.weights.layout(weight), self.rows(weight, part)?);
        let largest = match part {
            StatePart::Master => plan.policy.settings.via.largest(layout.format),
            StatePart::State(_) => plan.weights.state.largest_moment(),
        };
        Ok(self.first_beyond(weight, &values, largest).map(|found| Stray { part, found }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_tells_of_its_divergence_arrives_and_what_is_torn_or_of_no_weight_is_refused() {
        let stray = |part| Stray {
            part,
            found: FoundValue { weight: WeightId::new(2), row: 1 << 40, column: 7, value: f32::NEG_INFINITY },
        };
        let kinds = StatePart::kept(3).map(|part| Some(stray(part)));
        let all = kinds.chain([None]).map(|stray| Some(Diverged { stray })).chain([None]);
        for told in all {
            let mut writer = Writer::default();
            Diverged::encode(told.as_ref(), &mut writer);
            let bytes = writer.take();
            let mut reader = Reader::new(&bytes);
            assert_eq!(Diverged::decode(&mut reader, 3), Ok(told));
            assert_eq!(reader.end(), Ok(()));
            assert!(
                (0..bytes.len()).all(|end| Diverged::decode(&mut Reader::new(&bytes[..end]), 3).is_err())
            );
            let stray = told.and_then(|told| told.stray);
            assert_eq!(Diverged::decode(&mut Reader::new(&bytes), 2).is_err(), stray.is_some());
        }
    }
}
